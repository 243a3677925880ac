"""The conditions of an LLMDeployment and the closed list of their reasons."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from kvtide_operator.api.fields import Api


class ConditionType(StrEnum):
    """What a condition is about. All of them are recomputed on every pass."""

    PLANNED = "Planned"
    PROGRESSING = "Progressing"
    AVAILABLE = "Available"
    READY = "Ready"
    SCALING_ACTIVE = "ScalingActive"
    MEMORY_WITHIN_PLAN = "MemoryWithinPlan"
    DEGRADED = "Degraded"


class Reason(StrEnum):
    """Why a condition, a decision or an event is as it is."""

    # Planned
    FITS = "Fits"
    INSPECTING_MODEL = "InspectingModel"
    NOT_SUPPORTED = "NotSupported"
    INVALID_SPEC = "InvalidSpec"
    NO_DEVICE = "NoDevice"
    DEVICE_MEMORY_UNKNOWN = "DeviceMemoryUnknown"
    DOES_NOT_FIT = "DoesNotFit"
    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_DOWNLOAD_FAILED = "ModelDownloadFailed"
    INVALID_MODEL = "InvalidModel"
    UNSUPPORTED_MODEL = "UnsupportedModel"
    REFERENCE_MISSING = "ReferenceMissing"
    # Progressing, Available, Ready
    NOT_PLANNED = "NotPlanned"
    STARTING = "Starting"
    ROLLING_OUT = "RollingOut"
    DRAINING = "Draining"
    STABLE = "Stable"
    WORKERS_READY = "WorkersReady"
    NO_READY_WORKERS = "NoReadyWorkers"
    SCALED_TO_ZERO = "ScaledToZero"
    # Degraded
    AS_EXPECTED = "AsExpected"
    IMAGE_PULL_ERROR = "ImagePullError"
    CONTAINER_CRASH_LOOP_BACK_OFF = "ContainerCrashLoopBackOff"
    CONTAINER_OOM_KILLED = "ContainerOOMKilled"
    CONTAINER_START_ERROR = "ContainerStartError"
    UNSCHEDULABLE = "Unschedulable"
    INSUFFICIENT_GPU = "InsufficientGPU"
    GPU_MEMORY_BUSY = "GPUMemoryBusy"
    NAME_TAKEN = "NameTaken"
    APPLY_REFUSED = "ApplyRefused"
    RECONCILE_FAILED = "ReconcileFailed"
    PROBE_FAILED = "ProbeFailed"
    PRECISION_FALLBACK = "PrecisionFallback"
    NOT_AS_PLANNED = "NotAsPlanned"
    REFERENCE_UNREADABLE = "ReferenceUnreadable"
    # ScalingActive and decisions
    MODE_OFF = "ModeOff"
    METRICS_MISSING = "MetricsMissing"
    METRICS_STALE = "MetricsStale"
    METRICS_MISLABELLED = "MetricsMislabelled"
    WITHIN_BOUNDS = "WithinBounds"
    DEMAND_ABOVE_TARGET = "DemandAboveTarget"
    LATENCY_ABOVE_TARGET = "LatencyAboveTarget"
    DEMAND_BELOW_TARGET = "DemandBelowTarget"
    REPLICAS_STUCK = "ReplicasStuck"
    STABILIZING = "Stabilizing"
    AT_MAX_REPLICAS = "AtMaxReplicas"
    AT_MIN_REPLICAS = "AtMinReplicas"
    BELOW_MIN_REPLICAS = "BelowMinReplicas"
    ABOVE_MAX_REPLICAS = "AboveMaxReplicas"
    # The precision of KV as a lever
    KV_REENCODED = "KVReencoded"
    KV_AS_PLANNED = "KVAsPlanned"
    # MemoryWithinPlan
    WITHIN_PLAN = "WithinPlan"
    ABOVE_PLAN = "AbovePlan"
    BELOW_PLAN = "BelowPlan"
    NOT_MEASURED = "NotMeasured"


ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(Api):
    """One condition, in the form that kubectl and every tool knows."""

    type: ConditionType = Field(description="What the condition is about.")
    status: ConditionStatus = Field(description="True, False or Unknown.")
    reason: str = Field(min_length=1, max_length=64, description="Why, as one word of a closed list.")
    message: str = Field(max_length=2048, description="Why, as a sentence with the numbers.")
    last_transition_time: str = Field(
        json_schema_extra={"format": "date-time"}, description="When status last changed."
    )
    observed_generation: int = Field(description="The generation of the spec that this was judged for.")
