"""What Prometheus reads of the webhook: how many reviews with which result, and how long they took."""

from prometheus_client import CollectorRegistry, Counter, Histogram

# The API server waits at most timeoutSeconds, and everybody who applies something waits with it.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class AdmissionMetrics:
    """Series of this process: each replica has its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._reviews = Counter(
            "kvtide_admission_reviews",
            "Reviews, by result: allowed, denied, or failed, which admits without a judgement.",
            ("result",),
            registry=registry,
        )
        self._duration = Histogram(
            "kvtide_admission_duration_seconds", "One review.", buckets=BUCKETS, registry=registry
        )

    def reviewed(self, result: str, duration_s: float) -> None:
        """One review has ended."""
        self._reviews.labels(result).inc()
        self._duration.observe(duration_s)
