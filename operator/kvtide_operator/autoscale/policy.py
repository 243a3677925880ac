"""What the user allows the autoscaler to do."""

from dataclasses import dataclass

from kvtide_operator.api.spec import AutoscalingSpec


@dataclass(frozen=True)
class ScalingPolicy:
    """Bounds in replicas, thresholds as shares of the capacity, the window in seconds."""

    min_replicas: int
    max_replicas: int
    up: float
    down: float
    window_s: float

    @classmethod
    def of(cls, spec: AutoscalingSpec) -> "ScalingPolicy":
        """The policy that a spec asks for."""
        return cls(
            min_replicas=spec.min_replicas,
            max_replicas=spec.max_replicas,
            up=spec.scale_up_utilization,
            down=spec.scale_down_utilization,
            window_s=float(spec.scale_down_stabilization_seconds),
        )

    def clamp(self, replicas: int) -> int:
        """The nearest number of replicas within the bounds."""
        return max(self.min_replicas, min(self.max_replicas, replicas))
