"""The rules that people scale inference with today, as their sources have them; each behind Kubernetes' HPA.

HPA         kubernetes/pkg/controller/podautoscaler: ratio of a Pods metric's mean to its target, no change within
            10 %, pods that are not ready count as 0 before a scale-up; every 15 s; up by 100 % or 4 pods in 15 s,
            whichever is more; down to the highest recommendation of the last 300 s (autoscaling/v2 defaults)
KEDA        an AverageValue trigger: ceil(sum / threshold), through the same HPA
WVA v1, v2  llm-d workload-variant-autoscaler: saturation, and token capacity; a cycle of 60 s, metrics as
            max_over_time[1m], the wish through the same HPA
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean, median

from bench.autoscale.cluster import View
from kvtide_operator.autoscale.worker_state import WorkerState

PERIOD_S = 15.0
TOLERANCE = 0.1
DOWN_WINDOW_S = 300.0
CYCLE_S = 60.0

States = list[WorkerState]
Wish = Callable[[States, View, float], int]


@dataclass
class Behind:
    """A wish for replicas, held to the HPA's default behaviour and the resource's bounds."""

    name: str
    wish: Wish
    bounds: tuple[int, int]
    _recommended: deque[tuple[float, int]] = field(default_factory=deque)
    _next_s: float = 0.0

    def look(self, view: View, now_s: float) -> int:
        """What the HPA writes to `scale`."""
        if now_s < self._next_s or not view.ready:
            return view.replicas
        self._next_s = now_s + PERIOD_S
        wished = self.wish([one.state(now_s) for one in view.ready], view, now_s)
        self._recommended.append((now_s, wished))
        while self._recommended[0][0] < now_s - DOWN_WINDOW_S:
            self._recommended.popleft()
        current = view.replicas
        if wished < current:
            wished = min(current, max(replicas for _, replicas in self._recommended))
        wished = min(wished, max(2 * current, current + 4))
        return max(self.bounds[0], min(self.bounds[1], wished))


def hpa_on_kv(target: float) -> Wish:
    """HPA on the mean of `vllm:kv_cache_usage_perc`."""

    def wish(states: States, view: View, now_s: float) -> int:
        used = [state.kv.utilization for state in states]
        ratio = mean(used) / target
        if not view.starting or ratio <= 1:
            return view.replicas if abs(ratio - 1) <= TOLERANCE else math.ceil(ratio * len(used))
        with_starting = sum(used) / (len(used) + len(view.starting)) / target
        if abs(with_starting - 1) <= TOLERANCE or with_starting < 1:
            return view.replicas
        return max(view.replicas, math.ceil(with_starting * (len(used) + len(view.starting))))

    return wish


def keda_on_waiting(threshold: int) -> Wish:
    """KEDA on the sum of `vllm:num_requests_waiting`, AverageValue."""

    def wish(states: States, view: View, now_s: float) -> int:
        waiting = sum(state.requests.waiting for state in states)
        ratio = waiting / (threshold * view.replicas)
        return view.replicas if abs(ratio - 1) <= TOLERANCE else math.ceil(waiting / threshold)

    return wish


@dataclass
class Recent:
    """Highest values of each worker in the last minute, by its place among the ready ones."""

    seen: deque[tuple[float, dict[float, tuple[float, int]]]] = field(default_factory=deque)

    def highest(self, states: States, now_s: float) -> list[tuple[float, int]]:
        """KV utilisation and waiting requests, by worker."""
        self.seen.append(
            (now_s, {state.started_at: (state.kv.utilization, state.requests.waiting) for state in states})
        )
        while self.seen[0][0] < now_s - CYCLE_S:
            self.seen.popleft()
        return [
            (
                max(look[state.started_at][0] for _, look in self.seen if state.started_at in look),
                max(look[state.started_at][1] for _, look in self.seen if state.started_at in look),
            )
            for state in states
        ]


def wva_saturation() -> Wish:
    """WVA v1: saturated at KV 0.80 or 5 waiting; up where the others' spare is under 0.10 or 3; down where N - 1 keep
    both; one at a time, and not up while one starts."""
    recent, last = Recent(), [-CYCLE_S, 1.0]

    def wish(states: States, view: View, now_s: float) -> int:
        workers = recent.highest(states, now_s)
        if now_s - last[0] < CYCLE_S:
            return int(last[1])
        free = [(kv, waiting) for kv, waiting in workers if kv < 0.80 and waiting < 5]
        spare_kv = mean(0.80 - kv for kv, _ in free) if free else 0.0
        spare_queue = mean(5 - waiting for _, waiting in free) if free else 0.0
        wished = view.replicas
        if spare_kv < 0.10 or spare_queue < 3:
            wished += 0 if view.starting else 1
        elif len(free) >= 2:
            fewer = len(free) - 1
            kv, waiting = sum(kv for kv, _ in free) / fewer, sum(waiting for _, waiting in free) / fewer
            if 0.80 - kv >= 0.10 and 5 - waiting >= 3:
                wished -= 1
        last[:] = now_s, wished
        return wished

    return wish


def wva_tokens(mean_prompt_tokens: int) -> Wish:
    """WVA v2: capacity min(k1, k2) with k1 = 0.80 of the pool and k2 = tokens in use while 5 wait, remembered; demand =
    tokens in use + waiting · mean prompt; up for demand / 0.85 - supply, starting ones included; down for
    supply - demand / 0.70."""
    last, shown = [-CYCLE_S, 1.0], deque[float](maxlen=10)

    def wish(states: States, view: View, now_s: float) -> int:
        if now_s - last[0] < CYCLE_S:
            return int(last[1])
        shown.extend(float(state.kv.live_tokens) for state in states if state.requests.waiting >= 5)
        memory = [0.80 * state.kv.capacity_tokens for state in states]
        capacity = min(median(memory), mean(shown)) if shown else median(memory)
        demand = sum(state.kv.live_tokens + state.requests.waiting * mean_prompt_tokens for state in states)
        supply = capacity * view.replicas
        wished = view.replicas
        if demand / 0.85 > supply:
            wished += math.ceil((demand / 0.85 - supply) / capacity)
        elif demand / 0.70 < supply:
            wished -= math.floor((supply - demand / 0.70) / capacity)
        last[:] = now_s, max(1, wished)
        return max(1, wished)

    return wish
