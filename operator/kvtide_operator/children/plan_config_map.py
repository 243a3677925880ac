"""The ConfigMap that keeps the plans and templates, and from which workers read theirs."""

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.children.manifest import Manifest, child
from kvtide_operator.children.worker_template import plan_name
from kvtide_operator.plan.record import Record


def plan_config_map(resource: LLMDeployment, record: Record) -> Manifest:
    """The record as a ConfigMap."""
    return child(resource, "v1", "ConfigMap", plan_name(resource), {"data": record.to_data()})
