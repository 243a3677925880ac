"""What workers were measured to take: what is learned from them, and what the next plan makes of it."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.plan.intent import intent_hash
from kvtide_operator.plan.overheads import (
    Overhead,
    Sighting,
    learn,
    overhead_key,
    planned_overhead,
    read_overheads,
)
from kvtide_operator.reconcile.observed import Observed, Surroundings
from kvtide_operator.reconcile.pods import timestamp
from kvtide_operator.reconcile.reconcile import reconcile

Json = dict[str, Any]
MIB = 2**20
AT = "2026-01-01T00:01:00Z"
KEY = "smollm2-135m.cpu"
KNOWN = {KEY: Overhead("smollm2-135m", "cpu", 400 * MIB, 2, "0.1.0", 100.0, "2025-12-31T00:00:00Z")}


def sight(mib: int, version: str = "0.1.0", started_at: float = 100.0) -> Sighting:
    return Sighting("smollm2-135m", "cpu", mib * MIB, version, started_at)


@pytest.mark.parametrize(
    ("model", "device", "key"),
    [
        ("smollm2-135m", "cpu", KEY),
        ("Org/Name", "a100-40gb/1g.5gb", "Org-Name.a100-40gb-1g.5gb"),
        ("m" * 300, "cpu", "m" * 249 + ".cpu"),  # a ConfigMap's key has at most 253 characters
    ],
)
def test_keys_can_be_read_and_written(model: str, device: str, key: str) -> None:
    assert overhead_key(model, device) == key


@pytest.mark.parametrize(
    ("known", "seen", "mib", "samples", "version"),
    [
        ({}, [sight(300)], 300, 1, "0.1.0"),
        # the maximum of one version; 1 % above it is still the same
        (KNOWN, [sight(500)], 500, 2, "0.1.0"),
        (KNOWN, [sight(450), sight(500, started_at=50.0)], 500, 2, "0.1.0"),
        # another worker is another sample, whatever it takes
        (KNOWN, [sight(300, started_at=101.0)], 400, 3, "0.1.0"),
        ({}, [sight(300, started_at=1.0), sight(200, started_at=2.0)], 300, 2, "0.1.0"),
        # a version that started later takes the place, smaller or larger
        (KNOWN, [sight(250, "0.2.0", 101.0)], 250, 1, "0.2.0"),
        (KNOWN, [sight(900, "0.2.0", 101.0), sight(950, "0.1.0", 90.0)], 900, 1, "0.2.0"),
    ],
)
def test_what_is_learned(
    known: dict[str, Overhead], seen: list[Sighting], mib: int, samples: int, version: str
) -> None:
    (entry,) = learn(known, seen, AT).values()
    assert (entry.overhead_bytes, entry.samples, entry.version) == (mib * MIB, samples, version)


@pytest.mark.parametrize(
    "seen",
    [[], [sight(300)], [sight(400)], [sight(404)], [sight(404, started_at=50.0)], [sight(900, "0.2.0", 100.0)]],
)
def test_what_is_no_news_is_no_write(seen: list[Sighting]) -> None:
    assert learn(KNOWN, seen, AT) == {}


@given(
    seen=st.lists(
        st.builds(sight, st.integers(1, 2000), st.sampled_from(["0.1.0", "0.2.0"]), st.sampled_from([1.0, 2.0, 3.0]))
    )
)
def test_the_same_workers_stop_teaching(seen: list[Sighting]) -> None:
    """Workers of two versions, side by side for ever, do not take turns: after two passes nothing is written."""
    workers = list({worker.started_at: worker for worker in seen}.values())
    known: dict[str, Overhead] = {}
    for _ in range(2):
        known |= learn(known, workers, AT)
    assert learn(known, workers, AT) == {}
    if workers:
        newest = max(workers, key=lambda worker: worker.started_at)
        largest = max(worker.overhead_bytes for worker in workers if worker.version == newest.version)
        assert known[KEY].version == newest.version
        assert largest / 1.01 <= known[KEY].overhead_bytes <= largest


def test_the_next_plan_counts_with_it_and_a_margin() -> None:
    assert planned_overhead(KNOWN, "smollm2-135m", "cpu") == 420 * MIB  # and 5 %, which is 20 MiB
    larger = {KEY: dataclasses.replace(KNOWN[KEY], overhead_bytes=1000 * MIB)}
    assert planned_overhead(larger, "smollm2-135m", "cpu") == 1050 * MIB
    smaller = {KEY: dataclasses.replace(KNOWN[KEY], overhead_bytes=100 * MIB)}
    assert planned_overhead(smaller, "smollm2-135m", "cpu") == 120 * MIB  # never less than 20 MiB
    assert planned_overhead(KNOWN, "smollm2-135m", "gpu") is None
    assert planned_overhead({KEY: dataclasses.replace(KNOWN[KEY], model="smollm2/135m")}, "smollm2-135m", "cpu") is None


def test_entries_survive_their_config_map_and_what_cannot_be_read_is_absent() -> None:
    data = {key: json.dumps(entry.to_json()) for key, entry in KNOWN.items()}
    assert read_overheads({"data": data | {"a": "{", "b": "[]", "c": "{}", "d": "null"}}) == KNOWN
    assert read_overheads(None) == read_overheads({}) == {}


See = Callable[..., Observed]
Make = Callable[..., LLMDeployment]


@pytest.mark.parametrize(
    ("ready_for_s", "other_mib", "image", "age_s", "overheads", "learned"),
    [
        (60.0, 300, "registry/worker:1", 0.5, {}, True),
        (59.0, 300, "registry/worker:1", 0.5, {}, False),  # it may still give back what loading took
        (None, 300, "registry/worker:1", 0.5, {}, False),
        (60.0, 0, "registry/worker:1", 0.5, {}, False),
        (60.0, None, "registry/worker:1", 0.5, {}, False),
        (60.0, 3000, "registry/worker:1", 0.5, {}, False),  # more than the device has
        (60.0, 300, "somebody/elses:1", 0.5, {}, False),
        (60.0, 300, "registry/worker:1", 600.0, {}, False),
        (60.0, 300, "registry/worker:1", 0.5, None, False),  # it could not be read, so nothing may be written over it
    ],
)
def test_who_teaches(
    make_resource: Make, make_pod: Callable[..., Json], make_state: Callable[..., WorkerState], observe: See,
    now: float, ready_for_s: float | None, other_mib: int | None, image: str, age_s: float,
    overheads: dict[str, Overhead] | None, learned: bool,
) -> None:  # fmt: skip
    around = Surroundings("registry/worker:1", "kvtide-system", "token", overheads=overheads)
    resource = make_resource(worker={"image": image})
    children = list(reconcile(observe(resource), around, now).apply)
    ready = {"type": "Ready", "status": "True"}
    if ready_for_s is not None:
        ready["lastTransitionTime"] = timestamp(now - ready_for_s)
    pod = make_pod(intent=intent_hash(resource), conditions=[ready])
    bytes_of = {"otherBytes": other_mib and other_mib * MIB, "deviceBytes": 2048 * MIB, "freeBytes": 500 * MIB}
    seen = observe(resource, children, [pod], {"chat-a": make_state(measured=bytes_of)}, age_s=age_s)
    actions = reconcile(seen, around, now)
    assert bool(actions.learned) is learned
    if learned:
        entry = actions.learned[KEY]
        assert (entry.overhead_bytes, entry.samples, entry.version, entry.at) == (300 * MIB, 1, "0.1.0", AT)


def test_a_new_plan_uses_it_and_a_recorded_one_stays(make_resource: Make, observe: See, now: float) -> None:
    before = Surroundings("registry/worker:1", "kvtide-system", "token", overheads={})
    after = dataclasses.replace(before, overheads=KNOWN)
    first = reconcile(observe(make_resource()), before, now)
    later = reconcile(observe(make_resource(), list(first.apply)), after, now)
    assert later.apply == ()
    anew = reconcile(observe(make_resource()), after, now)
    plans = [actions.status.plan for actions in (first, later, anew)]
    overheads = [plan.memory.overhead_bytes for plan in plans if plan is not None]
    assert overheads[0] == overheads[1] != 420 * MIB
    assert overheads[2] == 420 * MIB
    assert plans[2] is not None
    assert any("measured" in reason for reason in [*plans[2].reasons, *plans[2].warnings])


def test_a_plan_for_another_image_does_not_use_it(make_resource: Make, observe: See, now: float) -> None:
    around = Surroundings("registry/worker:1", "kvtide-system", "token", overheads=KNOWN)
    plan = reconcile(observe(make_resource(worker={"image": "somebody/elses:1"})), around, now).status.plan
    assert plan is not None
    assert plan.memory.overhead_bytes != 420 * MIB
