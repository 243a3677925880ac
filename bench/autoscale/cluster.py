"""Replicas on a simulated clock: they start, get requests at random, drain and go, as a policy asks."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Protocol

from bench.autoscale.engine import Job, Model, SimulatedWorker

LOOK_S = 1.0
DRAIN_S = 120.0


@dataclass(frozen=True)
class View:
    """What a policy sees: replicas that are asked for, those that are ready, those that start."""

    replicas: int
    ready: tuple[SimulatedWorker, ...]
    starting: tuple[SimulatedWorker, ...]


class Policy(Protocol):
    """Somebody who scales. `look` is called every `LOOK_S`, and says how many replicas there should be."""

    name: str

    def look(self, view: View, now_s: float) -> int:
        """The replicas that there should be from now on."""
        ...


@dataclass
class Run:
    """What became of one trace under one policy."""

    jobs: list[Job]
    replica_s: float
    replicas: list[tuple[float, int]]
    preemptions: int = 0

    @property
    def reversals(self) -> int:
        """How often replicas turned from growing to shrinking or back."""
        moves = [after - before for (_, before), (_, after) in itertools.pairwise(self.replicas)]
        return sum(before * after < 0 for before, after in itertools.pairwise(moves))


@dataclass
class Cluster:
    """One resource. A Service sends each request to a ready worker at random, as kube-proxy does."""

    model: Model
    rng: random.Random
    workers: list[SimulatedWorker] = field(default_factory=list)
    _made: int = 0
    _homeless: list[Job] = field(default_factory=list)

    @property
    def staying(self) -> list[SimulatedWorker]:
        """Workers that are not on their way out."""
        return [one for one in self.workers if one.draining_since_s is None and one.ended_s is None]

    @property
    def busy(self) -> bool:
        """Whether a request has not ended yet."""
        return bool(self._homeless) or any(one.jobs for one in self.workers if one.ended_s is None)

    def view(self, now_s: float) -> View:
        """What there is."""
        staying = self.staying
        return View(
            len(staying),
            tuple(one for one in staying if one.ready_s <= now_s),
            tuple(one for one in staying if one.ready_s > now_s),
        )

    def scale(self, replicas: int, now_s: float) -> None:
        """Start workers, or let some go: those that are not ready first, the youngest of them; then the emptiest."""
        staying = self.staying
        for _ in range(replicas - len(staying)):
            self._made += 1
            self.workers.append(SimulatedWorker(f"worker-{self._made}", self.model, now_s))
        doomed = sorted(staying, key=lambda one: (one.ready_s <= now_s, one.live_tokens, -one.created_s))
        for worker in doomed[: max(0, len(staying) - replicas)]:
            worker.draining_since_s = now_s
            if worker.ready_s > now_s:
                worker.ended_s = now_s

    def send(self, job: Job, now_s: float) -> None:
        """Send a request to a ready worker, or keep it for the first one that becomes ready."""
        ready = [one for one in self.staying if one.ready_s <= now_s]
        if ready:
            self.rng.choice(ready).add(job, now_s)
        else:
            self._homeless.append(job)

    def run_until(self, now_s: float) -> None:
        """Bring all workers to this time; drained ones end, and who drains too long loses its requests to others."""
        for worker in self.workers:
            if worker.ended_s is None:
                worker.run_until(now_s)
                self._drain(worker, now_s)
        homeless, self._homeless = self._homeless, []
        for job in homeless:
            self.send(job, now_s)

    def _drain(self, worker: SimulatedWorker, now_s: float) -> None:
        since = worker.draining_since_s
        if since is None:
            return
        if not worker.jobs:
            worker.ended_s = max(since, min(worker.clock_s, now_s))
        elif now_s - since > DRAIN_S:
            worker.ended_s = now_s
            self._homeless += worker.abandon()


def simulate(jobs: list[Job], policy: Policy, model: Model, duration_s: float, seed: int = 0) -> Run:
    """Run a load to the end of its last request. Replica-hours are those of the trace's time alone."""
    cluster, now, at = Cluster(model, random.Random(seed)), 0.0, 0
    cluster.scale(1, -model.start_up_s)
    replicas = [(0.0, 1)]
    while at < len(jobs) or cluster.busy:
        while at < len(jobs) and jobs[at].arrival_s <= now:
            cluster.send(jobs[at], jobs[at].arrival_s)
            at += 1
        cluster.run_until(now)
        view = cluster.view(now)
        wanted = policy.look(view, now)
        if wanted != view.replicas:
            cluster.scale(wanted, now)
            replicas.append((now, wanted))
        now += LOOK_S
    used = sum(
        max(0.0, min(one.ended_s if one.ended_s is not None else duration_s, duration_s) - max(0.0, one.created_s))
        for one in cluster.workers
    )
    shown = [(time, count) for time, count in replicas if time <= duration_s]
    return Run(jobs, used, shown, sum(one.state(now).counters.preemptions for one in cluster.workers))
