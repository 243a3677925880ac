"""`kvtide operator`: reads the flags and starts the operator. Imports nothing heavy before it runs."""

import logging
import os
import socket
import uuid
from pathlib import Path

import click

from kvtide_operator.settings import AdmissionSettings, OperatorSettings

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def _own_namespace() -> str:
    """The namespace of the pod that this runs in; `default` outside of a cluster."""
    return NAMESPACE_FILE.read_text(encoding="utf-8").strip() if NAMESPACE_FILE.exists() else "default"


def _identity() -> str:
    """Who holds the Lease. A pod's name is unique, so its restarted container takes over from itself at once."""
    host = os.environ.get("HOSTNAME") or socket.gethostname()
    return host if NAMESPACE_FILE.exists() else f"{host}-{uuid.uuid4().hex[:8]}"


@click.command("operator")
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    envvar="KVTIDE_NAMESPACES",
    help="A namespace to serve; may be repeated. Default: all of the cluster.",
)
@click.option(
    "--worker-image",
    required=True,
    envvar="KVTIDE_WORKER_IMAGE",
    help="Image of workers whose resource names none.",
)
@click.option("--metrics-port", default=8080, show_default=True, help="Port of GET /metrics.")
@click.option("--health-port", default=8081, show_default=True, help="Port of GET /healthz and GET /readyz.")
@click.option(
    "--lease-name", default="kvtide-operator", show_default=True, help="The Lease of the one active operator."
)
@click.option(
    "--lease-namespace",
    envvar="KVTIDE_LEASE_NAMESPACE",
    help="Where the Lease is, and the operator itself. Default: the pod's own namespace.",
)
@click.option(
    "--resync-seconds",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0.5, 60),
    help="How often a resource is looked at that has requests or waits for something; a calm one less often.",
)
@click.option(
    "--admission-service",
    help="The Service of the admission webhook, in the operator's namespace. Default: no webhook.",
)
@click.option("--admission-configuration", help="The ValidatingWebhookConfiguration that names the Service.")
@click.option("--admission-port", default=9443, show_default=True, help="Port of the webhook's POST /review (TLS).")
@click.option("--verbose", is_flag=True, help="Log every pass.")
def operator_command(
    namespaces: tuple[str, ...],
    worker_image: str,
    metrics_port: int,
    health_port: int,
    lease_name: str,
    lease_namespace: str | None,
    resync_seconds: float,
    admission_service: str | None,
    admission_configuration: str | None,
    admission_port: int,
    verbose: bool,
) -> None:
    """Runs the Kubernetes operator for LLMDeployments."""
    if (admission_service is None) != (admission_configuration is None):
        raise click.UsageError("--admission-service and --admission-configuration belong together")
    # aiohttp, kopf and the Kubernetes client take a second to import: only who runs the operator pays.
    from kvtide_operator.edge.run import run_operator

    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # Kopf says of every event that its handler succeeded; ours only ask for a pass.
    logging.getLogger("kopf.objects").setLevel(logging.DEBUG if verbose else logging.WARNING)
    settings = OperatorSettings(
        worker_image=worker_image,
        operator_namespace=lease_namespace or _own_namespace(),
        identity=_identity(),
        namespaces=namespaces,
        lease_name=lease_name,
        metrics_port=metrics_port,
        health_port=health_port,
        resync_seconds=resync_seconds,
        admission=AdmissionSettings(admission_service, admission_configuration, admission_port)
        if admission_service and admission_configuration
        else None,
    )
    raise SystemExit(run_operator(settings))
