"""How soon a resource is looked at again, and what in a worker's state is worth a look at once. Pure."""

from kvtide_operator.autoscale.fleet import STALE_AFTER_S
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.reconcile.observed import Observed, Sample

# Nothing runs and nothing starts: only an event, or somebody else's change, makes a difference.
RESTING_S = 30.0
# Workers run and have nothing to do. What changes is heard of, or seen in their states (edge/lookout.py); what comes
# of time alone, such as the end of a stabilisation window, waits for this at most.
CALM_S = 12.0


def is_busy(state: WorkerState) -> bool:
    """Whether a worker has requests: then its numbers change all the time, and limits are steered by them."""
    return state.requests.running > 0 or state.requests.waiting > 0


def is_calm(observed: Observed) -> bool:
    """Whether every ready worker has told its state, in time and freshly, and none has requests."""
    found = [observed.samples.get(pod.name) for pod in observed.ready]
    return all(one and not one.late and one.age_s <= STALE_AFTER_S and not is_busy(one.state) for one in found)


def next_look_s(observed: Observed, resting: bool, settled: bool, resync_s: float) -> float:
    """Seconds until the next pass by itself.

    resting: no worker runs, and none is to; settled: the pass finds nothing to do, and waits for nothing
    """
    if resting:
        return RESTING_S
    return max(CALM_S, resync_s) if settled and is_calm(observed) else resync_s


def is_news(before: Sample, now: Sample | None) -> bool:
    """Whether a pass that saw a worker calm has to see this: it is busy, silent, or not what it was.

    Tokens that were generated, latencies of the past, and bytes that come and go are no news: the next look sees them.
    """
    if now is None or now.age_s > STALE_AFTER_S or is_busy(now.state):
        return True
    return _lasting(before.state) != _lasting(now.state)


def _lasting(state: WorkerState) -> tuple[object, ...]:
    kv = (state.kv.capacity_tokens, state.kv.precision, state.kv.fallback, state.kv.reencodable)
    return state.started_at, state.model_name, state.limits, kv, state.counters.preemptions
