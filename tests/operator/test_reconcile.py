"""Whole passes: from what is seen to what is done, over what the pass before had done."""

from collections.abc import Callable
from typing import Any

import pytest

from kvtide_operator.api.conditions import ConditionType
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.status import Status
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.children.inventory import child_names
from kvtide_operator.plan.intent import intent_hash
from kvtide_operator.reconcile.actions import Actions
from kvtide_operator.reconcile.observed import Observed, Surroundings
from kvtide_operator.reconcile.reconcile import reconcile

Json = dict[str, Any]
See = Callable[..., Observed]
Make = Callable[..., LLMDeployment]
MakeState = Callable[..., WorkerState]
MakePod = Callable[..., Json]


def children(actions: Actions) -> dict[str, Json]:
    return {child["kind"]: child for child in actions.apply}


def condition(status: Status, kind: ConditionType) -> tuple[str, str]:
    found = next(c for c in status.conditions or [] if c.type is kind)
    return found.status, found.reason


def test_the_first_pass_makes_all_children_in_order(first: list[Json]) -> None:
    kinds = [child["kind"] for child in first]
    assert kinds == ["ConfigMap", "Secret", "Service", "NetworkPolicy", "PodDisruptionBudget", "Deployment"]


def test_what_is_looked_for_is_what_is_made(make_resource: Make, first: list[Json]) -> None:
    made = {(child["kind"], child["metadata"]["name"]) for child in first}
    assert set(child_names(make_resource())) == made


def test_the_second_pass_writes_nothing(
    make_resource: Make, observe: See, surroundings: Surroundings, now: float, first: list[Json]
) -> None:
    other_token = Surroundings("registry/worker:1", "kvtide-system", "another-token")
    actions = reconcile(observe(make_resource(), children=first), other_token, now + 60)
    assert (actions.apply, actions.create, actions.delete_pods, actions.limits) == ((), (), (), ())


def test_a_child_that_somebody_changed_is_put_right(
    make_resource: Make, observe: See, surroundings: Surroundings, now: float, first: list[Json]
) -> None:
    for child in first:
        if child["kind"] == "Service":
            child["spec"] = {"ports": [{"port": 81}]}
    actions = reconcile(observe(make_resource(), children=first), surroundings, now)
    assert list(children(actions)) == ["Service"]


def test_a_new_operator_restarts_no_worker(make_resource: Make, observe: See, now: float, first: list[Json]) -> None:
    upgraded = Surroundings("registry/worker:2", "kvtide-system", "token")
    assert reconcile(observe(make_resource(), children=first), upgraded, now).apply == ()
    fresh = children(reconcile(observe(make_resource()), upgraded, now))["Deployment"]
    assert fresh["spec"]["template"]["spec"]["containers"][0]["image"] == "registry/worker:2"


def test_a_changed_intent_makes_a_new_template_and_keeps_the_plan_that_pods_run(
    make_resource: Make, make_pod: MakePod, observe: See, surroundings: Surroundings, now: float, first: list[Json]
) -> None:
    old, changed = intent_hash(make_resource()), make_resource(workload={"maxContextTokens": 1024})
    new = intent_hash(changed)
    seen = observe(changed, children=first, pods=[make_pod(intent=old)])
    made = children(reconcile(seen, surroundings, now))
    assert set(made["ConfigMap"]["data"]) == {f"{kind}-{i}.json" for kind in ("plan", "template") for i in (old, new)}
    assert made["Deployment"]["spec"]["template"]["metadata"]["labels"]["serving.kvtide.dev/intent"] == new


@pytest.mark.parametrize(
    ("precision", "demand"),
    # 32 tokens of 2 · 64 bytes of each side's head, where a block of 64 has 64 · 36: 2 blocks for each of 3 sequences
    [("INT8", 700), ("INT4", 700 + 3 * 2 * 64)],
)
def test_what_recent_tokens_take_is_demand(
    make_resource: Make, make_pod: MakePod, make_state: MakeState, observe: See,
    surroundings: Surroundings, now: float, precision: str, demand: int,
) -> None:  # fmt: skip
    resource = make_resource(kvCache={"precision": precision})
    children = list(reconcile(observe(resource), surroundings, now).apply)
    pods, states = [make_pod(intent=intent_hash(resource))], {"chat-a": make_state(live=700, running=3)}
    status = reconcile(observe(resource, children=children, pods=pods, states=states), surroundings, now).status
    assert status.autoscaling is not None
    assert status.autoscaling.demand_tokens == demand


