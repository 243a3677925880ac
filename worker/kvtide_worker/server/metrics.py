"""`/metrics`: the engine's state as gauges and counters, under the names that dashboards and autoscalers know."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvtide_sizing.plan import Plan
from kvtide_worker.engine.messages import EngineState, LoadReport


class EngineCollector(Collector):
    """Reads the engine's last state at every scrape, so that a gauge is never older than the state itself."""

    def __init__(
        self, model_name: str, plan: Plan, report: LoadReport, state: Callable[[], EngineState | None]
    ) -> None:
        self._model_name = model_name
        self._plan = plan
        self._report = report
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Every metric that comes from the engine; none before it is ready."""
        state = self._state()
        if state is None:
            return
        yield from self._requests(state)
        yield from self._kv(state)
        yield self._cache_config(state)
        yield self._format(state)
        yield self._quality()
        yield self._memory(state)

    def _requests(self, state: EngineState) -> Iterator[Metric]:
        yield self._gauge("vllm:num_requests_running", "Requests in the engine's batch.", state.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests that wait for KV blocks or a place.", state.waiting)
        yield self._counter("vllm:num_preemptions", "Requests that lost their blocks.", state.preemptions)
        again = "Tokens computed again after their blocks were lost."
        yield self._counter("kvtide_recomputed_tokens", again, state.recomputed_tokens)
        for kind in ("prefix_cache", "gpu_prefix_cache"):
            looked_up, found = state.prefix_cache_queries, state.prefix_cache_hits
            yield self._counter(f"vllm:{kind}_queries", "Prompt tokens looked up in the prefix cache.", looked_up)
            yield self._counter(f"vllm:{kind}_hits", "Prompt tokens found in the prefix cache.", found)
        yield self._counter("vllm:prompt_tokens", "Prompt tokens computed.", state.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Tokens generated.", state.generation_tokens)
        yield self._gauge(
            "kvtide_queued_prompt_tokens", "Prompt tokens of the waiting requests.", state.queued_prompt_tokens
        )
        yield self._gauge(
            "kvtide_expected_output_tokens",
            "What waiting and running requests may still generate.",
            state.expected_output_tokens,
        )
        yield self._gauge("kvtide_batch_limit", "The most sequences in one step.", state.batch_limit)

    def _kv(self, state: EngineState) -> Iterator[Metric]:
        used = state.live_blocks / state.num_blocks
        for name in ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"):
            yield self._gauge(name, "Live KV blocks, as a part of all (1 is all).", used)
        yield self._by_state(
            "kvtide_kv_blocks",
            "KV blocks: live in a sequence, cached and reclaimable, or free.",
            {"live": state.live_blocks, "cached": state.cached_blocks, "free": state.free_blocks},
        )
        yield self._by_state(
            "kvtide_kv_tokens",
            "Tokens: held by sequences, cached, or that the free blocks have room for.",
            {
                "live": state.live_tokens,
                "cached": state.tokens_of(state.cached_blocks),
                "free": state.tokens_of(state.free_blocks),
            },
        )
        yield self._gauge("kvtide_kv_capacity_tokens", "Tokens that the KV pool holds.", state.capacity_tokens)

    def _cache_config(self, state: EngineState) -> Metric:
        """What autoscalers multiply the usage with: the labels are the values, and their product is the capacity."""
        info = GaugeMetricFamily(
            "vllm:cache_config_info",
            "The KV pool's shape; always 1.",
            labels=["model_name", "block_size", "num_gpu_blocks", "cache_dtype"],
        )
        dtype = state.kv.precision.lower()
        blocks = state.capacity_tokens // state.block_size_tokens
        info.add_metric([self._model_name, str(state.block_size_tokens), str(blocks), dtype], 1)
        return info

    def _format(self, state: EngineState) -> Metric:
        info = GaugeMetricFamily(
            "kvtide_kv_format_info",
            "How KV is stored now; always 1.",
            labels=["model_name", "layers", "key", "value", "block_size"],
        )
        for layers, key, value in state.kv.layers:
            info.add_metric([self._model_name, layers, key, value, str(state.block_size_tokens)], 1)
        return info

    def _quality(self) -> Metric:
        family = GaugeMetricFamily(
            "kvtide_kv_quality_kld",
            "KL divergence of a KV format's predictions from BF16's when the model was loaded, in nats; NaN where they "
            "were not finite.",
            labels=["model_name", "format"],
        )
        for check in self._report.quality:
            kld = math.nan if check.kld is None else check.kld
            family.add_metric([self._model_name, check.precision], kld)
        return family

    def _memory(self, state: EngineState) -> Metric:
        plan, measured = self._plan.memory, state.memory
        predicted = {
            "weights": plan.weights_bytes,
            "kv_pool": plan.kv_pool_bytes,
            "activations": plan.activations_bytes,
            "other": plan.overhead_bytes,
            "free": plan.reserve_bytes,
        }
        seen = {
            "weights": measured.weights_bytes,
            "kv_pool": measured.kv_pool_bytes,
            "activations": measured.activations_bytes,
            "other": measured.other_bytes,
            "free": measured.free_bytes,
        }
        family = GaugeMetricFamily(
            "kvtide_memory_bytes",
            "Where the device's memory is, as planned and as measured; either adds up to the device.",
            labels=["model_name", "component", "source"],
        )
        for source, parts in (("predicted", predicted), ("measured", seen)):
            for component, amount in parts.items():
                family.add_metric([self._model_name, component, source], amount)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _by_state(self, name: str, text: str, values: dict[str, int]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name", "state"])
        for state, value in values.items():
            family.add_metric([self._model_name, state], value)
        return family
