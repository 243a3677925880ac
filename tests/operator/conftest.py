"""Builders of what the operator reads: resources, pods and worker states, in the API server's own JSON."""

from collections.abc import Callable
from typing import Any

import pytest

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.reconcile.observed import Answer, Observed, Sample, Surroundings
from kvtide_operator.reconcile.pods import PodView
from kvtide_operator.reconcile.reconcile import reconcile

Json = dict[str, Any]
NOW = 1_767_225_660.0  # 2026-01-01T00:01:00Z


@pytest.fixture
def now() -> float:
    return NOW


@pytest.fixture
def make_resource() -> Callable[..., LLMDeployment]:
    """A resource whose model is in the catalogue; keyword arguments are parts of its spec."""

    def make(status: Json | None = None, **spec: Any) -> LLMDeployment:
        defaults = {
            "model": {"uri": "hf://HuggingFaceTB/SmolLM2-135M-Instruct"},
            "device": {"kind": "CPU", "memory": "2Gi"},
        }
        metadata = {"namespace": "team", "name": "chat", "uid": "u-1", "generation": 3}
        return LLMDeployment.parse({"metadata": metadata, "spec": {**defaults, **spec}, "status": status})

    return make


@pytest.fixture
def make_state() -> Callable[..., WorkerState]:
    """A worker's state as docs/architecture.md has it; utilization follows from the live tokens unless given."""

    def make(
        live: int = 0,
        capacity: int = 10_000,
        running: int = 0,
        waiting: int = 0,
        queued: int = 0,
        expected: int = 0,
        limit: int = 16,
        max_limit: int = 16,
        preemptions: int = 0,
        utilization: float | None = None,
        started_at: float = NOW - 600,
        measured: Json | None = None,
        tokens: tuple[int, int] = (900, 210),
    ) -> WorkerState:
        return WorkerState.model_validate(
            {
                "version": "0.1.0",
                "modelName": "chat",
                "ready": True,
                "draining": False,
                "startedAt": started_at,
                "sampledAt": NOW,
                "device": "cpu",
                "kv": {
                    "precision": "BF16",
                    "capacityTokens": capacity,
                    "liveTokens": live,
                    "utilization": live / capacity if utilization is None else utilization,
                },
                "requests": {
                    "running": running,
                    "waiting": waiting,
                    "queuedPromptTokens": queued,
                    "expectedOutputTokens": expected,
                },
                "limits": {"batchLimit": limit, "maxBatchLimit": max_limit},
                "counters": {
                    "preemptions": preemptions,
                    "promptTokens": tokens[0],
                    "generationTokens": tokens[1],
                    "requests": 5,
                },
                "memory": {"predicted": {}, "measured": measured or {}},
            }
        )

    return make


@pytest.fixture
def make_pod() -> Callable[..., Json]:
    """A worker pod as the API server has it."""

    def make(
        name: str = "chat-a",
        ready: bool = True,
        intent: str | None = None,
        created: str = "2025-12-31T12:00:00Z",
        **status: Any,
    ) -> Json:
        labels = {"app.kubernetes.io/name": "kvtide-worker", "serving.kvtide.dev/name": "chat"}
        if intent is not None:
            labels["serving.kvtide.dev/intent"] = intent
        return {
            "metadata": {"name": name, "namespace": "team", "creationTimestamp": created, "labels": labels},
            "status": {
                "phase": "Running",
                "podIP": "10.0.0.1",
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                **status,
            },
        }

    return make


@pytest.fixture
def observe() -> Callable[..., Observed]:
    """A sight from live JSON: children by kind and name, pods, and worker states by pod name.

    answers: by pod name; without it every pod that is ready has answered
    """

    def see(
        resource: LLMDeployment,
        children: list[Json] | None = None,
        pods: list[Json] | None = None,
        states: dict[str, WorkerState] | None = None,
        inspector: Json | None = None,
        age_s: float = 0.5,
        answers: dict[str, Answer] | None = None,
        **more: Any,
    ) -> Observed:
        return Observed(
            resource=resource,
            children={(child["kind"], child["metadata"]["name"]): child for child in children or []},
            workers=tuple(PodView.parse(pod) for pod in pods or []),
            inspector=PodView.parse(inspector) if inspector else None,
            samples={name: Sample(state, age_s) for name, state in (states or {}).items()},
            answers={pod["metadata"]["name"]: Answer(True) for pod in pods or []} if answers is None else answers,
            **more,
        )

    return see


@pytest.fixture
def surroundings() -> Surroundings:
    return Surroundings("registry/worker:1", "kvtide-system", "fresh-token")


@pytest.fixture
def first(
    make_resource: Callable[..., LLMDeployment],
    observe: Callable[..., Observed],
    surroundings: Surroundings,
    now: float,
) -> list[Json]:
    """The children of a resource with default settings, as its first pass makes them."""
    return list(reconcile(observe(make_resource()), surroundings, now).apply)
