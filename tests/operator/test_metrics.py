"""The operator's series, by the names of the design."""

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import generate_latest

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.status import ScalingDecision, Status
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.edge.metrics import Metrics
from kvtide_operator.plan.intent import intent_hash
from kvtide_operator.reconcile.observed import Observed, Surroundings
from kvtide_operator.reconcile.reconcile import reconcile

CHAT = '{name="chat",namespace="team"}'


def test_the_series_of_a_resource_come_and_go_with_it(
    make_resource: Callable[..., LLMDeployment],
    make_pod: Callable[..., dict[str, Any]],
    make_state: Callable[..., WorkerState],
    observe: Callable[..., Observed],
    surroundings: Surroundings,
    now: float,
    first: list[dict[str, Any]],
) -> None:
    resource = make_resource()
    seen = observe(resource, first, [make_pod(intent=intent_hash(resource))], {"chat-a": make_state(live=9_000)})
    actions = reconcile(seen, surroundings, now)
    metrics = Metrics()
    metrics.report(resource, actions.status, actions.decision)
    metrics.passed("team", "chat", 0.02)
    metrics.failed("team", "chat")
    text = generate_latest(metrics.registry).decode()
    for line in (
        f"kvtide_llmdeployment_desired_replicas{CHAT} 2.0",
        f"kvtide_llmdeployment_ready_replicas{CHAT} 1.0",
        f"kvtide_llmdeployment_demand_tokens{CHAT} 9000.0",
        f"kvtide_llmdeployment_capacity_tokens{CHAT} 10000.0",
        f"kvtide_llmdeployment_kv_utilization{CHAT} 0.9",
        f"kvtide_llmdeployment_batch_limit{CHAT} 16.0",
        'kvtide_scaling_decisions_total{name="chat",namespace="team",reason="DemandAboveTarget"} 1.0',
        f"kvtide_scaling_last_decision_timestamp_seconds{CHAT} 1.76722566e+09",
        f"kvtide_reconcile_duration_seconds_count{CHAT} 1.0",
        f"kvtide_reconcile_errors_total{CHAT} 1.0",
    ):
        assert line in text
    metrics.forget("team", "chat")
    assert "chat" not in generate_latest(metrics.registry).decode()


def test_what_is_not_known_has_no_series(make_resource: Callable[..., LLMDeployment]) -> None:
    metrics, resource = Metrics(), make_resource()
    decision: ScalingDecision | None = None
    metrics.report(resource, Status(), decision)
    text = generate_latest(metrics.registry).decode()
    assert f"kvtide_llmdeployment_ready_replicas{CHAT} 0.0" in text
    assert f"demand_tokens{CHAT}" not in text
    assert f"kv_utilization{CHAT}" not in text


@pytest.mark.parametrize(("namespaces", "series"), [((), {"*"}), (("a", "b"), {"a", "b"})])
def test_which_namespaces_are_served(namespaces: tuple[str, ...], series: set[str]) -> None:
    metrics = Metrics()
    metrics.watched(namespaces)
    found = {
        sample.labels["namespace"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "kvtide_operator_watched_namespace"
    }
    assert found == dict.fromkeys(series, 1.0)