def test_an_edit_that_cannot_be_planned_stops_nothing(
    make_resource: Make, make_pod: MakePod, make_state: MakeState, observe: See,
    surroundings: Surroundings, now: float, first: list[Json],
) -> None:  # fmt: skip
    old = intent_hash(make_resource())
    broken = make_resource(attention={"kvHeads": 2}, autoscaling={"minReplicas": 2})
    seen = observe(broken, children=first, pods=[make_pod(intent=old)], states={"chat-a": make_state()})
    actions = reconcile(seen, surroundings, now)
    assert condition(actions.status, ConditionType.PLANNED) == ("False", "NotSupported")
    assert condition(actions.status, ConditionType.AVAILABLE) == ("True", "WorkersReady")
    deployment = children(actions)["Deployment"]  # live fields go on
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["template"]["metadata"]["labels"]["serving.kvtide.dev/intent"] == old


def test_what_belongs_to_somebody_else_is_left_alone(
    make_resource: Make, observe: See, surroundings: Surroundings, now: float
) -> None:
    foreign = {"kind": "Service", "metadata": {"name": "chat", "namespace": "team"}, "spec": {}}
    actions = reconcile(observe(make_resource(), children=[foreign]), surroundings, now)
    assert "Service" not in children(actions)
    assert condition(actions.status, ConditionType.DEGRADED) == ("True", "NameTaken")


@pytest.mark.parametrize(
    ("autoscaling", "spec_replicas", "live", "written"),
    [
        # Active: spec.replicas is the first value, within the bounds; then the Deployment's own
        ({"mode": "Active", "maxReplicas": 4}, 3, None, 3),
        ({"mode": "Active", "minReplicas": 2}, 1, None, 2),
        ({"mode": "Active", "maxReplicas": 4}, 1, 3, 3),
        # Off and Observe: the Deployment follows spec.replicas, whatever it has
        ({"mode": "Off"}, 3, 1, 3),
        ({"mode": "Off"}, 0, 1, 0),
        ({"mode": "Observe"}, 2, 4, 2),
    ],
)
def test_who_writes_replicas(
    make_resource: Make, observe: See, surroundings: Surroundings, now: float, first: list[Json],
    autoscaling: Json, spec_replicas: int, live: int | None, written: int,
) -> None:  # fmt: skip
    for child in first:
        if child["kind"] == "Deployment":
            child["spec"]["replicas"] = live
    resource = make_resource(replicas=spec_replicas, autoscaling=autoscaling)
    seen = observe(resource, children=[] if live is None else first)
    made = children(reconcile(seen, surroundings, now))
    if written == live:
        assert "Deployment" not in made or made["Deployment"]["spec"]["replicas"] == written
    else:
        assert made["Deployment"]["spec"]["replicas"] == written


@pytest.mark.parametrize(
    ("mode", "replicas", "wanted"),
    [("Off", 1, 1), ("Off", 9, 9), ("Observe", 1, 2), ("Observe", 9, 4)],
)
def test_the_demand_is_told_outside_the_bounds_too(
    make_resource: Make, make_pod: MakePod, make_state: MakeState, observe: See, surroundings: Surroundings,
    now: float, first: list[Json], mode: str, replicas: int, wanted: int,
) -> None:  # fmt: skip
    resource = make_resource(replicas=replicas, autoscaling={"mode": mode, "minReplicas": 2, "maxReplicas": 4})
    state = {"chat-a": make_state(live=7_000, queued=500)}
    told = reconcile(observe(resource, first, [make_pod()], state), surroundings, now).status.autoscaling
    assert told is not None
    assert (told.desired_replicas, told.demand_tokens, told.capacity_tokens_per_replica) == (wanted, 7_500, 10_000)


