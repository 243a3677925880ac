"""How many replicas: up by need, down after a quiet window, held where numbers are missing.

tokens
  ^        D > up · C · n            → as many as D / (up · C), at once
  │  ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─
  │        neither                   → stay
  │  ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─
  │        D < down · C · (n − 1)    → fewer, where that was so for the whole window: as few as its highest D allows
D demand, C capacity of a replica, n replicas that serve or will soon. Since down < up, those that are left are not
asked to grow again. Where latencies have targets, answers above them ask for one replica more than there is, and
their demand is remembered as more than a replica's capacity.
"""

import math
from dataclasses import dataclass, field, replace

from kvtide_operator.api.conditions import Reason
from kvtide_operator.autoscale.capacity import capacity_tokens, learn_from_latency, learn_from_queues, memory_tokens
from kvtide_operator.autoscale.fleet import Fleet, Load, add_up
from kvtide_operator.autoscale.latency import Slowness, slowness
from kvtide_operator.autoscale.memory import Memory, Peak, Window, look
from kvtide_operator.autoscale.policy import ScalingPolicy


@dataclass(frozen=True)
class Decision:
    """What to do, why, and from which numbers.

    capacity: tokens that a replica is believed to serve; None where nobody knows
    memory:   what the next pass is to remember
    held:     numbers were missing, so nothing but the bounds was judged
    """

    current: int
    replicas: int
    reason: Reason
    message: str
    fleet: Fleet
    load: Load | None = None
    capacity: int | None = None
    slowness: Slowness = field(default_factory=Slowness)
    memory: Memory = field(default_factory=Memory)
    held: bool = False

    @property
    def changes(self) -> bool:
        return self.replicas != self.current


def decide_replicas(
    fleet: Fleet,
    policy: ScalingPolicy,
    memory: Memory,
    mean_output_tokens: int | None,
    now: float,
    recent_tokens: int = 0,
    planned_tokens: int | None = None,
) -> Decision:
    """Decides for a fleet; mean_output_tokens, recent_tokens: as `add_up` takes them.

    planned_tokens: what a replica holds as planned, where it holds more for the time being: nobody goes whom those
                    that are left would miss then
    """
    current = fleet.replicas
    kept = Memory(shown=memory.shown)
    bounded, blind = policy.clamp(current), _blind(fleet)
    if blind is not None and bounded == current:
        return Decision(current, current, *blind, fleet, memory=kept, held=True)
    if blind is not None:
        return Decision(current, bounded, *_back_into_bounds(current, bounded), fleet, memory=kept)
    states = [one.state for one in fleet.workers if one.state is not None]
    load, held_by_memory = add_up(states, mean_output_tokens, recent_tokens), memory_tokens(states)
    if bounded != current:
        capacity, outside = capacity_tokens(held_by_memory, memory.shown, now), _back_into_bounds(current, bounded)
        return Decision(current, bounded, *outside, fleet, load, capacity, memory=kept)
    slow = slowness(fleet, policy.targets)
    peak = memory.peak if memory.peak is not None else Peak(0.0, now)
    if policy.targets:
        # A request that took so long to begin says so of the time when it came.
        lag_s = states[0].latency.window_seconds + (slow.time_to_first_token_s or 0.0)
        peak = peak.after(load.demand / len(states), now, lag_s)
    shown = learn_from_queues(fleet.warm, held_by_memory, memory.shown, now)
    # What was slow in the last minute matters while the load that made it slow is there.
    slow = replace(slow, shared=slow.shared and load.demand >= policy.down * peak.highest * len(states))
    if slow.asks:
        shown = learn_from_latency(peak.highest / policy.up, held_by_memory, shown, now)
    capacity = capacity_tokens(held_by_memory, shown, now)
    lasting = min(capacity, planned_tokens or capacity)
    reason, message, replicas, window = _weigh(fleet, load, capacity, lasting, slow, policy, memory.window, now)
    remembered = Memory(window, shown, peak if peak.highest else None)
    return Decision(current, replicas, reason, message, fleet, load, capacity, slow, remembered)


