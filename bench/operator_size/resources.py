"""The LLMDeployments of the benchmark, and what their workers say of themselves."""

from __future__ import annotations

from typing import Any

from kvtide_operator.api import names
from kvtide_operator.api.spec import LLMDeploymentSpec
from kvtide_operator.plan.device import resolve_device
from kvtide_operator.plan.planner import make_plan
from kvtide_sizing.models.catalog import builtin_for
from kvtide_sizing.models.model_uri import ModelUri

Json = dict[str, Any]
NAMESPACES = 10
SPARE = 3


def namespace(number: int) -> str:
    """The namespace of the resource with this number."""
    return f"team-{number % NAMESPACES}"


def name(number: int) -> str:
    """The name of the resource with this number."""
    return f"model-{number:04}"


def resource(number: int, workers: int) -> Json:
    """One resource that wants so many workers, and may have some more."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name(number), "namespace": namespace(number)},
        "spec": {
            "model": {"uri": "hf://HuggingFaceTB/SmolLM2-135M-Instruct"},
            "workload": {"profile": "Chat", "maxContextTokens": 2048},
            "device": {"kind": "CPU", "memory": "2Gi"},
            "replicas": workers,
            "autoscaling": {"minReplicas": workers, "maxReplicas": workers + SPARE},
        },
    }


def idle_state(workers: int) -> Json:
    """`GET /v1/state` (docs/architecture.md) of a worker of such a resource that does nothing, but for its name."""
    spec = LLMDeploymentSpec.model_validate(resource(0, workers)["spec"])
    shape = builtin_for(ModelUri.parse(spec.model.uri))
    assert shape is not None
    plan = make_plan(spec, shape, resolve_device(spec, None)).to_json()
    kv, memory = plan["kv"], plan["memory"]
    other = memory["overheadBytes"] // 2
    taken = memory["weightsBytes"] + memory["kvPoolBytes"] + memory["activationsBytes"] + other
    return {
        "version": "0.1.0",
        "ready": True,
        "draining": False,
        "device": "cpu",
        "engine": {"kernels": "cpu-avx512", "weightPrecision": plan["weightPrecision"], "dtype": "bfloat16"},
        "kv": {
            "precision": kv["precision"],
            "plannedPrecision": kv["precision"],
            "quality": [],
            "fallback": None,
            "reencodable": [],
            "blockSizeTokens": kv["blockSizeTokens"],
            "numBlocks": kv["numBlocks"],
            "capacityTokens": kv["capacityTokens"],
            "liveBlocks": 0,
            "cachedBlocks": 0,
            "freeBlocks": kv["numBlocks"],
            "liveTokens": 0,
            "utilization": 0.0,
        },
        "requests": {"running": 0, "waiting": 0, "queuedPromptTokens": 0, "expectedOutputTokens": 0},
        "latency": {"timeToFirstTokenP95Seconds": None, "timePerOutputTokenP95Seconds": None, "windowSeconds": 60},
        "limits": {
            "batchLimit": plan["batchLimit"],
            "maxBatchLimit": plan["batchLimit"],
            "maxWaitingRequests": 8 * plan["batchLimit"],
            "maxWaitingPromptTokens": kv["capacityTokens"],
            "admissionPaused": False,
        },
        "counters": {
            "preemptions": 0,
            "promptTokens": 0,
            "generationTokens": 0,
            "requests": 0,
            "prefixCacheQueries": 0,
            "prefixCacheHits": 0,
        },
        "memory": {
            "predicted": {key: memory[key] for key in memory if key != "deviceBytes"},
            "measured": {
                "weightsBytes": memory["weightsBytes"],
                "kvPoolBytes": memory["kvPoolBytes"],
                "activationsBytes": memory["activationsBytes"],
                "otherBytes": other,
                "freeBytes": memory["deviceBytes"] - taken,
                "deviceBytes": memory["deviceBytes"],
                "peakBytes": taken,
            },
        },
    }


def busy_parts(idle: Json) -> dict[str, Json]:
    """What changes in the state of such a worker when its pool is 95 % full and requests run."""
    kv = idle["kv"]
    blocks = kv["numBlocks"] * 95 // 100
    return {
        "kv": {
            "liveBlocks": blocks,
            "freeBlocks": kv["numBlocks"] - blocks,
            "liveTokens": blocks * kv["blockSizeTokens"],
            "utilization": blocks / kv["numBlocks"],
        },
        "requests": {"running": idle["limits"]["batchLimit"] // 2, "expectedOutputTokens": 4096},
    }
