"""One worker on a simulated clock: the real scheduler and the real block manager, and a step that costs time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_sizing.memory.kv import KvLayout, TableLayout
from kvtide_worker.engine.block_manager import BlockManager
from kvtide_worker.engine.messages import SamplingParams
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.scheduler import Scheduler
from kvtide_worker.server.recent import RecentValues


@dataclass(frozen=True)
class StepCost:
    """Seconds of one step: base + prefill tokens + decoding sequences + KV tokens that these read."""

    base_s: float
    prefill_token_s: float
    sequence_s: float
    kv_token_s: float

    def seconds(self, prefill_tokens: int, decodes: int, kv_tokens: int) -> float:
        """The time of a step; kv_tokens: of the decoding sequences together."""
        return (
            self.base_s
            + self.prefill_token_s * prefill_tokens
            + self.sequence_s * decodes
            + self.kv_token_s * kv_tokens
        )


@dataclass(frozen=True)
class Model:
    """What one worker is: its pool, its plan's batch limit, its speed, and how long a new one takes to be ready."""

    block_size: int
    num_blocks: int
    step_tokens: int
    max_batch_limit: int
    max_context_tokens: int
    cost: StepCost
    start_up_s: float

    @property
    def capacity_tokens(self) -> int:
        return self.num_blocks * self.block_size


@dataclass(eq=False)
class Job:
    """One request as a client sees it. Times in simulated seconds.

    allowed:  max_tokens that its client gave, of which it generates `output_tokens`
    attempts: how often it was sent: once more for every worker that went away under it
    """

    number: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    allowed: int
    first_token_s: float | None = None
    last_token_s: float = 0.0
    ended_s: float | None = None
    attempts: int = 0

    @property
    def time_to_first_token_s(self) -> float:
        """Of a request that has ended."""
        assert self.first_token_s is not None
        return self.first_token_s - self.arrival_s

    @property
    def time_per_output_token_s(self) -> float:
        """The mean after the first token; 0 where that was all."""
        assert self.ended_s is not None
        assert self.first_token_s is not None
        return (self.ended_s - self.first_token_s) / max(1, self.output_tokens - 1)


