"""What a user writes: the spec of an LLMDeployment."""

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from kvtide_operator.api.fields import MAX_INT32, Api, MemoryQuantity, SecretKeyRef, one_of, rules
from kvtide_operator.api.worker import WorkerSpec
from kvtide_sizing.plan.workload import BLOCK_SIZES

# As CEL and not as a pattern: a pattern answers with itself, a rule says what to write.
URI_RULE = rules(
    (
        "self.matches('^(hf://[^/@ ]+/[^/@ ]+(@[^ ]+)?|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[^ ]+|file:///[^ ]+)$')",
        "a model is hf://ORG/NAME, hf://ORG/NAME@REVISION, pvc://CLAIM/PATH or file:///PATH"
        " (a folder of safetensors or a .gguf file)",
    )
)
MAX_CONTEXT_TOKENS = 16_777_216
BlockSize = Annotated[
    int, AfterValidator(one_of(BLOCK_SIZES)), WithJsonSchema({"type": "integer", "enum": list(BLOCK_SIZES)})
]
# What a change of a part of the spec does to running workers; `plan.intent` says the same to the operator.
RESTARTS = "A change restarts the workers, one at a time."
LIVE = "Live: a change restarts nothing."


class Profile(StrEnum):
    """What the lengths of requests look like."""

    CHAT = "Chat"
    DOCUMENTS = "Documents"
    CUSTOM = "Custom"


class DeviceKind(StrEnum):
    """What a worker computes on."""

    GPU = "GPU"
    CPU = "CPU"


class Precision(StrEnum):
    """How keys and values are stored."""

    AUTO = "Auto"
    BF16 = "BF16"
    INT8 = "INT8"
    K8V4 = "K8V4"
    INT4 = "INT4"
    MIXED = "Mixed"


class WeightPrecision(StrEnum):
    """How the model's matrices are held."""

    BF16 = "BF16"
    INT8 = "INT8"


class AutoscalingMode(StrEnum):
    """Who writes the number of replicas."""

    ACTIVE = "Active"
    OBSERVE = "Observe"
    OFF = "Off"


class ModelSpec(Api):
    """Which model is served, and under which name."""

    uri: str = Field(
        min_length=8,
        max_length=1024,
        json_schema_extra=URI_RULE,
        description=(
            "Where the weights are: hf://ORG/NAME[@REVISION], pvc://CLAIM/PATH or file:///PATH"
            " (a folder of safetensors or a .gguf file)."
        ),
    )
    served_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="The model's name in requests and answers. Default: the resource's name.",
    )
    weight_precision: WeightPrecision = Field(
        default=WeightPrecision.BF16,
        description=(
            "How matrices are held, whatever the files have: in 16 bits (BF16), or in 8 with a scale for each output"
            " (INT8), which takes about half of the memory and may cost 1 % in perplexity (SmolLM2-135M: 0.3 %)."
            " Norms, biases and embeddings without a tied head stay in BF16."
        ),
    )
    auth_secret_ref: SecretKeyRef | None = Field(
        default=None,
        description=(
            "The Secret with the token for a model that needs one; the worker gets it as HF_TOKEN."
            " Another content restarts the workers, too."
        ),
    )


class WorkloadSpec(Api):
    """What requests look like; the batch limit and the advice of the plan follow from it."""

    profile: Profile = Field(
        default=Profile.CHAT,
        description="Typical lengths: Chat, Documents, or Custom with meanPromptTokens and meanOutputTokens.",
    )
    max_context_tokens: int | None = Field(
        default=None,
        ge=16,
        le=MAX_CONTEXT_TOKENS,
        description="Longest prompt plus answer. Default: what the model allows, cut to what fits.",
    )
    mean_prompt_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_CONTEXT_TOKENS,
        description="Mean length of a prompt. Default: the profile's.",
    )
    mean_output_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_CONTEXT_TOKENS,
        description="Mean length of an answer. Default: the profile's.",
    )
    target_concurrency: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Sequences that one replica should hold at once. Default: what fits.",
    )


