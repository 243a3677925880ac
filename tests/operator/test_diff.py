"""When a live object counts as what is wanted. Left: what we send; right: what the API server makes of it."""

from typing import Any

import pytest

from kvtide_operator.reconcile.diff import differs


@pytest.mark.parametrize(
    ("wanted", "live", "different"),
    [
        ({"a": 1}, {"a": 1, "defaulted": True}, False),
        ({"a": 1}, {"a": 2}, True),
        ({"a": 1}, {}, True),
        ({"a": {"b": 1}}, {"a": None}, True),
        ({"a": {}}, {}, False),
        ({"a": []}, {}, False),
        ({"a": [1]}, {"a": [1, 2]}, True),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}]}, False),
        ({"a": ""}, {}, False),
        ({"memory": "1024Mi"}, {"memory": "1Gi"}, False),
        ({"cpu": 0.5}, {"cpu": "500m"}, False),
        ({"cpu": "0.2"}, {"cpu": "200m"}, False),
        ({"gpu": 1}, {"gpu": "1"}, False),
        ({"memory": "1G"}, {"memory": "1Gi"}, True),
        ({"name": "chat"}, {"name": "chat2"}, True),
    ],
)
def test_a_row(wanted: Any, live: Any, different: bool) -> None:
    assert differs(wanted, live) is different