@dataclass(eq=False)
class SimulatedWorker:
    """A worker from the moment it is asked for. `run_until` brings it to a time; steps are not cut for it."""

    name: str
    model: Model
    created_s: float
    clock_s: float = 0.0
    draining_since_s: float | None = None
    ended_s: float | None = None
    _jobs: dict[str, Job] = field(default_factory=dict)
    _generated: int = 0
    _told_s: float = 0.0

    def __post_init__(self) -> None:
        layout = KvLayout(
            self.model.block_size, self.model.block_size, (TableLayout((0,), None),), self.model.step_tokens
        )
        self._blocks = BlockManager(layout, self.model.num_blocks)
        self._scheduler = Scheduler(self._blocks, max_batch_limit=self.model.max_batch_limit)
        self.clock_s = self.ready_s
        # As the worker's server keeps them: pauses between any two tokens, not means of requests.
        self._first_tokens, self._pauses = (RecentValues(lambda: max(self.clock_s, self._told_s)) for _ in range(2))

    @property
    def ready_s(self) -> float:
        """When it is ready."""
        return self.created_s + self.model.start_up_s

    @property
    def live_tokens(self) -> int:
        """What its running requests hold."""
        return self._blocks.live_tokens

    @property
    def jobs(self) -> list[Job]:
        """Its requests, in the order in which they came."""
        return list(self._jobs.values())

    def set_batch_limit(self, limit: int) -> None:
        """As `PUT /v1/limits` does."""
        self._scheduler.set_batch_limit(limit)

    def add(self, job: Job, now_s: float) -> None:
        """Queue a request."""
        self.run_until(now_s)
        self.clock_s = max(self.clock_s, now_s)
        job.attempts += 1
        identity = f"{job.number}/{job.attempts}"
        sampling = SamplingParams(max_tokens=job.allowed)
        self._jobs[identity] = job
        self._scheduler.add(Request(identity, job.number, [0] * job.prompt_tokens, sampling))

    def abandon(self) -> list[Job]:
        """Its requests, which are to be sent again: it goes away under them."""
        jobs, self._jobs = self.jobs, {}
        for job in jobs:
            job.first_token_s = None
        return jobs

    def run_until(self, time_s: float) -> None:
        """Run steps until one ends at that time or behind it, or there is nothing to run."""
        while self.clock_s < time_s and self._jobs:
            self._step(time_s)

    def _step(self, time_s: float) -> None:
        chunks = self._scheduler.schedule()
        prefill = decodes = kv_tokens = 0
        for chunk in chunks:
            if chunk.request.pending_tokens == 1:
                decodes += 1
                kv_tokens += chunk.request.num_tokens
            else:
                prefill += chunk.new_tokens
        first_s = self.model.cost.seconds(prefill, decodes, kv_tokens)
        steps = 1 if prefill else self._steps_alike([chunk.request for chunk in chunks], first_s, time_s)
        # Each later one of these reads one token more of every sequence.
        self.clock_s += steps * first_s + self.model.cost.kv_token_s * decodes * steps * (steps - 1) / 2
        for chunk in chunks:
            request = chunk.request
            completes = chunk.new_tokens == request.pending_tokens
            self._blocks.advance(request.blocks, chunk.new_tokens + steps - 1)
            if completes:
                self._generate(request, steps, first_s)

    def _steps_alike(self, requests: list[Request], first_s: float, time_s: float) -> int:
        """How many steps from here on decode just these, with the blocks that they have: until one of them ends or
        needs a block nothing changes that the scheduler decides by, for what waits was not let in."""
        steps = math.ceil((time_s - self.clock_s) / first_s)
        for request in requests:
            job = self._jobs[request.request_id]
            room = request.blocks.tables[0].end * self.model.block_size - request.num_tokens + 1
            steps = min(steps, room, job.output_tokens - len(request.output_token_ids))
        return max(1, steps)

    def _generate(self, request: Request, tokens: int, step_s: float) -> None:
        """The request has tokens of so many steps alike; before the first of them it may have waited."""
        job = self._jobs[request.request_id]
        request.output_token_ids.extend([0] * tokens)
        self._generated += tokens
        if job.first_token_s is None:
            job.first_token_s = self.clock_s
            self._first_tokens.add(job.time_to_first_token_s)
        else:
            self._pauses.add(self.clock_s - job.last_token_s - (tokens - 1) * step_s)
            if tokens > 1:
                self._pauses.add(step_s, tokens - 1)
        job.last_token_s = self.clock_s
        if len(request.output_token_ids) >= job.output_tokens:
            job.ended_s = self.clock_s
            self._scheduler.remove(request)
            del self._jobs[request.request_id]

    def state(self, now_s: float) -> WorkerState:
        """What `GET /v1/state` would say."""
        scheduler, blocks = self._scheduler, self._blocks
        self._told_s = now_s
        return WorkerState.model_validate(
            {
                "startedAt": self.created_s,
                "sampledAt": now_s,
                "kv": {
                    "capacityTokens": self.model.capacity_tokens,
                    "liveTokens": blocks.live_tokens,
                    "utilization": blocks.live_blocks / blocks.num_blocks,
                },
                "requests": {
                    "running": len(scheduler.running),
                    "waiting": scheduler.num_waiting,
                    "queuedPromptTokens": scheduler.queued_prompt_tokens,
                    "expectedOutputTokens": scheduler.expected_output_tokens,
                },
                "limits": {"batchLimit": scheduler.batch_limit, "maxBatchLimit": scheduler.max_batch_limit},
                "counters": {"preemptions": scheduler.preemptions, "generationTokens": self._generated},
                "latency": {
                    "timeToFirstTokenP95Seconds": self._first_tokens.quantile(0.95),
                    "timePerOutputTokenP95Seconds": self._pauses.quantile(0.95),
                    "windowSeconds": self._pauses.window_seconds,
                },
            }
        )
