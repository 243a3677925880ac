"""Whether answers come as fast as they should: the second signal beside memory, where targets are given."""

from dataclasses import dataclass, replace

from kvtide_operator.autoscale.fleet import WARM_UP_S, Fleet, Worker
from kvtide_operator.autoscale.worker_state import LatencyState

# A target is kept with a little room: whoever is just within it is not sent away a replica.
WELL_WITHIN = 0.8


@dataclass(frozen=True)
class Targets:
    """Upper bounds in seconds of the 95th percentiles; None where there is none."""

    time_to_first_token_s: float | None = None
    time_per_output_token_s: float | None = None

    def __bool__(self) -> bool:
        return self.time_to_first_token_s is not None or self.time_per_output_token_s is not None

    def worst(self, latency: LatencyState) -> float:
        """The larger of the latencies as a share of their targets; 0 where nothing is known."""
        pairs = (
            (latency.time_to_first_token_p95_seconds, self.time_to_first_token_s),
            (latency.time_per_output_token_p95_seconds, self.time_per_output_token_s),
        )
        return max((seen / target for seen, target in pairs if seen is not None and target is not None), default=0.0)


@dataclass(frozen=True)
class Slowness:
    """How the fleet stands against its targets.

    worst:    of the warm workers that have work, the largest share of a target
    worker:   whose that is
    settled:  all workers have served for a whole window of latencies and none is coming: the last change of replicas
              has had its effect
    shared:   requests share workers: another one would have something to take over
    """

    worst: float = 0.0
    worker: str = ""
    time_to_first_token_s: float | None = None
    time_per_output_token_s: float | None = None
    settled: bool = False
    shared: bool = False

    @property
    def above(self) -> bool:
        return self.worst > 1

    @property
    def asks(self) -> bool:
        """Whether it is time for another replica."""
        return self.above and self.settled and self.shared

    @property
    def near(self) -> bool:
        return self.worst > WELL_WITHIN


def slowness(fleet: Fleet, targets: Targets) -> Slowness:
    """How the ready workers' latencies stand. A worker without requests has none that matter."""
    if not targets:
        return Slowness()
    requests = [one.state.requests for one in fleet.workers if one.state is not None]
    seen = Slowness(
        settled=fleet.coming == 0 and all(_settled(one) for one in fleet.workers),
        shared=sum(of.running + of.waiting for of in requests) > len(fleet.workers),
    )
    for one in fleet.workers:
        if one.state is None or one.ready_s < WARM_UP_S or not one.state.requests.running + one.state.requests.waiting:
            continue
        latency, worst = one.state.latency, targets.worst(one.state.latency)
        if worst > seen.worst:
            seen = replace(
                seen,
                worst=worst,
                worker=one.name,
                time_to_first_token_s=latency.time_to_first_token_p95_seconds,
                time_per_output_token_s=latency.time_per_output_token_p95_seconds,
            )
    return seen


def _settled(one: Worker) -> bool:
    window_s = one.state.latency.window_seconds if one.state is not None else 0.0
    return one.ready_s >= WARM_UP_S + window_s
