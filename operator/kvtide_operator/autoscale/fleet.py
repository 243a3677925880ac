"""The ready workers of one resource as the autoscaler sees them, and what they add up to."""

from dataclasses import dataclass

from kvtide_operator.autoscale.worker_state import WorkerState

# The engine samples at every step, and a step over long prompts on a slow, shared CPU was seen to take 20 s.
STALE_AFTER_S = 30.0
# Below this utilisation a standing queue is not the memory's fault.
FREE_UTILIZATION = 0.85
# A batch that has just begun holds few tokens and shows far too little: never believe less than C / 4.
LEAST_SHOWN = 4


@dataclass(frozen=True)
class Worker:
    """One ready worker. `state` is None where it did not answer; `age_s` is how old its numbers are, in seconds."""

    name: str
    state: WorkerState | None
    age_s: float = 0.0

    @property
    def missing(self) -> bool:
        return self.state is None

    @property
    def stale(self) -> bool:
        return self.state is not None and self.age_s > STALE_AFTER_S


@dataclass(frozen=True)
class Load:
    """What the fleet holds and needs, in tokens.

    demand = live + queued prompts + what the queued requests are expected to generate + recent
    recent:   room for so many tokens that requests take beside their own, for the last ones in BF16
    capacity_per_replica: mean over the ready workers
    """

    live: int
    queued_prompts: int
    expected_output: int
    capacity_per_replica: int
    recent: int = 0

    @property
    def demand(self) -> int:
        return self.live + self.queued_prompts + self.expected_output + self.recent


def capacity_tokens(state: WorkerState) -> int:
    """KV tokens that a worker can serve: its pool, or less if its queue stands though memory is free.

    A queue that stands at the batch limit with free blocks says that computing is the limit, not memory; the
    worker has then shown that it serves what its blocks hold, prompts yet to be computed included, and no more.
    """
    queue_stands = state.requests.waiting > 0 and state.requests.running >= state.limits.max_batch_limit
    if queue_stands and state.kv.utilization < FREE_UTILIZATION:
        held = round(state.kv.utilization * state.kv.capacity_tokens)
        return max(held, state.kv.capacity_tokens // LEAST_SHOWN)
    return state.kv.capacity_tokens


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


def add_up(states: list[WorkerState], mean_output_tokens: int | None, recent_tokens: int = 0) -> Load:
    """The load of a fleet of at least one worker; recent_tokens as `Load.recent`, of one request."""
    return Load(
        live=sum(state.kv.live_tokens for state in states),
        queued_prompts=sum(state.requests.queued_prompt_tokens for state in states),
        expected_output=sum(_expected_output(state, mean_output_tokens) for state in states),
        capacity_per_replica=max(1, sum(capacity_tokens(state) for state in states) // len(states)),
        recent=sum(state.requests.running + state.requests.waiting for state in states) * recent_tokens,
    )
