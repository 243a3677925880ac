"""The workers of one resource as the autoscaler sees them, and what the ready ones add up to."""

from dataclasses import dataclass

from kvtide_operator.autoscale.worker_state import WorkerState

# The engine samples at every step, and a step over long prompts on a slow, shared CPU was seen to take 20 s.
STALE_AFTER_S = 30.0
# What a worker's first requests are like says nothing of the later ones: kernels are compiled, caches are empty.
WARM_UP_S = 30.0
# So long a replica that the cluster has no place for, or that cannot start, is still counted on; and one that starts
# as it should: weights of hundreds of gigabytes take their time.
TROUBLED_S = 120.0
STARTING_S = 1800.0


@dataclass(frozen=True)
class Worker:
    """One ready worker.

    state:   None where it did not answer
    age_s:   how old its numbers are
    wrong:   whose numbers they are instead, as a clause, where they are not this worker's
    ready_s: how long it has been ready; infinite where nobody knows
    """

    name: str
    state: WorkerState | None
    age_s: float = 0.0
    wrong: str | None = None
    ready_s: float = float("inf")

    @property
    def missing(self) -> bool:
        return self.state is None

    @property
    def stale(self) -> bool:
        return self.state is not None and self.age_s > STALE_AFTER_S


@dataclass(frozen=True)
class Pending:
    """One replica that is not ready. waiting_s: for how long.

    troubled: something keeps it from starting; unschedulable: and that is that no node has a place for it, nor would
              have one for another replica
    """

    name: str
    waiting_s: float
    troubled: bool = False
    unschedulable: bool = False

    @property
    def stuck(self) -> bool:
        """Whether it has waited for too long to be counted on."""
        return self.waiting_s > (TROUBLED_S if self.troubled else STARTING_S)


@dataclass(frozen=True)
class Fleet:
    """All replicas: `replicas` are asked for, of which `workers` are ready; the others are `pending`, or not there yet.

    absent_s: for how long pods that are asked for have not even been made; a quota may forbid them
    """

    replicas: int
    workers: tuple[Worker, ...] = ()
    pending: tuple[Pending, ...] = ()
    absent_s: float = 0.0

    @property
    def stuck(self) -> int:
        """Replicas that are asked for and do not come."""
        absent = max(0, self.replicas - len(self.workers) - len(self.pending))
        return sum(one.stuck for one in self.pending) + (absent if self.absent_s > TROUBLED_S else 0)

    @property
    def supply(self) -> int:
        """Replicas that serve, or will soon."""
        return max(min(len(self.workers), self.replicas), self.replicas - self.stuck)

    @property
    def coming(self) -> int:
        """Those of the supply that are not ready yet."""
        return max(0, self.supply - len(self.workers))

    @property
    def replaceable(self) -> bool:
        """Whether a replica is stuck where another one may not be, such as on a broken node."""
        return any(one.stuck and not one.unschedulable for one in self.pending)

    @property
    def warm(self) -> list[WorkerState]:
        """What workers say that have served for a while."""
        return [one.state for one in self.workers if one.state is not None and one.ready_s >= WARM_UP_S]


@dataclass(frozen=True)
class Load:
    """What the fleet holds and needs, in tokens.

    demand = live + queued prompts + what the queued requests are expected to generate + recent
    recent: room for so many tokens that requests take beside their own, for the last ones in BF16
    """

    live: int
    queued_prompts: int
    expected_output: int
    recent: int = 0

    @property
    def demand(self) -> int:
        return self.live + self.queued_prompts + self.expected_output + self.recent


def add_up(states: list[WorkerState], mean_output_tokens: int | None, recent_tokens: int = 0) -> Load:
    """The load of a fleet of at least one worker; recent_tokens as `Load.recent`, of one request."""
    return Load(
        live=sum(state.kv.live_tokens for state in states),
        queued_prompts=sum(state.requests.queued_prompt_tokens for state in states),
        expected_output=sum(_expected_output(state, mean_output_tokens) for state in states),
        recent=sum(state.requests.running + state.requests.waiting for state in states) * recent_tokens,
    )


def _expected_output(state: WorkerState, mean_output_tokens: int | None) -> int:
    """Tokens that waiting requests will generate: their share of what was asked for, at most the usual length.

    `max_tokens` is what a client allows, not what it gets, so the workload's mean bounds it. Running requests are
    left out: as they grow others end, and what they hold is live already.
    """
    everyone = state.requests.waiting + state.requests.running
    if not everyone:
        return 0
    share = state.requests.expected_output_tokens * state.requests.waiting // everyone
    return share if mean_output_tokens is None else min(share, state.requests.waiting * mean_output_tokens)
