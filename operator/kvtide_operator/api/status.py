"""What the operator reports: the status. It is also the operator's only memory across restarts."""

from typing import Annotated

from pydantic import Field, WithJsonSchema

from kvtide_operator.api.conditions import Condition
from kvtide_operator.api.fields import Api
from kvtide_operator.api.plan import Plan

Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]


class PredictedMemory(Api):
    """What the plan says that one worker uses, in bytes."""

    weights_bytes: int = Field(default=0, description="Weights.")
    kv_pool_bytes: int = Field(default=0, description="The pool of KV blocks.")
    activations_bytes: int = Field(default=0, description="Activations of one step.")
    overhead_bytes: int = Field(default=0, description="Runtime and libraries.")
    reserve_bytes: int = Field(default=0, description="Left free on purpose.")


class MeasuredMemory(Api):
    """What the fullest ready worker uses, in bytes; all but peakBytes add up to deviceBytes. The unknown is absent."""

    weights_bytes: int | None = Field(default=None, description="Weights.")
    kv_pool_bytes: int | None = Field(default=None, description="The pool of KV blocks.")
    activations_bytes: int | None = Field(default=None, description="Activations.")
    other_bytes: int | None = Field(default=None, description="Everything else that the device reports as used.")
    free_bytes: int | None = Field(default=None, description="Free memory of the device.")
    device_bytes: int | None = Field(default=None, description="All memory of the device.")
    peak_bytes: int | None = Field(default=None, description="The most that was used since the model was loaded.")


class MemoryStatus(Api):
    """Predicted and measured memory of one worker, side by side."""

    predicted: PredictedMemory | None = Field(default=None, description="What the plan says.")
    measured: MeasuredMemory | None = Field(default=None, description="What the fullest ready worker measures.")


class KVStatus(Api):
    """The KV cache of all ready workers together."""

    capacity_tokens: int = Field(default=0, description="Tokens that fit.")
    live_tokens: int = Field(default=0, description="Tokens held for running requests.")
    utilization: float = Field(default=0.0, description="Live blocks over all blocks, from 0 to 1.")
    utilization_percent: int = Field(default=0, description="The same in whole percent, for kubectl get.")
    precision_in_force: str | None = Field(
        default=None, description="What the ready workers store keys and values in now; several where they differ."
    )


class PrecisionStatus(Api):
    """What workers were told to store their KV in, where the demand asked for more replicas than are to be had."""

    asked: str | None = Field(default=None, description="The precision that they were told; absent as planned.")
    reason: str = Field(description="Why, as one word of a closed list.")
    message: str = Field(description="Why, with the numbers, and what it costs.")
    kld: float | None = Field(
        default=None, description="The largest divergence that a worker measured for it at its start, in nats."
    )
    kld_limit: float | None = Field(default=None, description="The bound of that, from maxQualityLossPercent.")
    changed_at: Time | None = Field(default=None, description="When it last changed.")
    calm_since: Time | None = Field(default=None, description="Since when the planned precision would do again.")


class RequestsStatus(Api):
    """The requests of all ready workers together."""

    running: int = Field(default=0, description="Requests in the batches.")
    waiting: int = Field(default=0, description="Requests in the queues.")


class LimitStretch(Api):
    """A time of work of one worker, by which its batch limit is judged."""

    began: Time = Field(description="When it began.")
    looks: int = Field(description="How often it was looked at.")
    running: float = Field(description="Sequences at once, the mean of these looks.")
    utilization: float = Field(description="Share of its KV blocks in use, the mean of these looks.")
    generated_tokens: int = Field(description="Tokens that it had generated when this began.")
    preemptions: int = Field(description="Preemptions that it had counted when this began.")


class WorkerStatus(Api):
    """One worker as last seen, with what the batch limit's rule remembers of it."""

    name: str = Field(description="The pod.")
    started_at: float = Field(description="When the worker's process started, in seconds since 1970.")
    batch_limit: int = Field(description="Sequences that it runs at once.")
    live_tokens: int = Field(description="KV tokens held for running requests.")
    waiting: int = Field(description="Requests in its queue.")
    preemptions: int = Field(description="Preemptions since its start, as counted by it.")
    limit_changed_at: Time | None = Field(default=None, description="When the operator last moved its batch limit.")
    limit_lowered_at: Time | None = Field(default=None, description="When the operator last lowered it.")
    limit_stretch: LimitStretch | None = Field(default=None, description="What the limit is judged by next.")
    crowded_utilization: float | None = Field(
        default=None, description="Share of its KV blocks in use on average when a limit was last too high."
    )
    answers: bool | None = Field(
        default=None,
        description="Whether it answers requests, by the last one of the operator's; absent where unknown.",
    )
    device: str | None = Field(default=None, description="What it computes on.")
    kernels: str | None = Field(default=None, description="The kernels of its attention.")
    precision: str | None = Field(default=None, description="How it stores keys and values now.")
    weight_precision: str | None = Field(default=None, description="How it stores weights.")
    block_size_tokens: int | None = Field(default=None, description="Tokens of one of its KV blocks.")
    num_blocks: int | None = Field(default=None, description="KV blocks of its pool.")


