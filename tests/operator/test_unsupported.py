"""Fields whose behaviour comes later are refused by name, with what to write instead."""

from collections.abc import Callable
from typing import Any

import pytest

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.unsupported import unsupported


def test_refused(make_resource: Callable[..., LLMDeployment]) -> None:
    (message,) = unsupported(make_resource(kvCache={"prefixCaching": True}).spec)
    assert message.startswith("kvCache.prefixCaching true is not supported by this version")
    assert message.endswith("use false")


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"kvCache": {"precision": "BF16", "prefixCaching": False, "blockSizeTokens": 32}},
        # the planner's to judge
        {"kvCache": {"precision": "INT4"}, "device": {"kind": "GPU", "memory": "40Gi", "count": 2}},
    ],
)
def test_served(make_resource: Callable[..., LLMDeployment], spec: dict[str, Any]) -> None:
    assert unsupported(make_resource(**spec).spec) == []
