"""One pass: from what is seen to what is to be done."""

from dataclasses import dataclass, replace

from kvtide_operator.api import names
from kvtide_operator.api.conditions import Reason
from kvtide_operator.api.plan import Plan
from kvtide_operator.children.deployment import deployment
from kvtide_operator.children.disruption_budget import disruption_budget
from kvtide_operator.children.manifest import Manifest, owned_by
from kvtide_operator.children.network_policy import network_policy
from kvtide_operator.children.plan_config_map import plan_config_map
from kvtide_operator.children.secret import admin_secret, token_of
from kvtide_operator.children.service import service
from kvtide_operator.children.worker_template import admin_secret_name
from kvtide_operator.plan.record import Planned, Record
from kvtide_operator.plan.references import unreadable
from kvtide_operator.reconcile import conditions as judge
from kvtide_operator.reconcile.actions import Actions
from kvtide_operator.reconcile.diff import differs
from kvtide_operator.reconcile.learning import learn_overheads
from kvtide_operator.reconcile.limits import limit_batches
from kvtide_operator.reconcile.looks import next_look_s
from kvtide_operator.reconcile.meddling import meddling
from kvtide_operator.reconcile.memory import memory_within_plan
from kvtide_operator.reconcile.news import events
from kvtide_operator.reconcile.observed import Live, Observed, Surroundings
from kvtide_operator.reconcile.planning import Planning, plan_workers
from kvtide_operator.reconcile.pods import Trouble
from kvtide_operator.reconcile.precision import move_precision
from kvtide_operator.reconcile.rollout import explained, surges
from kvtide_operator.reconcile.running import described, run_otherwise
from kvtide_operator.reconcile.scaling import scale
from kvtide_operator.reconcile.status import build_status, measured_memory
from kvtide_operator.reconcile.workers import count, deployment_trouble


@dataclass(frozen=True)
class _InForce:
    """What the Deployment runs: the present plan, or while there is none the one that its workers have."""

    intent: str
    planned: Planned

    @property
    def plan(self) -> Plan:
        return Plan.model_validate(self.planned.plan)


def reconcile(observed: Observed, surroundings: Surroundings, now: float) -> Actions:
    """Decides everything for one resource. Pure: the same sight at the same time gives the same actions."""
    resource = observed.resource
    planning = plan_workers(observed, surroundings, now)
    live = observed.child("Deployment", resource.name)
    ours = live is not None and owned_by(live, resource)
    live_replicas = live["spec"].get("replicas", 1) if live is not None and ours else None
    in_force = _in_force(planning, live if ours else None)

    plan = in_force.plan if in_force else None
    scaling = scale(observed, plan, live_replicas, now, in_force.intent if in_force else "")
    limits = limit_batches(observed, now)
    precision = move_precision(observed, plan, in_force.intent if in_force else "", scaling.decision, now)
    surge = in_force is not None and surges(
        observed, surroundings, live if ours else None, in_force.intent, in_force.planned
    )
    wanted = _children(observed, surroundings, planning, in_force, scaling.replicas, surge)
    taken = _taken(observed, [*wanted, *planning.create])
    changed = [manifest for manifest in wanted if _write(observed, manifest)]

    desired = scaling.replicas if in_force else 0
    force = count(observed.workers, observed.answers, desired, in_force.intent if in_force else None)
    force = replace(force, troubles=explained(force.troubles, observed, surroundings))
    troubles = taken + _troubles(observed, live if ours else None) + force.troubles
    if in_force and plan:
        troubles += tuple(run_otherwise(observed, in_force.intent, plan, precision.asked))
    measured = measured_memory(observed, in_force.intent) if in_force else {}
    verdicts = [
        judge.planned(planning),
        judge.progressing(planning, force),
        judge.available(force),
        judge.ready(planning, force),
        judge.scaling_active(resource.spec.autoscaling.mode, scaling.decision),
        memory_within_plan(plan.memory if plan else None, measured),
        judge.degraded(troubles),
    ]
    before = list(resource.status.conditions or [])
    stamped = judge.stamp(verdicts, before, resource.generation, now)
    fewer = live_replicas is not None and scaling.replicas < live_replicas
    waiting = (Reason.INSPECTING_MODEL, Reason.REFERENCE_MISSING)
    inspecting = planning.reason in waiting or observed.inspector is not None
    resting = not (observed.workers or desired > 0 or inspecting)
    whole = force.complete and force.answering == force.ready
    waits = inspecting or troubles or scaling.status.window or precision.asked or not whole
    acts = changed or limits.pushes or precision.pushes or planning.create or planning.delete_pods
    return Actions(
        status=build_status(
            observed,
            plan,
            measured,
            force,
            scaling.status,
            described(limits.workers, observed),
            precision.status,
            stamped,
        ),
        requeue_s=next_look_s(observed, resting, not (waits or acts), surroundings.resync_s),
        deletion_costs=_deletion_costs(observed) if fewer or scaling.ends else {},
        apply=tuple(changed),
        create=planning.create,
        delete_pods=planning.delete_pods,
        limits=limits.pushes,
        precisions=precision.pushes,
        events=(
            *meddling(observed, changed),
            *events(before, stamped, scaling.news),
            *limits.events,
            *precision.events,
        ),
        decision=scaling.news,
        learned=learn_overheads(observed, planning.record, surroundings, now),
    )


