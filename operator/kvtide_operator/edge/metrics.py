"""What Prometheus reads of the operator itself, on the port `metrics`."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.status import ScalingDecision, Status
from kvtide_operator.reconcile.pods import seconds

LABELS = ("namespace", "name")
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """All series of one operator process. Series of a resource go with it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, LABELS, registry=self.registry)

        prefix = "kvtide_llmdeployment"
        self._desired = gauge(f"{prefix}_desired_replicas", "Replicas that the resource should have.")
        self._ready = gauge(f"{prefix}_ready_replicas", "Workers that are ready.")
        self._demand = gauge(f"{prefix}_demand_tokens", "KV tokens that live and queued requests need.")
        self._capacity = gauge(f"{prefix}_capacity_tokens", "KV tokens that the ready workers hold.")
        self._utilization = gauge(f"{prefix}_kv_utilization", "Live blocks over all blocks, 0 to 1.")
        self._batch_limit = gauge(f"{prefix}_batch_limit", "Lowest batch limit of a ready worker.")
        self._last_decision = gauge(
            "kvtide_scaling_last_decision_timestamp_seconds", "When the last decision was made."
        )
        self._watched = Gauge(
            "kvtide_operator_watched_namespace",
            "1 for a namespace that this operator serves, * for all; none while another one holds the Lease.",
            ("namespace",),
            registry=self.registry,
        )
        self._decisions = Counter(
            "kvtide_scaling_decisions", "Scaling decisions.", (*LABELS, "reason"), registry=self.registry
        )
        self._duration = Histogram(
            "kvtide_reconcile_duration_seconds", "One pass.", LABELS, buckets=BUCKETS, registry=self.registry
        )
        self._errors = Counter("kvtide_reconcile_errors", "Passes that failed.", LABELS, registry=self.registry)

    def report(self, resource: LLMDeployment, status: Status, decision: ScalingDecision | None) -> None:
        """Shows a resource as its status says. What is not known has no series: missing is not zero."""
        labels = (resource.namespace, resource.name)
        scaling, kv = status.autoscaling, status.kv
        self._ready.labels(*labels).set(status.ready_replicas)
        _show(self._desired, labels, scaling.desired_replicas if scaling else None)
        _show(self._demand, labels, scaling.demand_tokens if scaling else None)
        _show(self._capacity, labels, kv.capacity_tokens if kv else None)
        _show(self._utilization, labels, kv.utilization if kv else None)
        _show(self._batch_limit, labels, status.batch_limit)
        if decision is not None:
            self._decisions.labels(*labels, decision.reason).inc()
            self._last_decision.labels(*labels).set(seconds(decision.time))

    def watched(self, namespaces: Iterable[str]) -> None:
        """These namespaces are served; none means all of them, which is `*`."""
        for namespace in tuple(namespaces) or ("*",):
            self._watched.labels(namespace).set(1)

    def passed(self, namespace: str, name: str, duration_s: float) -> None:
        """One pass took this long."""
        self._duration.labels(namespace, name).observe(duration_s)

    def failed(self, namespace: str, name: str) -> None:
        """One pass failed."""
        self._errors.labels(namespace, name).inc()

    def forget(self, namespace: str, name: str) -> None:
        """Removes the series of a resource that is gone."""
        gone = {"namespace": namespace, "name": name}
        for metric in (
            self._desired,
            self._ready,
            self._demand,
            self._capacity,
            self._utilization,
            self._batch_limit,
            self._last_decision,
            self._decisions,
            self._duration,
            self._errors,
        ):
            metric.remove_by_labels(gone)


def _show(gauge: Gauge, labels: tuple[str, str], value: float | None) -> None:
    if value is None:
        gauge.remove_by_labels(dict(zip(LABELS, labels, strict=True)))
    else:
        gauge.labels(*labels).set(value)