class DeviceSpec(Api):
    """What one worker computes on, and how much memory it has."""

    kind: DeviceKind = Field(
        default=DeviceKind.GPU, description="GPU or CPU. With CPU, memory is the container's limit."
    )
    count: int = Field(default=1, ge=1, le=8, description="Devices of one worker.")
    memory: MemoryQuantity | None = Field(
        default=None,
        description=(
            "Memory of one device, as a quantity such as 40Gi. Default: of a GPU what the labels say of the nodes that"
            " a worker may run on, the smallest where they differ; of a CPU worker.resources.limits.memory."
        ),
    )
    resource_name: str = Field(
        default="nvidia.com/gpu",
        min_length=1,
        max_length=253,
        description="The extended resource that a GPU is asked for by; not used with kind CPU.",
    )


class KVCacheSpec(Api):
    """How the KV cache is laid out and stored."""

    precision: Precision = Field(
        default=Precision.AUTO,
        description=(
            "Storage of keys and values: 16 bits (BF16), 8 (INT8), 8 of keys and 4 of values (K8V4), 4 (INT4), or a"
            " format for each layer (Mixed). Auto: the best that holds targetConcurrency within maxQualityLossPercent."
        ),
    )
    block_size_tokens: BlockSize | None = Field(
        default=None, description="Tokens of one KV block. Default: chosen by the plan."
    )
    max_quality_loss_percent: float = Field(
        default=1.0,
        ge=0,
        le=100,
        description=(
            "What Auto, Mixed and pooled heads may cost in perplexity, in percent. A worker checks it when it loads,"
            " and serves a better precision where more is lost; one that you name may cost what it is known to."
        ),
    )
    prefix_caching: bool | None = Field(
        default=None,
        description="Share the KV blocks of equal prompt beginnings. Default: true.",
    )


class HeadVariant(Api):
    """A published variant of the model with another number of KV heads."""

    kv_heads: int = Field(ge=1, le=1024, description="KV heads of the variant.")
    uri: str = Field(
        min_length=8, max_length=1024, json_schema_extra=URI_RULE, description="Where the variant's weights are."
    )


class AttentionSpec(Api):
    """How many KV heads the model is served with."""

    kv_heads: Annotated[
        int | str,
        WithJsonSchema(
            {
                "x-kubernetes-int-or-string": True,
                **rules(
                    (
                        "type(self) == int ? self >= 1 && self <= 1024 : self in ['Native', 'Auto']",
                        "kvHeads is Native, Auto or a number from 1 to 1024",
                    )
                ),
            }
        ),
    ] = Field(
        default="Native",
        description=(
            "Native: as the model has them. A number: its heads are pooled into so many, the mean of each group, and a"
            " worker starts only where that costs no more than kvCache.maxQualityLossPercent, which nearly every model"
            " exceeds that was not trained for it. Auto: in this version as Native."
        ),
    )
    variants: list[HeadVariant] | None = Field(
        default=None, max_length=16, description="Variants to plan with. This version serves one by its own uri."
    )


class LatencyTargets(Api):
    """How soon answers should begin, and how fast they should go on: bounds of the 95th percentile over a minute."""

    time_to_first_token_seconds: float | None = Field(
        default=None, ge=0.001, le=3600, description="From a request to the first token of its answer, in seconds."
    )
    time_per_output_token_seconds: float | None = Field(
        default=None, ge=0.0001, le=60, description="Between two tokens of an answer, in seconds."
    )


class AutoscalingSpec(Api):
    """How many replicas there may be, and when that changes."""

    mode: AutoscalingMode = Field(
        default=AutoscalingMode.ACTIVE,
        description=(
            "Active: the operator scales. Observe: it decides and reports, and replicas follow spec.replicas."
            " Off: replicas follow spec.replicas, which you, an HPA or KEDA write."
        ),
    )
    min_replicas: int = Field(default=1, ge=1, le=1000, description="Never fewer replicas than this.")
    max_replicas: int = Field(default=4, ge=1, le=1000, description="Never more replicas than this.")
    scale_up_utilization: float = Field(
        default=0.85,
        ge=0.1,
        le=1,
        description="More replicas when the demand in tokens passes this share of the capacity.",
    )
    scale_down_utilization: float = Field(
        default=0.70,
        ge=0.05,
        le=0.95,
        description="Fewer replicas when those that are left would stay under this share of their capacity.",
    )
    scale_down_stabilization_seconds: int = Field(
        default=300, ge=0, le=86_400, description="How long that has to hold before a replica goes."
    )
    slo: LatencyTargets | None = Field(
        default=None,
        description=(
            "Latency targets beside memory: while the median worker misses one, there is one replica more than memory"
            " asks for after another, and none goes."
        ),
    )


