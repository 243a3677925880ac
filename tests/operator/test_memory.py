"""MemoryWithinPlan: every part that a worker measures, against what was planned for it."""

from typing import Any

import pytest

from kvtide_operator.api.plan import PlanMemory
from kvtide_operator.api.status import MeasuredMemory
from kvtide_operator.reconcile.memory import memory_within_plan

Json = dict[str, Any]
MIB = 2**20
# 2,000 = 300 + 200 + 400 + 100 + 1,000: without the reserve, 1,900
PLAN = PlanMemory(
    device_bytes=2000 * MIB,
    weights_bytes=300 * MIB,
    activations_bytes=200 * MIB,
    overhead_bytes=400 * MIB,
    reserve_bytes=100 * MIB,
    kv_pool_bytes=1000 * MIB,
)
AS_PLANNED = {"weights": 300, "kvPool": 1000, "activations": 150, "other": 350, "free": 200, "device": 2000}


def measured(**mib: int | None) -> MeasuredMemory:
    return MeasuredMemory.model_validate(
        {f"{name}Bytes": value if value is None else value * MIB for name, value in mib.items()}
    )


@pytest.mark.parametrize(
    ("mib", "status", "reason", "words"),
    [
        (AS_PLANNED, "True", "WithinPlan", "total 1.76 GiB of 1.86 GiB, weights 300 MiB of 300 MiB"),
        # exactly all but the reserve, and one MiB of it: 1,901 of 1,900
        (AS_PLANNED | {"free": 100}, "True", "WithinPlan", "total 1.86 GiB of 1.86 GiB"),
        (AS_PLANNED | {"free": 99}, "False", "AbovePlan", "total 1.86 GiB is 1 MiB (0.1%) above the planned 1.86 GiB"),
        # one percent of 300 is 3, of 1,000 is 10
        (AS_PLANNED | {"weights": 303}, "True", "WithinPlan", "weights 303 MiB of 300 MiB"),
        (AS_PLANNED | {"weights": 306}, "False", "AbovePlan", "weights 306 MiB is 6 MiB (2.0%) above the planned 300"),
        (AS_PLANNED | {"weights": 297}, "True", "WithinPlan", "weights"),
        (
            AS_PLANNED | {"weights": 270},
            "False",
            "BelowPlan",
            "weights 270 MiB is 30 MiB (10.0%) below the planned 300",
        ),
        (AS_PLANNED | {"kvPool": 1010}, "True", "WithinPlan", "KV pool"),
        (AS_PLANNED | {"kvPool": 1011}, "False", "AbovePlan", "KV pool 1011 MiB is 11 MiB (1.1%) above"),
        (AS_PLANNED | {"kvPool": 900}, "False", "BelowPlan", "KV pool 900 MiB is 100 MiB (10.0%) below"),
        # of activations less is right, and 64 MiB more still are: 10 % of 200 is 20, which is less
        (AS_PLANNED | {"activations": 264}, "True", "WithinPlan", "activations 264 MiB of 200 MiB"),
        (AS_PLANNED | {"activations": 265}, "False", "AbovePlan", "activations 265 MiB is 65 MiB (32.5%) above"),
        # what is not known is not judged
        ({"device": 2000, "free": 300}, "True", "WithinPlan", "total"),
        ({"weights": 300}, "True", "WithinPlan", "weights"),
        ({"weights": 400, "device": None, "free": None}, "False", "AbovePlan", "weights"),
        ({"device": 2000}, "Unknown", "NotMeasured", "no worker"),
        ({"weights": 0, "kvPool": 0, "device": 0, "free": 0}, "Unknown", "NotMeasured", "no worker"),
        ({"weights": None}, "Unknown", "NotMeasured", "no worker"),
        ({}, "Unknown", "NotMeasured", "no worker"),
    ],
)
def test_one_worker(mib: Json, status: str, reason: str, words: str) -> None:
    verdict = memory_within_plan(PLAN, {"chat-a": measured(**mib)})
    assert (verdict.status, verdict.reason) == (status, reason)
    assert words in verdict.message


@pytest.mark.parametrize(
    ("planned_mib", "measured_mib", "within"),
    [
        # bounds on what may come out of the reserve: the larger of 10 % and 64 MiB
        (8.8, 20.1, True),
        (8.8, 72.7, True),
        (8.8, 72.9, False),
        (60, 200, False),
        (1000, 1100, True),
        (1000, 1101, False),
    ],
)
def test_activations_may_take_a_little_of_the_reserve(planned_mib: float, measured_mib: float, within: bool) -> None:
    plan = PLAN.model_copy(update={"activations_bytes": round(planned_mib * MIB)})
    taken = MeasuredMemory(activations_bytes=round(measured_mib * MIB))
    assert (memory_within_plan(plan, {"chat-a": taken}).status == "True") is within


def test_every_worker_is_judged_and_named() -> None:
    heavy = measured(**AS_PLANNED | {"activations": 270})
    light = measured(**AS_PLANNED | {"kvPool": 900, "free": 300})
    verdict = memory_within_plan(PLAN, {"chat-b": heavy, "chat-a": light, "chat-c": measured(**AS_PLANNED)})
    assert (verdict.status, verdict.reason) == ("False", "AbovePlan")
    light_words, heavy_words = verdict.message.split("; ")
    assert light_words.startswith("chat-a: KV pool")
    assert heavy_words.startswith("chat-b: activations")


def test_the_fullest_worker_is_shown_where_all_are_well() -> None:
    workers = {"chat-a": measured(**AS_PLANNED | {"free": 600}), "chat-b": measured(**AS_PLANNED)}
    assert memory_within_plan(PLAN, workers).message.startswith("chat-b: ")


def test_nothing_is_known_without_a_plan_or_a_worker() -> None:
    assert memory_within_plan(None, {"chat-a": measured(**AS_PLANNED)}).status == "Unknown"
    assert memory_within_plan(PLAN, {}).status == "Unknown"