def _back_into_bounds(current: int, bounded: int) -> tuple[Reason, str]:
    if bounded > current:
        return Reason.BELOW_MIN_REPLICAS, f"{current} replicas are below minReplicas {bounded}"
    return Reason.ABOVE_MAX_REPLICAS, f"{current} replicas are above maxReplicas {bounded}"


def _blind(fleet: Fleet) -> tuple[Reason, str] | None:
    """Why there are no numbers to judge, and whose are missing; None where there are."""
    if not fleet.workers:
        return Reason.NO_READY_WORKERS, "no worker is ready yet"
    mislabelled = [f"{one.name} {one.wrong}" for one in fleet.workers if one.state is not None and one.wrong]
    for reason, what, names in (
        (Reason.METRICS_MISSING, "no numbers from", [one.name for one in fleet.workers if one.missing]),
        (Reason.METRICS_STALE, "no fresh numbers from", [one.name for one in fleet.workers if one.stale]),
        (Reason.METRICS_MISLABELLED, "not its own numbers:", mislabelled),
    ):
        if names:
            return reason, f"holding {fleet.replicas} replicas: {what} {', '.join(sorted(names))}"
    return None


def _weigh(
    fleet: Fleet,
    load: Load,
    capacity: int,
    lasting: int,
    slow: Slowness,
    policy: ScalingPolicy,
    window: Window | None,
    now: float,
) -> tuple[Reason, str, int, Window | None]:
    current, supply = fleet.replicas, fleet.supply
    demanded = math.ceil(load.demand / (policy.up * capacity))
    needed = max(demanded, supply + 1 if slow.asks else 0)
    numbers = f"demand of {load.demand} tokens on {supply} replicas of {capacity}"
    if needed > supply:
        why, reason = f"{numbers} is above {policy.up:.0%}", Reason.DEMAND_ABOVE_TARGET
        if demanded <= supply:
            why, reason = f"answers take {slow.worst:.1f} of a latency target", Reason.LATENCY_ABOVE_TARGET
        # One more than needed in place of those that do not come: more would not come either.
        target = policy.clamp(max(current, needed + fleet.replaceable))
        if target > current:
            return reason, f"{why}: {target} replicas", target, None
        wanted = needed + fleet.replaceable
        if wanted > current == policy.max_replicas:
            return Reason.AT_MAX_REPLICAS, f"{why}; it asks for {wanted}, maxReplicas is {current}", current, None
        return Reason.REPLICAS_STUCK, f"{why}; {fleet.stuck} of {current} replicas do not start", current, None
    if slow.above:
        why = f"{numbers} is within bounds, and answers take {slow.worst:.1f} of a latency target: none goes"
        return Reason.WITHIN_BOUNDS, why, current, None
    if current == policy.min_replicas and load.demand < policy.down * lasting * (current - 1):
        return Reason.AT_MIN_REPLICAS, f"{numbers} needs fewer, minReplicas is {current}", current, None
    if _fewest(load.demand, lasting, fleet, policy) >= current:
        return Reason.WITHIN_BOUNDS, f"{numbers} is within bounds", current, None
    window = look(window, load.demand, policy.window_s, now)
    target = _fewest(window.peak_tokens, lasting, fleet, policy)
    if target >= current or window.rises(load.demand) or not window.covers(policy.window_s, now):
        why = f"{numbers} needs fewer, but not yet without a break for {policy.window_s:.0f} s"
        return Reason.STABILIZING, why, current, window
    why = f"demand of at most {window.peak_tokens} tokens stayed under {policy.down:.0%} of {target} replicas"
    return Reason.DEMAND_BELOW_TARGET, f"{why} of {lasting} for {policy.window_s:.0f} s", target, window


def _fewest(demand: int, capacity: int, fleet: Fleet, policy: ScalingPolicy) -> int:
    """The fewest replicas that keep the demand under the lower threshold. Those that do not come are the first to go,
    and take nothing with them."""
    enough = max(policy.min_replicas, math.floor(demand / (policy.down * capacity)) + 1)
    return enough if enough <= fleet.supply else fleet.replicas