def test_scaling_up_and_down_with_everything_that_is_remembered_in_the_status(
    make_resource: Make, make_pod: MakePod, make_state: MakeState, observe: See,
    surroundings: Surroundings, now: float, first: list[Json],
) -> None:  # fmt: skip
    spec = {"autoscaling": {"scaleDownStabilizationSeconds": 30}}
    intent = intent_hash(make_resource())
    full = observe(
        make_resource(**spec), first, [make_pod(intent=intent)], {"chat-a": make_state(live=9_000, queued=4_000)}
    )
    up = reconcile(full, surroundings, now)
    assert children(up)["Deployment"]["spec"]["replicas"] == 2
    assert up.decision is not None
    assert (up.decision.from_replicas, up.decision.to_replicas, up.decision.demand_tokens) == (1, 2, 13_000)
    assert up.status.autoscaling is not None
    assert up.status.autoscaling.last_scale_time == "2026-01-01T00:01:00Z"
    assert [event.reason for event in up.events if event.reason == "DemandAboveTarget"] == ["DemandAboveTarget"]

    deployment = children(up)["Deployment"]
    others = [child for child in first if child["kind"] != "Deployment"]
    pods = [make_pod("chat-a", intent=intent), make_pod("chat-b", intent=intent)]
    quiet = {"chat-a": make_state(live=900), "chat-b": make_state(live=20)}

    def at(moment: float, status: Status) -> Actions:
        # Every pass starts from the status alone, as a restarted operator does.
        resource = make_resource(status=status.to_json(), **spec)
        return reconcile(observe(resource, [*others, deployment], pods, quiet), surroundings, moment)

    waiting = at(now + 10, up.status)
    assert (waiting.apply, waiting.status.autoscaling and waiting.status.autoscaling.reason) == ((), "Stabilizing")
    assert waiting.deletion_costs == {}
    still = at(now + 39, waiting.status)
    assert still.apply == ()
    assert still.deletion_costs == {"chat-a": 900, "chat-b": 20}  # known to who deletes before fewer are asked for
    down = at(now + 40, still.status)
    assert children(down)["Deployment"]["spec"]["replicas"] == 1
    assert down.deletion_costs == {"chat-a": 900, "chat-b": 20}  # the emptiest goes first
    assert down.status.autoscaling is not None
    assert [d.reason for d in down.status.autoscaling.decisions or []] == ["DemandBelowTarget", "DemandAboveTarget"]


def test_observe_decides_and_writes_nothing(
    make_resource: Make, make_pod: MakePod, make_state: MakeState, observe: See,
    surroundings: Surroundings, now: float, first: list[Json],
) -> None:  # fmt: skip
    resource = make_resource(autoscaling={"mode": "Observe"})
    seen = observe(resource, first, [make_pod(intent=intent_hash(resource))], {"chat-a": make_state(live=9_900)})
    actions = reconcile(seen, surroundings, now)
    assert actions.apply == ()
    assert actions.status.autoscaling is not None
    assert actions.status.autoscaling.desired_replicas == 2
    assert actions.decision is not None
    assert actions.decision.applied is False
    again = make_resource(autoscaling={"mode": "Observe"}, status=actions.status.to_json())
    seen = observe(again, first, [make_pod(intent=intent_hash(resource))], {"chat-a": make_state(live=9_900)})
    assert reconcile(seen, surroundings, now + 2).decision is None  # said once, not on every pass


def test_a_batch_limit_is_pushed_and_its_past_is_remembered(
    make_resource: Make, make_pod: MakePod, make_state: MakeState, observe: See,
    surroundings: Surroundings, now: float, first: list[Json],
) -> None:  # fmt: skip
    pod, status, pushed, told = make_pod(intent=intent_hash(make_resource())), None, [], []
    for after_s, running, preemptions, limit in (
        (0, 16, 0, 16), (2, 12, 4, 16),  # two looks: 4 · 9,700 / 14 lost for 200 tokens generated, the mean is 14
        (4, 14, 6, 14), (6, 14, 8, 14),  # those that were put back are computed again
        (7, 14, 8, 14), (9, 14, 9, 14),  # 693 lost for 200 generated, and the limit binds
    ):  # fmt: skip
        state = make_state(
            live=9_700, running=running, waiting=3, preemptions=preemptions, limit=limit, tokens=(900, 100 * after_s)
        )
        seen = observe(make_resource(status=status), first, [pod], {"chat-a": state})
        actions = reconcile(seen, surroundings, now + after_s)
        status = actions.status.to_json()
        pushed.append([(push.pod, push.ip, push.batch_limit) for push in actions.limits])
        told += [event.reason for event in actions.events]
    assert pushed == [[], [("chat-a", "10.0.0.1", 14)], [], [], [], [("chat-a", "10.0.0.1", 13)]]
    assert actions.status.batch_limit == 13
    assert told.count("BatchLimitLower") == 2
    (worker,) = actions.status.workers or []
    assert (worker.preemptions, worker.crowded_utilization) == (9, 0.97)


