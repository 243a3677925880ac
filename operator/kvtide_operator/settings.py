"""What an operator process is told at its start, by the flags of `kvtide operator`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AdmissionSettings:
    """The webhook, by the names that the chart gives it.

    service:        the Service, in the operator's namespace, that leads to `port`
    configuration:  the ValidatingWebhookConfiguration that names the Service
    """

    service: str
    configuration: str
    port: int = 9443


@dataclass(frozen=True)
class OperatorSettings:
    """Times in seconds.

    namespaces:          those it serves; empty means all
    worker_image:        of workers whose resource names none; no part of an intent, so a new one restarts nothing
    operator_namespace:  where the operator runs: the Lease is there, and NetworkPolicies let it in from there
    identity:            who holds the Lease, unique per process
    admission:           the webhook, None where there is none
    """

    worker_image: str
    operator_namespace: str
    identity: str
    namespaces: tuple[str, ...] = ()
    lease_name: str = "kvtide-operator"
    metrics_port: int = 8080
    health_port: int = 8081
    resync_seconds: float = 2.0
    admission: AdmissionSettings | None = None

    @property
    def overheads_name(self) -> str:
        """The ConfigMap of measured overheads, in the operator's namespace: two releases there keep one each."""
        return f"{self.lease_name}-measured"
