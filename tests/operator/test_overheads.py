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
    Kill,
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
from kvtide_sizing.devices.device import device_named

Json = dict[str, Any]
MIB = 2**20
IMAGE = "registry/worker:1"
AT = "2026-01-01T00:01:00Z"
KEY = "smollm2-135m.cpu"
KNOWN = {KEY: Overhead("smollm2-135m", "cpu", 400 * MIB, IMAGE, "0.1.0", 100.0, "2025-12-31T00:00:00Z")}


def sight(mib: int, version: str = "0.1.0", created_at: float = 100.0, image: str = IMAGE) -> Sighting:
    return Sighting("smollm2-135m", "cpu", mib * MIB, image, version, created_at)


def kill(at: float) -> Kill:
    return Kill("smollm2-135m", "cpu", IMAGE, at)


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
    ("known", "seen", "mib", "version"),
    [
        ({}, [sight(300)], 300, "0.1.0"),
        # the maximum of one version; 1 % above it is still the same
        (KNOWN, [sight(500)], 500, "0.1.0"),
        (KNOWN, [sight(450), sight(500, created_at=50.0)], 500, "0.1.0"),
        # the latest worker is remembered, whatever it takes
        (KNOWN, [sight(300, created_at=101.0)], 400, "0.1.0"),
        ({}, [sight(300, created_at=1.0), sight(200, created_at=2.0)], 300, "0.1.0"),
        # a version that was created later takes the place, smaller or larger
        (KNOWN, [sight(250, "0.2.0", 101.0)], 250, "0.2.0"),
        (KNOWN, [sight(900, "0.2.0", 101.0), sight(950, "0.1.0", 90.0)], 900, "0.2.0"),
        # and so does another image of the same version
        (KNOWN, [sight(250, "0.1.0", 101.0, "registry/worker:2")], 250, "0.1.0"),
    ],
)
def test_what_is_learned(known: dict[str, Overhead], seen: list[Sighting], mib: int, version: str) -> None:
    (entry,) = learn(known, seen, [], AT).values()
    assert (entry.overhead_bytes, entry.version) == (mib * MIB, version)
    assert entry.newest_created == max(
        [sight.created_at for sight in seen] + [e.newest_created for e in known.values()]
    )


@pytest.mark.parametrize(
    "seen",
    [
        [],
        [sight(300)],
        [sight(400)],
        [sight(404)],
        [sight(404, created_at=50.0)],
        [sight(900, "0.2.0", 100.0)],
        [sight(900, image="registry/worker:0", created_at=99.0)],
    ],
)
def test_what_is_no_news_is_no_write(seen: list[Sighting]) -> None:
    assert learn(KNOWN, seen, [], AT) == {}


def test_what_a_worker_died_of_is_forgotten_and_learned_again_from_younger_ones() -> None:
    cpu = device_named("cpu:2GiB")
    known = KNOWN | learn(KNOWN, [sight(300, created_at=150.0)], [kill(200.0), kill(190.0)], AT)
    assert planned_overhead(known, "smollm2-135m", cpu, IMAGE) is None
    # the pod goes on saying that it was killed, and older workers go on measuring
    assert learn(known, [sight(300, created_at=150.0), sight(300, created_at=200.0)], [kill(200.0)], AT) == {}
    known |= learn(known, [sight(450, created_at=201.0)], [kill(200.0)], AT)
    assert planned_overhead(known, "smollm2-135m", cpu, IMAGE) == 498 * MIB  # 450 and 48
    assert learn(known, [sight(900, created_at=150.0), sight(450, created_at=201.0)], [kill(200.0)], AT) == {}
    known |= learn(known, [], [kill(300.0)], AT)
    assert planned_overhead(known, "smollm2-135m", cpu, IMAGE) is None


def test_a_kill_holds_where_nothing_was_known_and_over_a_new_version() -> None:
    known = learn({}, [sight(300)], [kill(200.0)], AT)
    known |= learn(known, [sight(350, "0.2.0", 201.0)], [], AT)
    assert (known[KEY].overhead_bytes, known[KEY].killed_at) == (350 * MIB, 200.0)
    assert learn(known, [], [kill(200.0)], AT) == {}


@given(
    seen=st.lists(
        st.builds(sight, st.integers(1, 2000), st.sampled_from(["0.1.0", "0.2.0"]), st.sampled_from([1.0, 2.0, 3.0]))
    )
)
def test_the_same_workers_stop_teaching(seen: list[Sighting]) -> None:
    """Workers of two versions, side by side for ever, do not take turns: after two passes nothing is written."""
    workers = list({worker.created_at: worker for worker in seen}.values())
    known: dict[str, Overhead] = {}
    for _ in range(2):
        known |= learn(known, workers, [], AT)
    assert learn(known, workers, [], AT) == {}
    if workers:
        newest = max(workers, key=lambda worker: worker.created_at)
        largest = max(worker.overhead_bytes for worker in workers if worker.version == newest.version)
        assert known[KEY].version == newest.version
        assert largest / 1.01 <= (known[KEY].overhead_bytes or 0) <= largest


