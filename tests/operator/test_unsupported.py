"""Fields whose behaviour comes later are refused by name, with what to write instead."""

from collections.abc import Callable
from typing import Any

import pytest

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.unsupported import unsupported

CPU = {"kind": "CPU", "memory": "2Gi"}


@pytest.mark.parametrize(
    ("spec", "field", "remedy"),
    [
        ({"kvCache": {"precision": "INT8"}}, "kvCache.precision INT8", "use BF16 or Auto"),
        ({"kvCache": {"precision": "Mixed"}}, "kvCache.precision Mixed", "use BF16 or Auto"),
        ({"kvCache": {"prefixCaching": True}}, "kvCache.prefixCaching true", "use false"),
        ({"attention": {"kvHeads": 8}}, "attention.kvHeads 8", "use Native"),
        ({"attention": {"kvHeads": "Auto"}}, "attention.kvHeads Auto", "use Native"),
        ({"attention": {"variants": [{"kvHeads": 8, "uri": "hf://a/b"}]}}, "attention.variants", "leave it out"),
        ({"device": {**CPU, "count": 2}}, "device.count 2", "use 1"),
    ],
)
def test_refused(make_resource: Callable[..., LLMDeployment], spec: dict[str, Any], field: str, remedy: str) -> None:
    (message,) = unsupported(make_resource(**spec).spec)
    assert message.startswith(f"{field} is not supported by this version")
    assert message.endswith(remedy)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"kvCache": {"precision": "BF16", "prefixCaching": False, "blockSizeTokens": 32}},
        {"attention": {"kvHeads": "Native"}},
        {"device": {"kind": "GPU", "memory": "40Gi"}},
    ],
)
def test_served(make_resource: Callable[..., LLMDeployment], spec: dict[str, Any]) -> None:
    assert unsupported(make_resource(**spec).spec) == []


def test_all_of_them_at_once(make_resource: Callable[..., LLMDeployment]) -> None:
    spec = make_resource(kvCache={"precision": "INT4", "prefixCaching": True}, attention={"kvHeads": 4}).spec
    assert len(unsupported(spec)) == 3
