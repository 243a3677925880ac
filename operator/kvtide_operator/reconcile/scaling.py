"""This pass's replicas: carries what is seen into the deciding function, and what it remembers into the status."""

from dataclasses import dataclass

from kvtide_operator.api.conditions import Reason
from kvtide_operator.api.plan import Plan
from kvtide_operator.api.spec import AutoscalingMode
from kvtide_operator.api.status import AutoscalingStatus, DemandPeak, DemandWindow, ScalingDecision, ShownCapacity
from kvtide_operator.autoscale.capacity import Shown
from kvtide_operator.autoscale.fleet import Fleet, Pending, Worker
from kvtide_operator.autoscale.memory import Memory, Peak, Window
from kvtide_operator.autoscale.policy import ScalingPolicy
from kvtide_operator.autoscale.replicas import Decision, decide_replicas
from kvtide_operator.plan.planner import workload_of
from kvtide_operator.reconcile.observed import Observed, Sample
from kvtide_operator.reconcile.pods import PodView, seconds, timestamp
from kvtide_operator.reconcile.workers import replica_failure

DECISIONS_KEPT = 10
# Held decisions that are worth a record when they begin; the others are the normal course of things.
NOTABLE = (
    Reason.AT_MAX_REPLICAS,
    Reason.REPLICAS_STUCK,
    Reason.METRICS_MISSING,
    Reason.METRICS_STALE,
    Reason.METRICS_MISLABELLED,
)
# So long before fewer replicas are asked for it is said which pods are to go: who deletes them must have seen it.
CHOSEN_BEFORE_S = 10.0
# What no other replica would find a place for either.
NO_PLACE = (Reason.UNSCHEDULABLE, Reason.INSUFFICIENT_GPU)


@dataclass(frozen=True)
class Scaling:
    """What the Deployment should have, and what the status says about it.

    replicas: what is written to the Deployment
    news:     a decision that was made in this pass
    ends:     whether the time in which fewer would have done is nearly over
    """

    replicas: int
    decision: Decision
    status: AutoscalingStatus
    news: ScalingDecision | None
    ends: bool = False


def scale(observed: Observed, plan: Plan | None, current: int | None, now: float, intent: str = "") -> Scaling:
    """Decides for a Deployment of `current` replicas, None where there is no Deployment yet.

    plan, intent: what it runs
    """
    spec = observed.resource.spec
    mode, policy = spec.autoscaling.mode, ScalingPolicy.of(spec.autoscaling)
    active = mode is AutoscalingMode.ACTIVE
    first = policy.clamp(spec.replicas) if active else spec.replicas
    before = current if active and current is not None else first
    previous = observed.resource.status.autoscaling or AutoscalingStatus()
    lever = observed.resource.status.kv_precision
    decision = decide_replicas(
        _fleet(observed, plan, intent, before, now),
        policy,
        _memory(previous, intent),
        workload_of(spec).expected_output_tokens,
        now,
        (plan.kv.recent_blocks or 0) * plan.kv.block_size_tokens if plan else 0,
        plan.kv.capacity_tokens if plan and lever and lever.asked else None,
    )
    if mode is AutoscalingMode.OFF:
        return Scaling(before, decision, _off(decision, before, previous), None)
    news = _news(decision, active, previous, now)
    kept = [news, *(previous.decisions or [])] if news else previous.decisions or []
    scaled = news is not None and decision.changes and active
    window, shown, peak = decision.memory.window, decision.memory.shown, decision.memory.peak
    status = AutoscalingStatus(
        desired_replicas=decision.replicas,
        reason=decision.reason,
        message=decision.message,
        demand_tokens=decision.load.demand if decision.load else None,
        capacity_tokens_per_replica=decision.capacity,
        last_scale_time=timestamp(now) if scaled else previous.last_scale_time,
        window=_kept(window) if window else None,
        shown=ShownCapacity(intent=intent, tokens=shown.tokens, seen_at=timestamp(shown.seen_at)) if shown else None,
        peak=_kept_peak(peak) if peak else None,
        decisions=kept[:DECISIONS_KEPT] or None,
    )
    ends = active and window is not None and window.covers(policy.window_s - CHOSEN_BEFORE_S, now)
    return Scaling(decision.replicas if active else before, decision, status, news, ends)


