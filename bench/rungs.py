"""What the seed's ladder is, on any device: its rungs, its requests, and what is kept of a run."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvtide_sizing.formats import Precision
from kvtide_worker.engine.messages import AddRequest, EngineState, SamplingParams

# What the article that this project starts from says of all strategies together.
GOAL_SEQUENCES, GOAL_SAVED, GOAL_TOKENS = 4.0, 0.73, 3.2
GOALS = (
    f"goals: {GOAL_SEQUENCES:g} times the sequences, {GOAL_SAVED:.0%} of a sequence's bytes saved, "
    f"{GOAL_TOKENS:g} times the tokens a second"
)

# Query heads that share the keys and values of one.
GROUP = 8


@dataclass(frozen=True)
class Rung:
    """One row: which strategies are in it."""

    name: str
    kv_heads: int
    precision: Precision
    contiguous: bool = False


def rungs(heads: int, *precisions: Precision) -> tuple[Rung, ...]:
    """The ladder of a model with so many heads, each with keys and values of its own; precisions stand at its end."""
    return (
        Rung("contiguous", heads, Precision.BF16, contiguous=True),
        Rung("paged", heads, Precision.BF16),
        Rung(f"+ grouped heads, {GROUP} to 1", heads // GROUP, Precision.BF16),
        *(Rung(f"+ {precision}", heads // GROUP, precision) for precision in precisions),
    )


@dataclass
class Outcome:
    """What a rung did. Samples are of steps at whose end requests still waited."""

    sequences: list[int] = field(default_factory=list)
    pool_share: list[float] = field(default_factory=list)
    sequence_bytes: list[float] = field(default_factory=list)
    output_tokens: int = 0
    seconds: float = 0.0
    preemptions: int = 0

    def sample(self, state: EngineState) -> None:
        """Keep how things stand at the end of a step."""
        if state.waiting and state.queued_prompt_tokens and state.running:
            self.sequences.append(state.running)
            self.pool_share.append(state.live_blocks / state.num_blocks)
            self.sequence_bytes.append(self.pool_share[-1] * state.memory.kv_pool_bytes / state.running)


def mixed_requests(context: int, vocab_size: int) -> Iterator[AddRequest]:
    """The same mixed lengths for every rung, without end: most are short, some take most of the context."""
    rng = random.Random(7)
    longer = math.log(context / 1024)
    for number in itertools.count():
        prompt = min(context // 2, round(rng.lognormvariate(4.6 + longer, 0.8)) + 8)
        output = min(context // 2, round(rng.lognormvariate(4.3 + longer, 0.6)) + 8)
        sampling = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
        yield AddRequest(str(number), [rng.randrange(3, vocab_size) for _ in range(prompt)], sampling)