@pytest.mark.parametrize(
    ("device", "mib", "planned_mib"),
    [
        # on a CPU 10 %, never less than 48 MiB
        ("cpu:2GiB", 400, 448),
        ("cpu:2GiB", 480, 528),
        ("cpu:2GiB", 1000, 1100),
        # on a GPU 5 %, never less than 20 MiB
        ("l4", 100, 120),
        ("l4", 400, 420),
        ("l4", 1000, 1050),
    ],
)
def test_the_next_plan_counts_with_it_and_a_margin(device: str, mib: int, planned_mib: int) -> None:
    found = device_named(device)
    entry = dataclasses.replace(KNOWN[KEY], device=found.name, overhead_bytes=mib * MIB)
    known = {overhead_key("smollm2-135m", found.name): entry}
    assert planned_overhead(known, "smollm2-135m", found, IMAGE) == planned_mib * MIB


def test_what_was_measured_of_another_says_nothing() -> None:
    cpu = device_named("cpu:2GiB")
    assert planned_overhead(KNOWN, "smollm2-135m", device_named("l4"), IMAGE) is None
    assert planned_overhead(KNOWN, "smollm2-135m", cpu, "registry/worker:2") is None  # an upgrade
    other = {KEY: dataclasses.replace(KNOWN[KEY], model="smollm2/135m")}
    assert planned_overhead(other, "smollm2-135m", cpu, IMAGE) is None


def test_entries_survive_their_config_map_and_what_cannot_be_read_is_absent() -> None:
    known = KNOWN | {"killed": dataclasses.replace(KNOWN[KEY], overhead_bytes=None, killed_at=300.0)}
    data = {key: json.dumps(entry.to_json()) for key, entry in known.items()}
    assert read_overheads({"data": data | {"a": "{", "b": "[]", "c": "{}", "d": "null"}}) == known
    assert read_overheads(None) == read_overheads({}) == {}


See = Callable[..., Observed]
Make = Callable[..., LLMDeployment]


MEASURED = {"otherBytes": 300 * MIB, "deviceBytes": 2048 * MIB, "freeBytes": 500 * MIB}
PARTS = {"weightsBytes": 260 * MIB, "kvPoolBytes": 900 * MIB, "activationsBytes": 40 * MIB}
SEEN: Json = {"spec": {}, "ready_for_s": 60.0, "measured": MEASURED, "tokens": (63, 63), "age_s": 0.5, "overheads": {}}


@pytest.fixture
def taught(
    make_resource: Make,
    make_pod: Callable[..., Json],
    make_state: Callable[..., WorkerState],
    observe: See,
    now: float,
) -> Callable[..., dict[str, Overhead]]:
    """What one pass learns of one worker, that is as SEEN says but for these; `pod` are parts of its pod."""

    def teach(intent: str | None = None, pod: Json | None = None, **changes: Any) -> dict[str, Overhead]:
        seen = SEEN | changes
        around = Surroundings(IMAGE, "kvtide-system", "token", overheads=seen["overheads"])
        resource = make_resource(**seen["spec"])
        children = list(reconcile(observe(resource), around, now).apply)
        ready = {"type": "Ready", "status": "True"}
        if seen["ready_for_s"] is not None:
            ready["lastTransitionTime"] = timestamp(now - seen["ready_for_s"])
        live = make_pod(intent=intent or intent_hash(resource), **{"conditions": [ready], **(pod or {})})
        state = make_state(measured=seen["measured"], tokens=seen["tokens"])
        sight = observe(resource, children, [live], {"chat-a": state}, age_s=seen["age_s"])
        return dict(reconcile(sight, around, now).learned)

    return teach


def test_who_teaches(taught: Callable[..., dict[str, Overhead]]) -> None:
    created = 1_767_182_400.0  # date -u -d 2025-12-31T12:00:00Z +%s
    assert taught() == {KEY: Overhead("smollm2-135m", "cpu", 300 * MIB, IMAGE, "0.1.0", created, AT)}


