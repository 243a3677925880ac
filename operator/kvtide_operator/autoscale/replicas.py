"""How many replicas: up by need, down one at a time after a quiet window, held where numbers are missing.

tokens
  ^        D > up · C · n            → as many as D / (up · C), at once
  │  ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─
  │        neither                   → stay
  │  ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─
  │        D < down · C · (n − 1)    → one fewer, if it stays so for the whole window
D demand, C capacity of a replica, n replicas. Since down < up, n − 1 replicas are not asked to grow again.
"""

import math
from dataclasses import dataclass

from kvtide_operator.api.conditions import Reason
from kvtide_operator.autoscale.fleet import Load, Worker, add_up
from kvtide_operator.autoscale.policy import ScalingPolicy


@dataclass(frozen=True)
class Decision:
    """What to do, why, and from which numbers.

    held:        numbers were missing, so nothing but the bounds was judged
    below_since: since when the demand allows one replica fewer, in seconds since 1970; None when it does not
    """

    current: int
    replicas: int
    reason: Reason
    message: str
    ready: int
    load: Load | None = None
    below_since: float | None = None
    held: bool = False

    @property
    def changes(self) -> bool:
        return self.replicas != self.current


def decide_replicas(
    workers: list[Worker],
    current: int,
    policy: ScalingPolicy,
    below_since: float | None,
    mean_output_tokens: int | None,
    now: float,
    recent_tokens: int = 0,
) -> Decision:
    """Decides for a fleet of `current` replicas, of which `workers` are ready; those still coming are in `current`.

    mean_output_tokens, recent_tokens: as `add_up` takes them
    """
    bounded = policy.clamp(current)
    if bounded != current:
        return _back_into_bounds(workers, current, bounded)
    if not workers:
        return Decision(current, current, Reason.NO_READY_WORKERS, "no worker is ready yet", ready=0, held=True)
    for reason, blind in (
        (Reason.METRICS_MISSING, [worker.name for worker in workers if worker.missing]),
        (Reason.METRICS_STALE, [worker.name for worker in workers if worker.stale]),
    ):
        if blind:
            message = f"holding {current} replicas: no fresh numbers from {', '.join(sorted(blind))}"
            return Decision(current, current, reason, message, ready=len(workers), held=True)
    states = [worker.state for worker in workers if worker.state is not None]
    load = add_up(states, mean_output_tokens, recent_tokens)
    return _weigh(load, current, len(workers), policy, below_since, now)


def _back_into_bounds(workers: list[Worker], current: int, bounded: int) -> Decision:
    if bounded > current:
        reason, message = Reason.BELOW_MIN_REPLICAS, f"{current} replicas are below minReplicas {bounded}"
    else:
        reason, message = Reason.ABOVE_MAX_REPLICAS, f"{current} replicas are above maxReplicas {bounded}"
    return Decision(current, bounded, reason, message, ready=len(workers))


def _weigh(
    load: Load, current: int, ready: int, policy: ScalingPolicy, below_since: float | None, now: float
) -> Decision:
    def decided(replicas: int, reason: Reason, message: str, since: float | None = None) -> Decision:
        return Decision(current, replicas, reason, message, ready=ready, load=load, below_since=since)

    capacity = load.capacity_per_replica
    needed = math.ceil(load.demand / (policy.up * capacity))
    numbers = f"demand of {load.demand} tokens on {current} replicas of {capacity}"
    if needed > current:
        target = policy.clamp(needed)
        if target == current:
            return decided(current, Reason.AT_MAX_REPLICAS, f"{numbers} asks for {needed}, maxReplicas is {current}")
        return decided(target, Reason.DEMAND_ABOVE_TARGET, f"{numbers} is above {policy.up:.0%}: {target} replicas")
    if load.demand >= policy.down * capacity * (current - 1):
        return decided(current, Reason.WITHIN_BOUNDS, f"{numbers} is within bounds")
    if current == policy.min_replicas:
        return decided(current, Reason.AT_MIN_REPLICAS, f"{numbers} needs fewer, minReplicas is {current}")
    since = now if below_since is None else below_since
    if now - since < policy.window_s:
        left = math.ceil(policy.window_s - (now - since))
        return decided(
            current, Reason.STABILIZING, f"{numbers} needs fewer; one goes if it stays so for {left} s", since
        )
    return decided(
        current - 1,
        Reason.DEMAND_BELOW_TARGET,
        f"{numbers} stayed under {policy.down:.0%} of {current - 1} replicas for {policy.window_s:.0f} s",
    )
