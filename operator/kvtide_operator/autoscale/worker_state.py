"""One worker's own account of itself: the JSON of its `GET /v1/state`."""

from pydantic import Field

from kvtide_operator.api.fields import Api
from kvtide_operator.api.status import MeasuredMemory


class FormatQuality(Api):
    """What a KV format was measured to cost when the worker loaded: KL divergence in nats, and its bound."""

    precision: str
    kld: float | None = None
    limit: float
    passed: bool


class KVState(Api):
    """The worker's KV pool, in blocks and tokens.

    precision:         of the pool as it is now; planned_precision: the plan's
    fallback:          why another one than planned is served, as a sentence
    reencodable:       precisions that the pool may be re-encoded to now, the largest first
    """

    capacity_tokens: int = Field(ge=1)
    live_tokens: int = Field(ge=0)
    utilization: float = Field(ge=0, le=1)
    block_size_tokens: int | None = None
    num_blocks: int | None = None
    precision: str | None = None
    planned_precision: str | None = None
    quality: tuple[FormatQuality, ...] = ()
    fallback: str | None = None
    reencodable: tuple[str, ...] = ()


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


class LatencyState(Api):
    """Latencies of the last window, in seconds; None where no request of it says anything."""

    time_to_first_token_p95_seconds: float | None = None
    time_per_output_token_p95_seconds: float | None = None
    window_seconds: float = 60.0


class EngineInfo(Api):
    """What computes: which kernels, and how weights are stored."""

    kernels: str = ""
    weight_precision: str = ""
    dtype: str = ""


class MemoryState(Api):
    """What the worker measures, in bytes."""

    measured: MeasuredMemory = MeasuredMemory()


class WorkerState(Api):
    """The whole account. Raises pydantic.ValidationError on JSON that is not one."""

    version: str = ""
    model_name: str | None = None
    device: str = ""
    started_at: float
    sampled_at: float
    kv: KVState
    requests: RequestState
    limits: LimitState
    counters: Counters = Counters()
    latency: LatencyState = LatencyState()
    engine: EngineInfo | None = None
    memory: MemoryState = MemoryState()
