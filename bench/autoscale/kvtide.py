"""KVTide's own policy: the operator's pass over replicas and batch limits, with its memory in a status."""

from __future__ import annotations

from dataclasses import replace

from bench.autoscale.cluster import View
from bench.autoscale.engine import SimulatedWorker
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.reconcile.limits import limit_batches
from kvtide_operator.reconcile.observed import Observed, Sample
from kvtide_operator.reconcile.pods import PodView
from kvtide_operator.reconcile.scaling import scale

# How often the operator looks at a resource that has workers.
PASS_S = 2.0
# The status keeps times to the second, since 1970.
EPOCH_S = 1_767_225_600.0


class KVTide:
    """`scale` and `limit_batches` of the operator, carried from pass to pass as the operator does: by the status."""

    def __init__(self, name: str, autoscaling: dict[str, object], mean_output_tokens: int) -> None:
        self.name = name
        self._resource = bench_resource(autoscaling, mean_output_tokens)
        self._next_s = 0.0

    def look(self, view: View, now_s: float) -> int:
        """One pass, where it is time for one."""
        if now_s < self._next_s:
            return view.replicas
        self._next_s = now_s + PASS_S
        now = EPOCH_S + now_s
        pods = [_pod(one, ready=True) for one in view.ready] + [_pod(one, ready=False) for one in view.starting]
        samples = {one.name: Sample(_since_epoch(one.state(now_s)), 0.0) for one in view.ready}
        observed = Observed(self._resource, workers=tuple(pods), samples=samples)
        decided, limits = scale(observed, None, view.replicas, now), limit_batches(observed, now)
        by_name = {one.name: one for one in view.ready}
        for push in limits.pushes:
            by_name[push.pod].set_batch_limit(push.batch_limit)
        update = {"autoscaling": decided.status, "workers": list(limits.workers)}
        self._resource = replace(self._resource, status=self._resource.status.model_copy(update=update))
        return decided.replicas


def _since_epoch(state: WorkerState) -> WorkerState:
    return state.model_copy(update={"started_at": EPOCH_S + state.started_at})


def _pod(worker: SimulatedWorker, *, ready: bool) -> PodView:
    created_at = EPOCH_S + worker.created_s
    return bench_pod(worker.name, created_at, ready_since=EPOCH_S + worker.ready_s if ready else None)


def bench_resource(autoscaling: dict[str, object], mean_output_tokens: int) -> LLMDeployment:
    """A resource that nothing is planned for: what its autoscaling says, and the usual length of an answer."""
    spec = {
        "model": {"uri": "hf://meta-llama/Llama-2-13b-hf"},
        "device": {"kind": "GPU", "memory": "40Gi"},
        "workload": {"profile": "Custom", "meanPromptTokens": 1, "meanOutputTokens": mean_output_tokens},
        "autoscaling": autoscaling,
    }
    metadata = {"namespace": "bench", "name": "bench", "uid": "bench"}
    return LLMDeployment.parse({"metadata": metadata, "spec": spec})


def bench_pod(name: str, created_at: float, ready_since: float | None) -> PodView:
    """A worker's pod as a pass sees it; ready_since: None while it starts. Times in seconds since 1970."""
    return PodView(
        name=name,
        created_at=created_at,
        ip="192.0.2.1",
        ready=ready_since is not None,
        ready_since=ready_since,
        terminating=False,
        intent=None,
        model=None,
        deletion_cost=None,
        trouble=None,
        ending=None,
        unready_since=created_at if ready_since is None else None,
    )