def _memory(previous: AutoscalingStatus, intent: str) -> Memory:
    """What the last passes remembered; what workers of another intent have shown says nothing of these."""
    window, shown, kept = None, None, previous.window
    if kept and kept.peak_tokens:
        window = Window(seconds(kept.began), seconds(kept.seen), kept.step, tuple(kept.peak_tokens))
    if previous.shown and previous.shown.intent == intent:
        shown = Shown(previous.shown.tokens, seconds(previous.shown.seen_at))
    was = previous.peak
    peak = Peak(was.tokens_per_replica, seconds(was.since), was.before_tokens) if was else None
    return Memory(window, shown, peak)


def _kept(window: Window) -> DemandWindow:
    return DemandWindow(
        began=timestamp(window.began),
        seen=timestamp(window.seen),
        step=window.step,
        peak_tokens=list(window.peaks),
    )


def _kept_peak(peak: Peak) -> DemandPeak:
    return DemandPeak(
        tokens_per_replica=round(peak.tokens, 1),
        since=timestamp(peak.since),
        before_tokens=round(peak.before, 1),
    )


def _fleet(observed: Observed, plan: Plan | None, intent: str, replicas: int, now: float) -> Fleet:
    return Fleet(
        replicas=replicas,
        workers=tuple(_worker(observed, pod, plan if pod.intent == intent else None, now) for pod in observed.ready),
        pending=tuple(_pending(pod, now) for pod in observed.workers if not pod.ready and not pod.terminating),
        absent_s=_absent_s(observed, now),
    )


def _absent_s(observed: Observed, now: float) -> float:
    """For how long the Deployment has been refused pods. One that was deleted a moment ago is only not there yet."""
    failure = replica_failure(observed.child("Deployment", observed.resource.name))
    since = failure.get("lastTransitionTime") if failure is not None else None
    return max(0.0, now - seconds(since)) if since else 0.0


def _worker(observed: Observed, pod: PodView, plan: Plan | None, now: float) -> Worker:
    sample = observed.samples.get(pod.name)
    ready_s = max(0.0, now - pod.ready_since) if pod.ready_since is not None else float("inf")
    if sample is None:
        return Worker(pod.name, None, ready_s=ready_s)
    wrong = _wrong(sample, observed.resource.served_name, plan) if plan is not None else None
    return Worker(pod.name, sample.state, sample.age_s, wrong, ready_s)


def _wrong(sample: Sample, served_name: str, plan: Plan) -> str | None:
    """How a sample contradicts what its pod runs: its address may have become another pod's. What it does not say
    contradicts nothing."""
    reported, kv = sample.state.model_name, sample.state.kv
    if reported is not None and reported != served_name:
        return f"reports model {reported}, not {served_name}"
    if kv.block_size_tokens not in (None, plan.kv.block_size_tokens):
        return f"reports blocks of {kv.block_size_tokens} tokens, the plan has {plan.kv.block_size_tokens}"
    if kv.planned_precision not in (None, plan.kv.precision):
        return f"reports a plan for {kv.planned_precision}, its own is for {plan.kv.precision}"
    return None


def _pending(pod: PodView, now: float) -> Pending:
    return Pending(
        pod.name,
        waiting_s=max(0.0, now - pod.unready_since) if pod.unready_since is not None else 0.0,
        troubled=pod.trouble is not None,
        unschedulable=pod.trouble is not None and pod.trouble.reason in NO_PLACE,
    )


def _off(decision: Decision, replicas: int, previous: AutoscalingStatus) -> AutoscalingStatus:
    return AutoscalingStatus(
        desired_replicas=replicas,
        reason=Reason.MODE_OFF,
        message="mode is Off: replicas follow spec.replicas",
        demand_tokens=decision.load.demand if decision.load else None,
        capacity_tokens_per_replica=decision.capacity,
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
        capacity_tokens_per_replica=decision.capacity,
        live_tokens=load.live if load else None,
        queued_prompt_tokens=load.queued_prompts if load else None,
        expected_output_tokens=load.expected_output if load else None,
        recent_tokens=load.recent if load else None,
        ready_replicas=len(decision.fleet.workers),
        coming_replicas=decision.fleet.coming,
        stuck_replicas=decision.fleet.stuck,
        time_to_first_token_p95_seconds=decision.slowness.time_to_first_token_s,
        time_per_output_token_p95_seconds=decision.slowness.time_per_output_token_s,
        applied=active,
    )
