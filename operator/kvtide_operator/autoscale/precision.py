"""Precision as a lever: where no more workers can be had, the ones there are hold more tokens in a smaller format.

    planned ──pressed──► next of what every worker may be re-encoded to ──still pressed──► next …
       ▲                                       │
       └── idle, worker by worker ◄── calm for the whole window ◄┘

Pressed: the demand asks for more replicas than may be, or can be, had. Calm: it would fit what the workers hold as
planned. Between the two nothing moves. Only formats that passed their check when the model was loaded are taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvtide_operator.autoscale.worker_state import WorkerState

# How long a step may take to show before another one follows.
SETTLE_S = 30.0


@dataclass(frozen=True)
class Pressure:
    """What the replicas' decision says of this moment.

    pressed: more replicas are needed, and are not to be had
    calm:    the demand fits what the workers hold as planned, with room to spare
    why:     the same with the numbers
    """

    pressed: bool
    calm: bool
    why: str


@dataclass(frozen=True)
class Lever:
    """What is remembered between passes. Times in seconds since 1970.

    asked:      what workers are to store their KV in, None for what was planned
    changed_at: when that last changed
    calm_since: since when there was no pressure, without a break
    """

    asked: str | None = None
    changed_at: float | None = None
    calm_since: float | None = None


@dataclass(frozen=True)
class PrecisionDecision:
    """What workers are told, by name, what is remembered, and why.

    moved: the format that is wanted is another than before
    cost:  what it was measured to cost at most, and the bound of that, in nats; None as planned or where nobody knows
    """

    lever: Lever
    message: str
    pushes: dict[str, str] = field(default_factory=dict)
    moved: bool = False
    cost: tuple[float, float] | None = None


def decide_precision(
    workers: Sequence[tuple[str, WorkerState]],
    planned: str,
    pressure: Pressure,
    lever: Lever,
    window_s: float,
    now: float,
) -> PrecisionDecision:
    """Decides for the ready workers of the present plan, by name and with fresh numbers; planned is its precision."""
    if not workers:
        return PrecisionDecision(lever, "no worker has told what it could store its KV in")
    if pressure.pressed:
        return _smaller(workers, planned, pressure, lever if lever.asked else _found(workers, planned, now), now)
    if lever.asked is None:
        # Whoever asked for another one was stopped before that was written down, or the lever is not at work since.
        return PrecisionDecision(Lever(), "as planned", _returning(workers, planned))
    calm_since = (lever.calm_since if lever.calm_since is not None else now) if pressure.calm else None
    kept = Lever(lever.asked, lever.changed_at, calm_since)
    if calm_since is None or now - calm_since < window_s:
        return _held(workers, kept, f"{lever.asked} instead of {planned}: {pressure.why}")
    return _back(workers, planned, kept, now)


def _smaller(
    workers: Sequence[tuple[str, WorkerState]], planned: str, pressure: Pressure, lever: Lever, now: float
) -> PrecisionDecision:
    kept = Lever(lever.asked, lever.changed_at)
    settling = lever.changed_at is not None and now - lever.changed_at < SETTLE_S
    following = None if settling else _next(workers, lever.asked)
    if following is None:
        why = f"{lever.asked} instead of {planned}" if lever.asked else "as planned"
        return _held(workers, kept, f"{why}: {pressure.why}")
    message = f"{following} instead of {lever.asked or planned}: {pressure.why}"
    return _held(workers, Lever(following, now), message, moved=True)


def _held(
    workers: Sequence[tuple[str, WorkerState]], lever: Lever, message: str, moved: bool = False
) -> PrecisionDecision:
    """Every worker that does not store what is asked for, and may, is told so: one that restarted begins as planned."""
    asked = lever.asked
    if asked is None:
        return PrecisionDecision(lever, message)
    pushes = {name: asked for name, state in workers if state.kv.precision != asked and asked in _open(state)}
    costs = [
        (quality.kld, quality.limit)
        for _, state in workers
        for quality in state.kv.quality
        if quality.precision == asked and quality.kld is not None
    ]
    cost = max(costs, default=None)
    told = f"{message}; it costs at most {cost[0]:.4g} nats of {cost[1]:.4g} allowed" if cost else message
    return PrecisionDecision(lever, told, pushes, moved, cost)


def _back(workers: Sequence[tuple[str, WorkerState]], planned: str, lever: Lever, now: float) -> PrecisionDecision:
    """Worker by worker, when it is idle: the larger format's pool has room for less than may be live in this one."""
    others = [name for name, state in workers if _differs(state, planned)]
    if not others:
        return PrecisionDecision(Lever(None, now), f"{planned} again, as planned", moved=True)
    message = f"{lever.asked} until each is idle, then {planned} again: {', '.join(others)}"
    return PrecisionDecision(lever, message, _returning(workers, planned))


def _returning(workers: Sequence[tuple[str, WorkerState]], planned: str) -> dict[str, str]:
    return {name: planned for name, state in workers if _differs(state, planned) and _idle(state)}


def _found(workers: Sequence[tuple[str, WorkerState]], planned: str, now: float) -> Lever:
    """The lever as it must have been where it is not remembered: what one worker has, and the others have or may."""
    found = (state.kv.precision for _, state in workers if _differs(state, planned))
    for precision in found:
        if precision and all(precision in (state.kv.precision, *_open(state)) for _, state in workers):
            return Lever(precision, now)
    return Lever()


def _differs(state: WorkerState, planned: str) -> bool:
    return state.kv.precision not in (None, planned)


def _idle(state: WorkerState) -> bool:
    return state.requests.running == 0 and state.requests.waiting == 0 and state.kv.live_tokens == 0


def _next(workers: Sequence[tuple[str, WorkerState]], asked: str | None) -> str | None:
    """The largest format that is smaller than what every worker stores now, and that each of them may take."""
    if asked is not None and any(state.kv.precision != asked for _, state in workers):
        return None  # the last step is still under way
    first, *rest = (_open(state) for _, state in workers)
    return next((precision for precision in first if all(precision in other for other in rest)), None)


def _open(state: WorkerState) -> list[str]:
    """What a worker may be re-encoded to, in order of falling size, without what failed its check."""
    failed = {quality.precision for quality in state.kv.quality if not quality.passed}
    return [precision for precision in state.kv.reencodable if precision not in failed]