class ScalingDecision(Api):
    """A change of replicas, or one that was held back, with the numbers it was made from."""

    time: Time = Field(description="When it was made.")
    from_replicas: int = Field(description="Replicas before.")
    to_replicas: int = Field(description="Replicas after.")
    reason: str = Field(description="Why, as one word of a closed list.")
    message: str = Field(description="Why, with the numbers.")
    demand_tokens: int | None = Field(
        default=None, description="KV tokens that live and queued requests need; absent where unknown."
    )
    capacity_tokens_per_replica: int | None = Field(default=None, description="KV tokens that one worker serves.")
    live_tokens: int | None = Field(default=None, description="The part of the demand that workers hold.")
    queued_prompt_tokens: int | None = Field(default=None, description="The part that waits as prompts.")
    expected_output_tokens: int | None = Field(
        default=None, description="The part that the queued requests are expected to generate."
    )
    recent_tokens: int | None = Field(
        default=None, description="The part that all requests take beside their tokens, for the last ones in BF16."
    )
    ready_replicas: int = Field(description="Ready workers that were counted.")
    coming_replicas: int | None = Field(default=None, description="Replicas that start and were counted too.")
    stuck_replicas: int | None = Field(default=None, description="Replicas that do not start and were not counted.")
    time_to_first_token_p95_seconds: float | None = Field(
        default=None, description="The median of the workers' 95th percentiles, where there are latency targets."
    )
    time_per_output_token_p95_seconds: float | None = Field(default=None, description="The same between two tokens.")
    applied: bool = Field(description="False in mode Observe, which writes nothing.")


class ShownCapacity(Api):
    """What workers were seen to serve well, where that is less than their memory holds."""

    intent: str = Field(description="The intent of the workers that it was seen of.")
    tokens: int = Field(description="KV tokens of one replica.")
    seen_at: Time = Field(description="When that was last seen; it fades from then on.")


class DemandWindow(Api):
    """The highest demands of the stabilisation window, a tenth of it after another."""

    began: Time = Field(description="Since when the demand has been low enough for fewer replicas, without a break.")
    seen: Time = Field(description="When that was last seen; a longer break begins the window anew.")
    step: int = Field(description="The number of the newest step, in tenths of the window since 1970.")
    peak_tokens: list[int] = Field(max_length=16, description="KV tokens, the oldest step first.")


class DemandPeak(Api):
    """The highest demand on a ready replica in the last minutes: what latencies of these are the answer to."""

    tokens_per_replica: float = Field(description="KV tokens, of the minute that goes on.")
    since: Time = Field(description="When that minute began.")
    before_tokens: float = Field(default=0.0, description="KV tokens, of the minute before.")


class AutoscalingStatus(Api):
    """What the autoscaler last saw and decided."""

    desired_replicas: int | None = Field(default=None, description="Replicas that it wants.")
    reason: str | None = Field(default=None, description="Why, as one word of a closed list.")
    message: str | None = Field(default=None, description="Why, with the numbers.")
    demand_tokens: int | None = Field(default=None, description="KV tokens that live and queued requests need.")
    capacity_tokens_per_replica: int | None = Field(default=None, description="KV tokens that one worker serves.")
    last_scale_time: Time | None = Field(default=None, description="When replicas last changed.")
    window: DemandWindow | None = Field(
        default=None, description="The time in which fewer replicas would have done, while there is one."
    )
    shown: ShownCapacity | None = Field(
        default=None, description="What a replica was seen to serve, where computing is what limits it."
    )
    peak: DemandPeak | None = Field(default=None, description="The highest demand of late, kept with latency targets.")
    decisions: list[ScalingDecision] | None = Field(
        default=None, max_length=10, description="The last ten decisions, newest first."
    )


class Status(Api):
    """What the operator sees and does for one LLMDeployment."""

    observed_generation: int | None = Field(default=None, description="The generation of the spec that this speaks of.")
    replicas: int = Field(default=0, description="Worker pods that there are.")
    ready_replicas: int = Field(default=0, description="Worker pods that are ready.")
    selector: str | None = Field(default=None, description="Selects the worker pods; used by the scale subresource.")
    plan: Plan | None = Field(default=None, description="The plan in force.")
    memory: MemoryStatus | None = Field(default=None, description="Predicted and measured memory of one worker.")
    kv: KVStatus | None = Field(default=None, description="The KV cache of all ready workers together.")
    kv_precision: PrecisionStatus | None = Field(
        default=None,
        description="What workers were told to store their KV in, where that ever was another than planned.",
    )
    requests: RequestsStatus | None = Field(default=None, description="The requests of all ready workers together.")
    batch_limit: int | None = Field(default=None, description="The lowest batch limit in force on a ready worker.")
    workers: Annotated[
        list[WorkerStatus] | None,
        Field(
            description="The ready workers, one by one.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = None
    autoscaling: AutoscalingStatus | None = Field(default=None, description="What the autoscaler last saw and decided.")
    conditions: Annotated[
        list[Condition] | None,
        Field(
            description="What is and what is not, each with its reason.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = None