class DrainSpec(Api):
    """How a worker that has to go finishes its requests."""

    timeout_seconds: int = Field(
        default=120, ge=1, le=7200, description="How long running and queued requests may take to finish."
    )


class LLMDeploymentSpec(Api):
    """What is served, on what, and within which bounds."""

    model: ModelSpec = Field(description=f"Which model is served, and under which name. {RESTARTS}")
    workload: WorkloadSpec = Field(
        default_factory=WorkloadSpec,
        description=f"What requests look like. {RESTARTS}",
        json_schema_extra={"default": {}},
    )
    device: DeviceSpec = Field(description=f"What one worker computes on, and how much memory it has. {RESTARTS}")
    kv_cache: KVCacheSpec = Field(
        default_factory=KVCacheSpec,
        description=f"How the KV cache is laid out and stored. {RESTARTS}",
        json_schema_extra={"default": {}},
    )
    attention: AttentionSpec = Field(
        default_factory=AttentionSpec,
        description=f"How many KV heads the model is served with. {RESTARTS}",
        json_schema_extra={"default": {}},
    )
    replicas: int = Field(
        default=1,
        ge=0,
        le=MAX_INT32,
        description=f"Behind the scale subresource: where Active starts from, what Off and Observe follow. {LIVE}",
    )
    autoscaling: AutoscalingSpec = Field(
        default_factory=AutoscalingSpec,
        description=f"How many replicas there may be, and when that changes. {LIVE}",
        json_schema_extra={"default": {}},
    )
    drain: DrainSpec = Field(
        default_factory=DrainSpec,
        description=f"How a worker that has to go finishes its requests. {RESTARTS}",
        json_schema_extra={"default": {}},
    )
    worker: WorkerSpec = Field(
        default_factory=WorkerSpec,
        description=f"What the worker's pods get beside what the operator gives them. {RESTARTS}",
        json_schema_extra={"default": {}},
    )


# All rules stand here and not on the objects that they speak of: the API server would judge an object's own rules on
# its default too, which is {} and has no fields yet.
SPEC_RULES = rules(
    (
        "self.workload.profile != 'Custom'"
        " || (has(self.workload.meanPromptTokens) && has(self.workload.meanOutputTokens))",
        "workload.profile Custom needs workload.meanPromptTokens and workload.meanOutputTokens",
    ),
    (
        "self.autoscaling.minReplicas <= self.autoscaling.maxReplicas",
        "autoscaling.minReplicas is above autoscaling.maxReplicas: raise maxReplicas or lower minReplicas",
    ),
    (
        "self.autoscaling.scaleDownUtilization < self.autoscaling.scaleUpUtilization",
        "autoscaling.scaleDownUtilization must be below autoscaling.scaleUpUtilization, such as 0.70 and 0.85",
    ),
    (
        "self.autoscaling.mode != 'Active' || self.replicas <= self.autoscaling.maxReplicas",
        "replicas is where mode Active starts from and is above autoscaling.maxReplicas:"
        " raise autoscaling.maxReplicas, or use mode Off to set replicas yourself",
    ),
    (
        "self.device.kind != 'CPU' || has(self.device.memory) || (has(self.worker.resources)"
        " && has(self.worker.resources.limits) && 'memory' in self.worker.resources.limits)",
        "with device.kind CPU the memory is the container's limit:"
        " write device.memory, such as 2Gi, or worker.resources.limits.memory",
    ),
)
