"""`GET /v1/state`: everything that the operator needs, as docs/architecture.md writes it. Pure."""

from __future__ import annotations

from typing import Any

from kvtide_sizing.plan import Plan
from kvtide_worker.engine.messages import EngineState, LoadReport
from kvtide_worker.server.admission import AdmissionLimits, Capacity
from kvtide_worker.server.latency import RecentLatency


def state_report(
    state: EngineState,
    plan: Plan,
    *,
    version: str,
    model_name: str,
    device: str,
    ready: bool,
    draining: bool,
    started_at: float,
    report: LoadReport,
    latency: RecentLatency,
    limits: dict[str, int | bool],
) -> dict[str, Any]:
    """The engine's numbers and the plan's, in the contract's keys. Times are Unix seconds, sizes bytes.

    limits: as `limits_report` gives them
    """
    return {
        "version": version,
        "modelName": model_name,
        "ready": ready,
        "draining": draining,
        "startedAt": started_at,
        "sampledAt": state.sampled_at,
        "device": device,
        "engine": {
            "kernels": report.kernels,
            "weightPrecision": report.weight_precision,
            "dtype": report.dtype,
        },
        "kv": {
            "precision": state.kv.precision,
            "plannedPrecision": plan.kv.precision,
            "quality": [
                {"precision": check.precision, "kld": check.kld, "limit": check.limit, "passed": check.passed}
                for check in report.quality
            ],
            "fallback": report.fallback,
            "reencodable": state.kv.reencodable,
            "blockSizeTokens": state.block_size_tokens,
            "numBlocks": state.num_blocks,
            "capacityTokens": state.capacity_tokens,
            "liveBlocks": state.live_blocks,
            "cachedBlocks": state.cached_blocks,
            "freeBlocks": state.free_blocks,
            "liveTokens": state.live_tokens,
            "utilization": state.live_blocks / state.num_blocks,
        },
        "requests": {
            "running": state.running,
            "waiting": state.waiting,
            "queuedPromptTokens": state.queued_prompt_tokens,
            "expectedOutputTokens": state.expected_output_tokens,
        },
        "latency": {
            "timeToFirstTokenP95Seconds": latency.first_token_p95,
            "timePerOutputTokenP95Seconds": latency.output_token_p95,
            "windowSeconds": latency.window_seconds,
        },
        "limits": limits,
        "counters": {
            "preemptions": state.preemptions,
            "recomputedTokens": state.recomputed_tokens,
            "promptTokens": state.prompt_tokens,
            "generationTokens": state.generation_tokens,
            "requests": state.requests,
            "prefixCacheQueries": state.prefix_cache_queries,
            "prefixCacheHits": state.prefix_cache_hits,
        },
        "memory": {
            "predicted": {
                "weightsBytes": plan.memory.weights_bytes,
                "kvPoolBytes": plan.memory.kv_pool_bytes,
                "activationsBytes": plan.memory.activations_bytes,
                "overheadBytes": plan.memory.overhead_bytes,
                "reserveBytes": plan.memory.reserve_bytes,
            },
            "measured": {
                "weightsBytes": state.memory.weights_bytes,
                "kvPoolBytes": state.memory.kv_pool_bytes,
                "activationsBytes": state.memory.activations_bytes,
                "otherBytes": state.memory.other_bytes,
                "freeBytes": state.memory.free_bytes,
                "deviceBytes": state.memory.device_bytes,
                "peakBytes": state.memory.peak_bytes,
            },
        },
    }


def limits_report(state: EngineState, limits: AdmissionLimits, capacity: Capacity) -> dict[str, int | bool]:
    """The limits in force, in the contract's keys."""
    return {
        "batchLimit": state.batch_limit,
        "maxBatchLimit": state.max_batch_limit,
        "maxWaitingRequests": limits.most_requests(capacity),
        "maxWaitingPromptTokens": limits.most_prompt_tokens(capacity),
        "admissionPaused": limits.paused,
    }