@pytest.mark.parametrize(("gone_s", "replicas"), [(40, 1), (61, 2)])
def test_a_window_survives_a_short_absence_of_the_operator_only(
    make_resource: Make,
    make_pod: MakePod,
    make_state: MakeState,
    observe: See,
    surroundings: Surroundings,
    now: float,
    first: list[Json],
    gone_s: float,
    replicas: int,
) -> None:
    for child in first:
        if child["kind"] == "Deployment":
            child["spec"]["replicas"] = 2
    spec = {"autoscaling": {"scaleDownStabilizationSeconds": 30}}
    intent = intent_hash(make_resource())
    pods = [make_pod("chat-a", intent=intent), make_pod("chat-b", intent=intent)]
    quiet = {"chat-a": make_state(live=900), "chat-b": make_state(live=20)}
    before = reconcile(observe(make_resource(**spec), first, pods, quiet), surroundings, now).status
    back = make_resource(status=before.to_json(), **spec)
    after = reconcile(observe(back, first, pods, quiet), surroundings, now + gone_s).status
    assert after.autoscaling is not None
    assert after.autoscaling.desired_replicas == replicas


def test_somebody_elses_pod_with_the_inspectors_name_is_left_alone_and_named(
    make_resource: Make, observe: See, surroundings: Surroundings, now: float
) -> None:
    theirs = {"kind": "Pod", "metadata": {"name": "chat-inspect", "namespace": "team"}}
    resource = make_resource(model={"uri": "pvc://models/smol.gguf"})
    actions = reconcile(observe(resource, children=[theirs]), surroundings, now)
    assert actions.delete_pods == ()
    assert condition(actions.status, ConditionType.DEGRADED) == ("True", "NameTaken")


def test_a_step_that_is_refused_is_recorded_once(
    make_resource: Make,
    make_pod: MakePod,
    make_state: MakeState,
    observe: See,
    surroundings: Surroundings,
    now: float,
    first: list[Json],
) -> None:
    crowded = {"pods": [make_pod()], "states": {"chat-a": make_state(live=9_500, queued=5_000)}}
    scaling = {"maxReplicas": 2}
    once = reconcile(observe(make_resource(autoscaling=scaling), children=first, **crowded), surroundings, now)
    again = make_resource(status=once.status.to_json(), autoscaling=scaling)
    twice = reconcile(observe(again, children=first, **crowded), surroundings, now + 2)
    assert once.decision is not None
    assert twice.decision is None
    assert twice.status.autoscaling == once.status.autoscaling


def test_a_missing_model_stays_missing_while_it_is_looked_at_again(
    make_resource: Make, observe: See, surroundings: Surroundings, now: float
) -> None:
    missing = {
        "type": "Planned",
        "status": "False",
        "reason": "ModelNotFound",
        "message": "there is nothing at smol.gguf",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 3,
    }
    resource = make_resource(status={"conditions": [missing]}, model={"uri": "pvc://models/smol.gguf"})
    actions = reconcile(observe(resource), surroundings, now)
    assert [pod["metadata"]["name"] for pod in actions.create] == ["chat-inspect"]
    assert condition(actions.status, ConditionType.PLANNED) == ("False", "ModelNotFound")
    assert actions.events == ()


@pytest.mark.parametrize(
    ("failure", "stuck", "reason"),
    [
        # It was deleted a moment ago, and its successor is not made yet, however long ago replicas were last changed.
        (None, 0, "WithinBounds"),
        ({"status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}, 0, "WithinBounds"),
        # A quota has forbidden it for longer than 120 s.
        ({"status": "True", "lastTransitionTime": "2025-12-31T23:58:59Z"}, 1, "ReplicasStuck"),
        ({"status": "False", "lastTransitionTime": "2025-12-31T23:58:59Z"}, 0, "WithinBounds"),
    ],
)
def test_a_pod_that_is_not_there_is_stuck_only_where_it_is_refused(
    make_resource: Make, make_pod: MakePod, make_state: MakeState, observe: See,
    surroundings: Surroundings, now: float, first: list[Json], failure: Json | None, stuck: int, reason: str,
) -> None:  # fmt: skip
    for child in first:
        if child["kind"] == "Deployment":
            child["spec"]["replicas"] = 2
            child["status"] = {"conditions": [{"type": "ReplicaFailure", **failure}] if failure else []}
    status = {"autoscaling": {"lastScaleTime": "2025-12-31T12:00:00Z"}}
    resource = make_resource(status=status, autoscaling={"maxReplicas": 2})
    pods = [make_pod(intent=intent_hash(resource))]
    actions = reconcile(observe(resource, first, pods, {"chat-a": make_state(live=9_000)}), surroundings, now)
    assert actions.status.autoscaling is not None
    assert actions.status.autoscaling.reason == reason
    held = actions.status.autoscaling.decisions or []
    assert [one.stuck_replicas for one in held] == ([stuck] if stuck else [])
