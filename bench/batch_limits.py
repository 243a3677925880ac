"""Batch limits on the real engine under memory pressure: `python -m bench.batch_limits [--seconds N]`.

    fixed        the plan's number, which is for the expected lengths; the requests that come are longer
    no limit     as many as a step can run
    KVTide       the operator's rule, asked every two seconds as the operator asks it; it begins at the plan's number

A model of random weights and a small pool, as in bench.ladder; more requests than fit, each answered by the next one.
The policies take turns of a few seconds, each with an engine and a clock of its own: the processor time of the one
thread that computes. So what else the machine does meets them alike, and little. Of each, from --settle on: output
tokens a second, answers, preemptions, tokens computed again for them; and how the limit went from the start.
"""

from __future__ import annotations

import logging
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import click
import torch
from rich.console import Console
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

# What comes, in tokens: 448 at the end, of which a sequence holds 288 on average while it runs.
PROMPT, OUTPUT = (64, 192), (192, 448)
POLICIES = ("fixed", "no limit", "KVTide")
LOOK_S, TURN_S = 2.0, 4.0
# The status keeps times to the second, since 1970.
EPOCH_S = 1_767_225_600.0
WORKER = bench_pod("worker", created_at=0.0, ready_since=0.0)


class Operator:
    """The operator's pass over the batch limit of one worker, with its memory in a status."""

    def __init__(self) -> None:
        self._resource = bench_resource({}, mean_output_tokens=sum(OUTPUT) // 2)

    def limit(self, state: EngineState, now_s: float) -> int:
        """What it would push, or the limit as it is."""
        observed = Observed(self._resource, workers=(WORKER,), samples={WORKER.name: Sample(as_told(state), 0.0)})
        decided = limit_batches(observed, EPOCH_S + now_s)
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
        counters=Counters(preemptions=state.preemptions, generation_tokens=state.generation_tokens),
    )


class Clients:
    """So many at once, each asking again when it is answered; the same lengths in the same order for every policy.

    begun: of the first ones, so many are somewhere in their answers already: else all would grow, and end, together
    """

    def __init__(self, engine: Engine, lanes: int, begun: int) -> None:
        self._engine, self._rng = engine, random.Random(11)
        self._asked = 0
        for lane in range(lanes):
            self.ask(self._rng.random() if lane < begun else 1.0)

    def ask(self, share: float = 1.0) -> None:
        """One more request, for such a share of an answer."""
        self._asked += 1
        prompt = [self._rng.randrange(3, VOCAB) for _ in range(self._rng.randint(*PROMPT))]
        output = max(1, round(share * self._rng.randint(*OUTPUT)))
        sampling = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
        self._engine.add(AddRequest(str(self._asked), prompt, sampling))


class Policy:
    """An engine under a policy, on a clock that stands while it is not its turn."""

    def __init__(self, name: str, engine: Engine, lanes: int, begun: int) -> None:
        self.name, self.engine = name, engine
        self.now_s, self.answers = 0.0, 0
        self.limits: list[int] = []
        self._clients = Clients(engine, lanes, begun)
        self._operator = Operator() if name == "KVTide" else None
        self._since: tuple[float, int, EngineState] | None = None

    def turn(self, seconds: float) -> None:
        """Serve for so long, to the end of a step."""
        began, end_s = time.process_time() - self.now_s, self.now_s + seconds
        while self.now_s < end_s:
            if self.now_s >= len(self.limits) * LOOK_S:
                state = self.engine.state()
                if self._operator is not None:
                    self.engine.set_batch_limit(self._operator.limit(state, self.now_s))
                self.limits.append(self.engine.state().batch_limit)
            for output in self.engine.step():
                if output.finish_reason is not None:
                    self.answers += 1
                    self._clients.ask()
            self.now_s = time.process_time() - began

    def settled(self) -> None:
        """Count from here on."""
        self._since = (self.now_s, self.answers, self.engine.state())

    def row(self) -> tuple[str, ...]:
        """The table's."""
        assert self._since is not None
        (since_s, answers, before), state = self._since, self.engine.state()
        return (
            f"{self.name}, {state.max_batch_limit} at most",
            f"{(state.generation_tokens - before.generation_tokens) / (self.now_s - since_s):.0f}",
            str(self.answers - answers),
            str(state.preemptions - before.preemptions),
            str(state.recomputed_tokens - before.recomputed_tokens),
            " ".join(map(str, self.limits[:: max(1, len(self.limits) // 20)])),
        )


@click.command(help=__doc__)
@click.option("--budget", default="96Mi", show_default=True, help="Bytes of the KV pool.")
@click.option("--expected", default=192, show_default=True, help="Tokens of a request that the plan's number is for.")
@click.option("--lanes", default=96, show_default=True, help="Requests at once, running and waiting.")
@click.option("--seconds", default=30.0, show_default=True, help="For each policy, after it has settled.")
@click.option("--settle", default=12.0, show_default=True, help="Seconds before that.")
@click.option("--policy", "names", type=click.Choice(POLICIES), multiple=True, default=POLICIES, help="Default: all.")
def main(budget: str, expected: int, lanes: int, seconds: float, settle: float, names: tuple[str, ...]) -> None:
    """Run them in turns and print the table."""
    torch.set_num_threads(1)
    logging.getLogger("kvtide_worker").setLevel(logging.ERROR)
    console, rung = Console(), Rung("paged", HEADS, Precision.BF16)
    table = Table("", "tokens/s", "answers", "preemptions", "tokens computed again", "limit")
    with tempfile.TemporaryDirectory() as scratch:
        save_model(Path(scratch), HEADS)
        capacity = engine_for(Path(scratch), rung, parse_quantity(budget), 1).state().capacity_tokens
        planned, policies = min(lanes, capacity // expected), []
        for name in names:
            engine = engine_for(Path(scratch), rung, parse_quantity(budget), lanes if name == "no limit" else planned)
            policies.append(Policy(name, engine, lanes, planned))
    for part_s in (settle, seconds):
        for policy in policies:
            policy.settled()
        for _ in range(max(1, round(part_s / TURN_S))):
            for policy in policies:
                policy.turn(TURN_S)
    for policy in policies:
        table.add_row(*policy.row())
    console.print(table)


if __name__ == "__main__":
    main()
