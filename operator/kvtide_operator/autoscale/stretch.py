"""What a worker did in the last few seconds: what a batch limit is judged by."""

from dataclasses import dataclass

from kvtide_operator.autoscale.worker_state import WorkerState

# After so long it begins anew: what was is no news of what is.
LONGEST_S = 20.0


@dataclass(frozen=True)
class Stretch:
    """A time of work since `began`, in seconds since 1970, and its means over so many looks.

    generated, preemptions: the worker's counts when it began
    """

    began: float
    looks: int
    running: float
    utilization: float
    generated: int
    preemptions: int

    def lost(self, state: WorkerState, now: float, at_least_s: float) -> float:
        """Tokens that preempted requests lost for each one that was generated since it began: as many each as a
        sequence holds on average. They are computed again, when it is their turn once more, unless they are found
        cached then: seldom, where blocks are short.

        A stretch of less than at_least_s counts as one of that length in which nothing more was lost: what one request
        lost is not the rule.
        """
        generated = state.counters.generation_tokens - self.generated
        preempted = state.counters.preemptions - self.preemptions
        each = self.utilization * state.kv.capacity_tokens / max(1.0, self.running)
        return preempted * each / max(1.0, generated * max(1.0, at_least_s / max(now - self.began, 1.0)))


def looked(stretch: Stretch | None, state: WorkerState, now: float) -> Stretch | None:
    """The stretch with one more look; None where the worker has nothing to do, the same where nothing was generated."""
    requests, counters = state.requests, state.counters
    if requests.running + requests.waiting == 0:
        return None
    running, used = float(requests.running), state.kv.utilization
    if stretch is not None and counters.generation_tokens == stretch.generated:
        return stretch
    if stretch is None or now - stretch.began > LONGEST_S:
        return Stretch(now, 1, running, used, counters.generation_tokens, counters.preemptions)
    looks = stretch.looks + 1
    return Stretch(
        began=stretch.began,
        looks=looks,
        running=stretch.running + (running - stretch.running) / looks,
        utilization=stretch.utilization + (used - stretch.utilization) / looks,
        generated=stretch.generated,
        preemptions=stretch.preemptions,
    )