@pytest.mark.parametrize(
    "changes",
    [
        {"ready_for_s": 59.0},  # it may still give back what loading took
        {"ready_for_s": None},
        {"tokens": (0, 0)},  # it has not taken yet what requests make it take
        {"tokens": (900, 0)},
        {"tokens": (0, 900)},
        # what the operator itself asks for in ten minutes: 32, and one each 20 s
        {"tokens": (62, 900)},
        {"tokens": (900, 62)},
        {"age_s": 600.0},
        {"overheads": None},  # it could not be read, so nothing may be written over it
        {"intent": "0123456789abcdef"},
        {"measured": MEASURED | {"otherBytes": 0}},
        {"measured": MEASURED | {"otherBytes": None}},
        {"measured": MEASURED | {"otherBytes": 3000 * MIB}},  # more than the device has
        # 5 % of 2,048 is 102.4
        {"measured": MEASURED | {"deviceBytes": 2151 * MIB}},
        {"measured": MEASURED | {"deviceBytes": 1945 * MIB}},
        {"measured": MEASURED | {"deviceBytes": None}},
        {"spec": {"worker": {"image": "somebody/elses:1"}}},
        {"spec": {"worker": {"env": [{"name": "A", "value": "b"}]}}},
        {"spec": {"worker": {"volumes": [{"name": "v", "emptyDir": {}}]}}},
        {"spec": {"worker": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}}},
        # cards of any kind share the name "gpu"
        {"spec": {"device": {"kind": "GPU", "memory": "4Gi"}}, "measured": MEASURED | {"deviceBytes": 4096 * MIB}},
    ],
)
def test_who_does_not(taught: Callable[..., dict[str, Overhead]], changes: Json) -> None:
    assert taught(**changes) == {}


@pytest.mark.parametrize("device_mib", [1946, 2150])
def test_a_device_of_nearly_the_planned_memory_is_the_same(
    taught: Callable[..., dict[str, Overhead]], device_mib: int
) -> None:
    assert KEY in taught(measured=MEASURED | {"deviceBytes": device_mib * MIB})


@pytest.mark.parametrize(
    ("measured", "mib"),
    [
        # 1,560 - 260 - 900 - 40
        (PARTS | {"peakBytes": 1560 * MIB}, 360),
        (PARTS | {"peakBytes": 1450 * MIB}, 300),
        (PARTS, 300),
        # a part that is not known would be taken for overhead
        (PARTS | {"peakBytes": 1560 * MIB, "kvPoolBytes": None}, 300),
    ],
)
def test_the_highest_reading_counts(taught: Callable[..., dict[str, Overhead]], measured: Json, mib: int) -> None:
    assert taught(measured=MEASURED | measured)[KEY].overhead_bytes == mib * MIB


@pytest.mark.parametrize("place", ["state", "lastState"])
def test_a_pod_that_was_killed_for_its_memory_is_forgotten_and_teaches_nothing(
    taught: Callable[..., dict[str, Overhead]], place: str
) -> None:
    ended = {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-01-01T00:00:00Z"}
    pod = {"containerStatuses": [{"restartCount": 1, "ready": place == "lastState", place: {"terminated": ended}}]}
    entry = taught(overheads=KNOWN, pod=pod)[KEY]
    assert (entry.overhead_bytes, entry.killed_at) == (None, 1_767_225_600.0)  # date -u -d 2026-01-01 +%s
    assert taught(overheads={KEY: entry}, pod=pod) == {}
    crashed = {"containerStatuses": [{"restartCount": 1, place: {"terminated": ended | {"reason": "Error"}}}]}
    assert taught(overheads=KNOWN, pod=crashed)[KEY].overhead_bytes == 400 * MIB


def test_a_new_plan_uses_it_and_a_recorded_one_stays(make_resource: Make, observe: See, now: float) -> None:
    before = Surroundings(IMAGE, "kvtide-system", "token", overheads={})
    after = dataclasses.replace(before, overheads=KNOWN)
    first = reconcile(observe(make_resource()), before, now)
    later = reconcile(observe(make_resource(), list(first.apply)), after, now)
    assert later.apply == ()
    anew = reconcile(observe(make_resource()), after, now)
    plans = [actions.status.plan for actions in (first, later, anew)]
    overheads = [plan.memory.overhead_bytes for plan in plans if plan is not None]
    assert overheads[0] == overheads[1] != 448 * MIB
    assert overheads[2] == 448 * MIB
    assert plans[2] is not None
    assert any("measured" in reason for reason in [*plans[2].reasons, *plans[2].warnings])


def test_a_plan_for_another_image_does_not_use_it(make_resource: Make, observe: See, now: float) -> None:
    around = Surroundings(IMAGE, "kvtide-system", "token", overheads=KNOWN)
    plan = reconcile(observe(make_resource(worker={"image": "somebody/elses:1"})), around, now).status.plan
    assert plan is not None
    assert plan.memory.overhead_bytes != 448 * MIB
