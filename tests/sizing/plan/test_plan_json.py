"""A plan as JSON: the contract's keys, and those of earlier releases."""

import pytest

from kvtide_sizing.errors import (
    InvalidPlan,
)
from kvtide_sizing.plan import Plan, Workload
from tests.sizing.plan.plans import plan_of

# What a plan's JSON had in the first release.
FIRST_KEYS = set(
    "model device kv memory attention maxContextTokens maxConcurrency batchLimit reasons alternatives warnings "
    "precision blockSizeTokens bytesPerToken bytesPerBlock numBlocks capacityTokens poolBytes".split()
)


def test_a_plan_survives_json() -> None:
    result = plan_of(workload=Workload(max_context_tokens=2048, target_concurrency=32))
    assert Plan.from_json(result.to_json()) == result


def test_a_plan_of_an_earlier_release_is_still_read() -> None:
    now = plan_of(workload=Workload(max_context_tokens=2048)).to_json()
    earlier = {key: value for key, value in now.items() if key in FIRST_KEYS}
    earlier["kv"] = {key: value for key, value in now["kv"].items() if key in FIRST_KEYS}
    earlier["attention"] = {"queryHeads": 9, "kvHeads": 3}
    first = ("choice", "capacityTokens", "maxConcurrency", "batchLimit")
    earlier["alternatives"] = [{key: other[key] for key in first} for other in now["alternatives"]]
    read = Plan.from_json(earlier)
    assert (read.device_count, read.kv.block_tables, read.attention.native_kv_heads) == (1, 1, 3)
    assert read.kv.pool_bytes == now["kv"]["poolBytes"]
    assert read.weight_precision == "BF16"  # the only one that there was
    assert Plan.from_json({**earlier, "weightsFormat": "INT8"}).weight_precision == "INT8"


def test_json_that_is_no_plan_is_refused() -> None:
    broken = plan_of().to_json()
    del broken["kv"]["numBlocks"]
    with pytest.raises(InvalidPlan, match="numBlocks"):
        Plan.from_json(broken)


def test_json_has_the_contracts_keys() -> None:
    data = plan_of().to_json()
    contract = (
        "model device kv memory attention maxContextTokens maxConcurrency batchLimit reasons alternatives warnings"
    )
    assert set(contract.split()) <= set(data)
    pool = "precision blockSizeTokens bytesPerToken bytesPerBlock numBlocks capacityTokens poolBytes"
    assert set(pool.split()) <= set(data["kv"])
    assert set(data["memory"]) == {
        "deviceBytes",
        "weightsBytes",
        "activationsBytes",
        "overheadBytes",
        "reserveBytes",
        "kvPoolBytes",
    }
    assert {"queryHeads", "kvHeads"} <= set(data["attention"])
