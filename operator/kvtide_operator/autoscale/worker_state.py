"""One worker's own account of itself: the JSON of its `GET /v1/state`."""

from pydantic import Field

from kvtide_operator.api.fields import Api
from kvtide_operator.api.status import MeasuredMemory


class KVState(Api):
    """The worker's KV pool, in blocks and tokens."""

    capacity_tokens: int = Field(ge=1)
    live_tokens: int = Field(ge=0)
    utilization: float = Field(ge=0, le=1)


class RequestState(Api):
    """The worker's requests, and the tokens that they still need."""

    running: int = Field(ge=0)
    waiting: int = Field(ge=0)
    queued_prompt_tokens: int = Field(ge=0)
    expected_output_tokens: int = Field(ge=0)


class LimitState(Api):
    """The batch limit in force, and the plan's, which it never passes."""

    batch_limit: int = Field(ge=1)
    max_batch_limit: int = Field(ge=1)


class Counters(Api):
    """Counts since the worker's start."""

    preemptions: int = Field(default=0, ge=0)
    prompt_tokens: int = Field(default=0, ge=0)
    generation_tokens: int = Field(default=0, ge=0)


class MemoryState(Api):
    """What the worker measures, in bytes."""

    measured: MeasuredMemory = MeasuredMemory()


class WorkerState(Api):
    """The whole account. Raises pydantic.ValidationError on JSON that is not one."""

    version: str = ""
    started_at: float
    sampled_at: float
    kv: KVState
    requests: RequestState
    limits: LimitState
    counters: Counters = Counters()
    memory: MemoryState = MemoryState()
