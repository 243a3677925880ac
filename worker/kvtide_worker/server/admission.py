"""Whether a request that fits can be taken now, or there is too much in front of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

# How many turns of a full batch may stand in the queue, and how many full pools of prompt tokens. Enough for an
# autoscaler to see what a fleet several times as large would do, short enough to end within a client's patience.
QUEUED_BATCHES = 8
QUEUED_POOLS = 4

_MAX_RETRY_AFTER_S = 60


@dataclass(frozen=True)
class Capacity:
    """What all sequences share: tokens of the pool, and places in a step."""

    pool_tokens: int
    max_batch: int


@dataclass(frozen=True)
class Queue:
    """What waits for its first token, and how long a request takes from first to last."""

    requests: int
    prompt_tokens: int
    mean_request_s: float


@dataclass(frozen=True)
class AdmissionLimits:
    """What was set while the worker runs. None is: what the pool and the batch give.

    paused: nothing new is taken; what waits or runs goes on
    """

    waiting_requests: int | None = None
    waiting_prompt_tokens: int | None = None
    paused: bool = False

    def most_requests(self, capacity: Capacity) -> int:
        """Requests that may wait."""
        return QUEUED_BATCHES * capacity.max_batch if self.waiting_requests is None else self.waiting_requests

    def most_prompt_tokens(self, capacity: Capacity) -> int:
        """Prompt tokens that may wait."""
        most = self.waiting_prompt_tokens
        return QUEUED_POOLS * capacity.pool_tokens if most is None else most


_NOTHING_SET = AdmissionLimits()


@dataclass(frozen=True)
class Overload:
    """Too much waits already."""

    message: str
    retry_after_s: int


def overload(
    requests: int, prompt_tokens: int, queue: Queue, capacity: Capacity, limits: AdmissionLimits = _NOTHING_SET
) -> Overload | None:
    """Whether so many more requests, with so many prompt tokens together, would make the queue too long.

    An empty queue takes anything that can fit at all.
    """
    most_requests, most_tokens = limits.most_requests(capacity), limits.most_prompt_tokens(capacity)
    if not queue.requests:
        return None
    if queue.requests + requests <= most_requests and queue.prompt_tokens + prompt_tokens <= most_tokens:
        return None
    return Overload(
        f"{queue.requests} requests with {queue.prompt_tokens} prompt tokens wait already, and at most "
        f"{most_requests} requests or {most_tokens} tokens may; try again later, or add replicas",
        _retry_after_s(queue, capacity),
    )


def _retry_after_s(queue: Queue, capacity: Capacity) -> int:
    """When the queue should be half as long, at the pace of the last requests."""
    turns = queue.requests / 2 / capacity.max_batch
    return max(1, min(_MAX_RETRY_AFTER_S, round(turns * queue.mean_request_s)))
