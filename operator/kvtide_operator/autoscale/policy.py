"""What the user allows the autoscaler to do."""

from dataclasses import dataclass, field

from kvtide_operator.api.spec import AutoscalingSpec
from kvtide_operator.autoscale.latency import Targets


@dataclass(frozen=True)
class ScalingPolicy:
    """Bounds in replicas, thresholds as shares of the capacity, the window in seconds, targets of latencies."""

    min_replicas: int
    max_replicas: int
    up: float
    down: float
    window_s: float
    targets: Targets = field(default_factory=Targets)

    @classmethod
    def of(cls, spec: AutoscalingSpec) -> "ScalingPolicy":
        """The policy that a spec asks for."""
        return cls(
            min_replicas=spec.min_replicas,
            max_replicas=spec.max_replicas,
            up=spec.scale_up_utilization,
            down=spec.scale_down_utilization,
            window_s=float(spec.scale_down_stabilization_seconds),
            targets=targets_of(spec),
        )

    def clamp(self, replicas: int) -> int:
        """The nearest number of replicas within the bounds."""
        return max(self.min_replicas, min(self.max_replicas, replicas))


def targets_of(spec: AutoscalingSpec) -> Targets:
    """The latency targets that a spec gives."""
    if spec.slo is None:
        return Targets()
    return Targets(spec.slo.time_to_first_token_seconds, spec.slo.time_per_output_token_seconds)
