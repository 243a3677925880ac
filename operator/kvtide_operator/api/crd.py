"""The CustomResourceDefinition as a document."""

from typing import Any

from kvtide_operator.api import names
from kvtide_operator.api.schema import structural
from kvtide_operator.api.spec import SPEC_RULES, LLMDeploymentSpec
from kvtide_operator.api.status import Status

# Children are called NAME and NAME-inspect, and the Deployment's pods NAME-HASH-HASH, in 63 characters.
NAME_RULE = {
    "rule": "self.metadata.name.size() <= 50 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "message": (
        "the name becomes the Service's name: use at most 50 lower-case letters, digits and '-', starting with a letter"
    ),
}


def printer_columns() -> list[dict[str, Any]]:
    """The columns of `kubectl get llmd`."""
    columns = [
        ("Model", "string", ".spec.model.uri"),
        ("Precision", "string", ".status.plan.kv.precision"),
        ("Block", "integer", ".status.plan.kv.blockSizeTokens"),
        ("Ready", "integer", ".status.readyReplicas"),
        ("Desired", "integer", ".status.autoscaling.desiredReplicas"),
        ("KV%", "integer", ".status.kv.utilizationPercent"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ]
    # With -o wide: why it is not ready, what the batch is and could be, and why there are as many replicas.
    wide = [
        ("Why", "string", '.status.conditions[?(@.type=="Ready")].reason'),
        ("Limit", "integer", ".status.batchLimit"),
        ("Planned-Limit", "integer", ".status.plan.batchLimit"),
        ("Running", "integer", ".status.requests.running"),
        ("Waiting", "integer", ".status.requests.waiting"),
        ("Demand", "integer", ".status.autoscaling.demandTokens"),
        ("Capacity", "integer", ".status.kv.capacityTokens"),
        ("Scaling", "string", ".status.autoscaling.reason"),
        ("Scaled", "date", ".status.autoscaling.lastScaleTime"),
    ]
    return [
        {"name": name, "type": kind, "jsonPath": path, **({"priority": 1} if more else {})}
        for more, group in ((False, columns), (True, wide))
        for name, kind, path in group
    ]


def custom_resource_definition() -> dict[str, Any]:
    """The whole CRD, ready for `kubectl apply`."""
    spec_schema = structural(LLMDeploymentSpec) | SPEC_RULES
    schema = {
        "type": "object",
        "description": "A large language model, planned, measured and scaled on the memory of its KV cache.",
        "required": ["spec"],
        "x-kubernetes-validations": [NAME_RULE],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec_schema,
            "status": structural(Status),
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": ["llmd"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": printer_columns(),
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }
