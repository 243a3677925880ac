"""This pass's replicas: carries what is seen into the deciding function, and what it remembers into the status."""

from dataclasses import dataclass

from kvtide_operator.api.conditions import Reason
from kvtide_operator.api.plan import Plan
from kvtide_operator.api.spec import AutoscalingMode
from kvtide_operator.api.status import AutoscalingStatus, ScalingDecision
from kvtide_operator.autoscale.fleet import Worker
from kvtide_operator.autoscale.policy import ScalingPolicy
from kvtide_operator.autoscale.replicas import Decision, decide_replicas
from kvtide_operator.plan.planner import workload_of
from kvtide_operator.reconcile.observed import Observed
from kvtide_operator.reconcile.pods import PodView, seconds, timestamp

DECISIONS_KEPT = 10
# An operator that comes back after less than this goes on with the window; after more it has missed too much.
UNSEEN_S = 60.0
# Held decisions that are worth a record when they begin; the others are the normal course of things.
NOTABLE = (Reason.AT_MAX_REPLICAS, Reason.METRICS_MISSING, Reason.METRICS_STALE)


@dataclass(frozen=True)
class Scaling:
    """What the Deployment should have, and what the status says about it.

    replicas: what is written to the Deployment
    news:     a decision that was made in this pass
    """

    replicas: int
    decision: Decision
    status: AutoscalingStatus
    news: ScalingDecision | None


def scale(observed: Observed, plan: Plan | None, current: int | None, now: float) -> Scaling:
    """Decides for a Deployment of `current` replicas, None where there is no Deployment yet; plan: what it runs."""
    spec = observed.resource.spec
    mode, policy = spec.autoscaling.mode, ScalingPolicy.of(spec.autoscaling)
    active = mode is AutoscalingMode.ACTIVE
    first = policy.clamp(spec.replicas) if active else spec.replicas
    before = current if active and current is not None else first
    previous = observed.resource.status.autoscaling or AutoscalingStatus()
    decision = decide_replicas(
        [_worker(observed, pod) for pod in observed.ready],
        before,
        policy,
        _below_since(previous, now),
        workload_of(spec).expected_output_tokens,
        now,
        (plan.kv.recent_blocks or 0) * plan.kv.block_size_tokens if plan else 0,
    )
    if mode is AutoscalingMode.OFF:
        return Scaling(before, decision, _off(decision, before, previous), None)
    news = _news(decision, active, previous, now)
    kept = [news, *(previous.decisions or [])] if news else previous.decisions or []
    scaled = news is not None and decision.changes and active
    status = AutoscalingStatus(
        desired_replicas=decision.replicas,
        reason=decision.reason,
        message=decision.message,
        demand_tokens=decision.load.demand if decision.load else None,
        capacity_tokens_per_replica=decision.load.capacity_per_replica if decision.load else None,
        last_scale_time=timestamp(now) if scaled else previous.last_scale_time,
        below_since=timestamp(decision.below_since) if decision.below_since is not None else None,
        below_seen=timestamp(now) if decision.below_since is not None else None,
        decisions=kept[:DECISIONS_KEPT] or None,
    )
    return Scaling(decision.replicas if active else before, decision, status, news)


def _below_since(previous: AutoscalingStatus, now: float) -> float | None:
    """The window that the last passes began, unless nobody has looked for so long that it says nothing."""
    if not previous.below_since or not previous.below_seen or now - seconds(previous.below_seen) > UNSEEN_S:
        return None
    return seconds(previous.below_since)


def _worker(observed: Observed, pod: PodView) -> Worker:
    sample = observed.samples.get(pod.name)
    return Worker(pod.name, sample.state, sample.age_s) if sample else Worker(pod.name, None)


def _off(decision: Decision, replicas: int, previous: AutoscalingStatus) -> AutoscalingStatus:
    return AutoscalingStatus(
        desired_replicas=replicas,
        reason=Reason.MODE_OFF,
        message="mode is Off: replicas follow spec.replicas",
        demand_tokens=decision.load.demand if decision.load else None,
        capacity_tokens_per_replica=decision.load.capacity_per_replica if decision.load else None,
        last_scale_time=previous.last_scale_time,
        decisions=previous.decisions,
    )


def _news(decision: Decision, active: bool, previous: AutoscalingStatus, now: float) -> ScalingDecision | None:
    """The record of this decision, if it is one that was not recorded before."""
    if not decision.changes and (decision.reason not in NOTABLE or decision.reason == previous.reason):
        return None
    last = previous.decisions[0] if previous.decisions else None
    step = (decision.current, decision.replicas, decision.reason)
    # The same step again is one that was not taken: only observed, or refused by the API server.
    if decision.changes and last is not None and (last.from_replicas, last.to_replicas, last.reason) == step:
        return None
    load = decision.load
    return ScalingDecision(
        time=timestamp(now),
        from_replicas=decision.current,
        to_replicas=decision.replicas,
        reason=decision.reason,
        message=decision.message,
        demand_tokens=load.demand if load else None,
        capacity_tokens_per_replica=load.capacity_per_replica if load else None,
        live_tokens=load.live if load else None,
        queued_prompt_tokens=load.queued_prompts if load else None,
        expected_output_tokens=load.expected_output if load else None,
        recent_tokens=load.recent if load else None,
        ready_replicas=decision.ready,
        applied=active,
    )