def _in_force(planning: Planning, live: Live | None) -> _InForce | None:
    if planning.planned is not None:
        return _InForce(planning.intent, planning.planned)
    if live is None:
        return None
    running = live["spec"]["template"]["metadata"]["labels"].get(names.INTENT_LABEL, "")
    kept = planning.record.planned.get(running)
    return _InForce(running, kept) if kept else None


def _children(
    observed: Observed,
    surroundings: Surroundings,
    planning: Planning,
    in_force: _InForce | None,
    replicas: int,
    surge: bool,
) -> list[Manifest]:
    """The children in the order in which they are made: what a pod mounts comes before the pod."""
    resource = observed.resource
    if in_force is None:
        empty = planning.record == Record()
        return [] if empty else [plan_config_map(resource, planning.record)]
    in_use = {pod.intent for pod in observed.workers if pod.intent}
    record = planning.record.keep({in_force.intent, *in_use})
    token = token_of(observed.child("Secret", admin_secret_name(resource))) or surroundings.fresh_token
    weights = in_force.plan.memory.weights_bytes
    return [
        plan_config_map(resource, record),
        admin_secret(resource, token),
        service(resource),
        network_policy(resource, surroundings.operator_namespace),
        disruption_budget(resource),
        deployment(resource, in_force.planned.template, replicas, weights, surge),
    ]


def _write(observed: Observed, manifest: Manifest) -> bool:
    live = observed.child(manifest["kind"], manifest["metadata"]["name"])
    if live is None:
        return True
    return owned_by(live, observed.resource) and differs(manifest, live)


def _taken(observed: Observed, wanted: list[Manifest]) -> tuple[Trouble, ...]:
    """Objects that stand where children belong, and are not this resource's."""
    found = []
    for manifest in wanted:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        live = observed.child(kind, name)
        if live is not None and not owned_by(live, observed.resource):
            message = f"{kind} {name} exists and belongs to somebody else: remove it, or rename this resource"
            found.append(Trouble(Reason.NAME_TAKEN, message))
    return tuple(found)


def _troubles(observed: Observed, live: Live | None) -> tuple[Trouble, ...]:
    """What keeps pods from being made or from following a Secret, or the inspect pod from looking."""
    found = [
        Trouble(Reason.REFERENCE_UNREADABLE, message)
        for message in unreadable(observed.resource.spec, observed.references)
    ]
    refused = deployment_trouble(live)
    if refused is not None:
        found.append(Trouble(Reason.APPLY_REFUSED, refused))
    inspector = observed.inspector
    if inspector is not None and inspector.trouble is not None and not inspector.terminating:
        found.append(inspector.trouble)
    return tuple(found)


def _deletion_costs(observed: Observed) -> dict[str, int]:
    """The live tokens of every ready worker as its cost, so that the emptiest goes first."""
    costs = {}
    for pod in observed.ready:
        sample = observed.samples.get(pod.name)
        if sample is not None and sample.state.kv.live_tokens != pod.deletion_cost:
            costs[pod.name] = sample.state.kv.live_tokens
    return costs
