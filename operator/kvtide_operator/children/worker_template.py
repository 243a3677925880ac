"""The pod template of the workers. Rendered once for an intent, and kept: see `plan.record`."""

from typing import Any

from kvtide_operator.api import names
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.spec import DeviceKind, Precision
from kvtide_operator.children import pod
from kvtide_operator.children.manifest import Manifest, common_labels
from kvtide_operator.plan.device import container_memory

# The kubelet's SIGKILL comes this long after the worker's own end of draining.
GRACE_AFTER_DRAIN_S = 15
# One that is ended because it hangs has this long.
HUNG_GRACE_S = 10
# A start loads weights from a slow disk or the network: this long, and longer for larger models.
STARTUP_BASE_S = 300
STARTUP_BYTES_PER_S = 50_000_000


def startup_budget_s(weights_bytes: int) -> int:
    """Seconds that a worker may take to become ready before it is restarted."""
    return STARTUP_BASE_S + weights_bytes // STARTUP_BYTES_PER_S


def _arguments(resource: LLMDeployment) -> list[str]:
    spec = resource.spec
    pairs = {
        "--model": spec.model.uri,
        "--served-name": resource.served_name,
        "--plan": "/etc/kvtide/plan.json",
        "--device": "cpu" if spec.device.kind is DeviceKind.CPU else "cuda",
        "--host": "0.0.0.0",  # noqa: S104  a pod's own network namespace
        "--port": str(names.HTTP_PORT),
        "--admin-port": str(names.ADMIN_PORT),
        "--admin-token-file": "/etc/kvtide-admin/token",
        "--drain-seconds": str(spec.drain.timeout_seconds),
    }
    return [word for pair in pairs.items() for word in pair]


def _later_options(resource: LLMDeployment) -> list[dict[str, str]]:
    """What `kvtide serve` was taught after its first release, as variables: one whose image is pinned to an earlier
    release ends at an option that it does not know, and passes over a variable."""
    # Who leaves the precision to the operator lets it change while it serves; looking what it may be takes a while.
    auto = resource.spec.kv_cache.precision is Precision.AUTO
    return [{"name": "KVTIDE_REENCODABLE", "value": "1"}] if auto else []


def _resources(resource: LLMDeployment) -> dict[str, Any]:
    """The user's requests and limits; the device's number, and the memory that was planned for, are ours to say."""
    device, wanted = resource.spec.device, resource.spec.worker.resources
    requests: dict[str, Any] = dict(wanted.requests or {}) if wanted else {}
    limits: dict[str, Any] = dict(wanted.limits or {}) if wanted else {}
    if device.kind is DeviceKind.CPU:
        requests["memory"] = limits["memory"] = container_memory(resource.spec)
    else:
        limits[device.resource_name] = str(device.count)
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def _probes(weights_bytes: int) -> dict[str, Any]:
    def get(path: str) -> dict[str, Any]:
        return {"path": path, "port": "http"}

    return {
        "startupProbe": {
            "httpGet": get("/ready"),
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": startup_budget_s(weights_bytes),
        },
        "readinessProbe": {
            "httpGet": get("/ready"),
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        "livenessProbe": {
            "httpGet": get("/health"),
            "periodSeconds": 10,
            "timeoutSeconds": 10,
            "failureThreshold": 4,
            # What hangs finishes no stream and hears no SIGTERM: to wait for its drain would only keep it longer.
            "terminationGracePeriodSeconds": HUNG_GRACE_S,
        },
    }


def worker_template(
    resource: LLMDeployment,
    intent: str,
    image: str,
    weights_bytes: int,
    avoid: tuple[str, tuple[str, ...]] | None = None,
) -> Manifest:
    """The template for the intent with this hash.

    avoid: a label and the values of nodes whose devices are smaller than was planned for
    Raises InvalidModelUri where the model's URI cannot be read, and InvalidDevice for a CPU without a memory.
    """
    worker = resource.spec.worker
    volumes, mounts = pod.volumes(resource)
    volumes += [
        # The plan's key carries the intent's hash: a pod that restarts during a rollout keeps its own plan.
        {
            "name": "plan",
            "configMap": {
                "name": plan_name(resource),
                "items": [{"key": f"plan-{intent}.json", "path": "plan.json"}],
            },
        },
        {"name": "admin-token", "secret": {"secretName": admin_secret_name(resource)}},
    ]
    mounts += [
        {"name": "plan", "mountPath": "/etc/kvtide", "readOnly": True},
        {"name": "admin-token", "mountPath": "/etc/kvtide-admin", "readOnly": True},
    ]
    container = {
        "name": "worker",
        "image": image,
        "command": ["kvtide", "serve"],
        "args": _arguments(resource),
        "env": _later_options(resource) + pod.environment(resource),
        "ports": [
            {"name": "http", "containerPort": names.HTTP_PORT},
            {"name": "admin", "containerPort": names.ADMIN_PORT},
        ],
        "resources": _resources(resource),
        "volumeMounts": mounts,
        "securityContext": pod.HARDENED_CONTAINER,
        **_probes(weights_bytes),
    }
    metadata: dict[str, Any] = {
        "labels": {**(worker.labels or {}), **common_labels(resource), names.INTENT_LABEL: intent},
    }
    if worker.annotations:
        metadata["annotations"] = worker.annotations
    pod_spec = {
        **pod.HARDENED_POD,
        **pod.placement(resource, avoid),
        "terminationGracePeriodSeconds": resource.spec.drain.timeout_seconds + GRACE_AFTER_DRAIN_S,
        "containers": [container],
        "volumes": volumes,
    }
    if worker.topology_spread_constraints:
        pod_spec["topologySpreadConstraints"] = worker.topology_spread_constraints
    return {"metadata": metadata, "spec": pod_spec}


def plan_name(resource: LLMDeployment) -> str:
    """The ConfigMap with the plan."""
    return f"{resource.name}-plan"


def admin_secret_name(resource: LLMDeployment) -> str:
    """The Secret with the token of the workers' admin port."""
    return f"{resource.name}-admin"
