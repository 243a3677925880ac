"""Whether answers come as fast as they should: the second signal beside memory, where targets are given."""

from dataclasses import dataclass
from statistics import median

from kvtide_operator.autoscale.fleet import WARM_UP_S, Fleet, Worker
from kvtide_operator.autoscale.worker_state import LatencyState


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
    """How the fleet stands against its targets: by the medians of what its workers say, for the percentile of one
    worker's last minute is that of a few dozen requests, and the slowest of several workers is always slow.

    worst:    the larger of both latencies as a share of its target; 0 where nothing is known
    settled:  all workers have served for a whole window of latencies and none is coming: the last change of replicas
              has had its effect
    shared:   requests share workers: another one would have something to take over
    """

    worst: float = 0.0
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


def slowness(fleet: Fleet, targets: Targets) -> Slowness:
    """How the ready workers' latencies stand. A worker without requests has none that matter."""
    if not targets:
        return Slowness()
    requests = [one.state.requests for one in fleet.workers if one.state is not None]
    latencies = [state.latency for state in fleet.warm if state.requests.running + state.requests.waiting]
    first = _median([latency.time_to_first_token_p95_seconds for latency in latencies])
    token = _median([latency.time_per_output_token_p95_seconds for latency in latencies])
    return Slowness(
        targets.worst(LatencyState(time_to_first_token_p95_seconds=first, time_per_output_token_p95_seconds=token)),
        first,
        token,
        settled=fleet.coming == 0 and all(_settled(one) for one in fleet.workers),
        shared=sum(of.running + of.waiting for of in requests) > len(fleet.workers),
    )


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _settled(one: Worker) -> bool:
    window_s = one.state.latency.window_seconds if one.state is not None else 0.0
    return one.ready_s >= WARM_UP_S + window_s
