"""Batch limits on the real engine under memory pressure: `python -m bench.batch_limits [--seconds N]`.

    fixed        the plan's number, which is for the expected lengths; the requests that come are longer
    no limit     as many as a step can run
    KVTide       the operator's rule, asked every two seconds as the operator asks it; it begins at the plan's number

A model of random weights and a small pool, as in bench.ladder; more requests than fit, each answered by the next one.
Of each: output tokens a second, preemptions, tokens that were computed again for them, and how the limit went.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.autoscale.kvtide import bench_pod, bench_resource
from bench.ladder import HEADS, VOCAB, engine_for, save_model
from bench.rungs import Rung
from kvtide_operator.autoscale.worker_state import Counters, KVState, LimitState, RequestState, WorkerState
from kvtide_operator.reconcile.limits import limit_batches
from kvtide_operator.reconcile.observed import Observed, Sample
from kvtide_sizing.formats import Precision
from kvtide_sizing.quantity import parse_quantity
from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.messages import AddRequest, EngineState, SamplingParams

# What the plan expected of a request, and what comes: prompts and answers, in tokens.
EXPECTED, PROMPT, OUTPUT = 128, (64, 192), (192, 448)
LOOK_S = 2.0
WORKER = bench_pod("worker", created_at=0.0, ready_since=0.0)


@dataclass
class Outcome:
    """What a policy did. limits: every two seconds"""

    seconds: float = 0.0
    output_tokens: int = 0
    finished: int = 0
    preemptions: int = 0
    computed_again: int = 0
    limits: list[int] = field(default_factory=list)


class Operator:
    """The operator's pass over the batch limit of one worker, with its memory in a status."""

    def __init__(self) -> None:
        self._resource = bench_resource({}, mean_output_tokens=EXPECTED)

    def limit(self, state: EngineState) -> int:
        """What it would push, or the limit as it is."""
        now = time.time()
        observed = Observed(self._resource, workers=(WORKER,), samples={WORKER.name: Sample(as_told(state), 0.0)})
        decided = limit_batches(observed, now)
        status = self._resource.status.model_copy(update={"workers": list(decided.workers)})
        self._resource = replace(self._resource, status=status)
        return decided.pushes[0].batch_limit if decided.pushes else state.batch_limit


def as_told(state: EngineState) -> WorkerState:
    """The state as the operator reads it."""
    return WorkerState(
        started_at=0.0,
        sampled_at=state.sampled_at,
        kv=KVState(
            capacity_tokens=state.capacity_tokens,
            live_tokens=state.live_tokens,
            utilization=state.live_blocks / state.num_blocks,
        ),
        requests=RequestState(
            running=state.running,
            waiting=state.waiting,
            queued_prompt_tokens=state.queued_prompt_tokens,
            expected_output_tokens=state.expected_output_tokens,
        ),
        limits=LimitState(batch_limit=state.batch_limit, max_batch_limit=state.max_batch_limit),
        counters=Counters(preemptions=state.preemptions),
    )


class Clients:
    """So many at once, each asking again when it is answered; the same lengths in the same order for every policy."""

    def __init__(self, engine: Engine, lanes: int) -> None:
        self._engine, self._rng = engine, random.Random(11)
        self._asked = 0
        for _ in range(lanes):
            self.ask()

    def ask(self) -> None:
        """One more request."""
        self._asked += 1
        prompt = [self._rng.randrange(3, VOCAB) for _ in range(self._rng.randint(*PROMPT))]
        sampling = SamplingParams(max_tokens=self._rng.randint(*OUTPUT), temperature=0.0, ignore_eos=True)
        self._engine.add(AddRequest(str(self._asked), prompt, sampling))


def run(engine: Engine, lanes: int, seconds: float, limit: Callable[[EngineState], int]) -> Outcome:
    """Serve for so long."""
    outcome, clients = Outcome(), Clients(engine, lanes)
    began = looked = time.monotonic()
    running: dict[str, int] = {}
    while (now := time.monotonic()) - began < seconds:
        if now - looked >= LOOK_S or not outcome.limits:
            looked = now
            engine.set_batch_limit(limit(engine.state()))
            outcome.limits.append(engine.state().batch_limit)
        for output in engine.step():
            outcome.output_tokens += len(output.token_ids)
            if output.finish_reason is not None:
                outcome.finished += 1
                clients.ask()
        held = {one.request_id: one.written_tokens for one in engine.pool_map().sequences}
        outcome.computed_again += sum(max(0, tokens - held.get(name, tokens)) for name, tokens in running.items())
        running = held
    outcome.seconds, outcome.preemptions = time.monotonic() - began, engine.state().preemptions
    return outcome


@click.command(help=__doc__)
@click.option("--budget", default="48Mi", show_default=True, help="Bytes of the KV pool.")
@click.option("--lanes", default=48, show_default=True, help="Requests at once, running and waiting.")
@click.option("--seconds", default=90.0, show_default=True, help="For each policy.")
@click.option("--threads", default=2, show_default=True)
def main(budget: str, lanes: int, seconds: float, threads: int) -> None:
    """Run the three and print the table."""
    torch.set_num_threads(threads)
    console, table = Console(), Table("", "tokens/s", "answers", "preemptions", "tokens computed again", "limit")
    rung = Rung("paged", HEADS, Precision.BF16)
    with tempfile.TemporaryDirectory() as scratch:
        save_model(Path(scratch), HEADS)
        for name in track(("fixed", "no limit", "KVTide"), console=console, transient=True):
            engine = engine_for(Path(scratch), rung, parse_quantity(budget), lanes)
            planned = min(lanes, engine.state().capacity_tokens // EXPECTED)
            if name != "no limit":
                engine = engine_for(Path(scratch), rung, parse_quantity(budget), planned)
            rule = Operator().limit if name == "KVTide" else lambda state: state.max_batch_limit
            outcome = run(engine, lanes, seconds, rule)
            table.add_row(
                f"{name}, {engine.state().max_batch_limit} at most",
                f"{outcome.output_tokens / outcome.seconds:.0f}",
                str(outcome.finished),
                str(outcome.preemptions),
                str(outcome.computed_again),
                " ".join(map(str, outcome.limits[:: max(1, len(outcome.limits) // 12)])),
            )
    console.print(table)


if __name__ == "__main__":
    main()
