"""When requests come, and how long they are. Every trace is made from its seed alone.

Lengths are log-normal, by median and mean, which give sigma = sqrt(2 ln(mean / median)), cut to the model's context:

    conversation  prompts 1020 / 1155, answers 129 / 211   median / mean
    code          prompts 1500 / 2048, answers 13 / 28

Medians are those of the services that Azure published traces of: Patel et al., Splitwise, ISCA 2024, arXiv:2311.18677,
section III. Means of conversations are those of that trace (AzureLLMInferenceTrace_conv.csv) as others have summed it
up, 1154.70 and 211.13; those of code, and all other lengths (chat, long, heavy), are assumed.

Arrivals are Poisson with a rate that changes; the heavy-tailed trace has gamma intervals, which Wang et al., BurstGPT,
arXiv:2401.17644, model bursts with; its coefficient of variation of 2 is assumed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.autoscale.engine import Job

Rate = Callable[[float], float]


@dataclass(frozen=True)
class Lengths:
    """Tokens of prompts and answers: median and mean of each."""

    prompt: tuple[float, float]
    output: tuple[float, float]

    def draw(self, rng: random.Random, context: int) -> tuple[int, int]:
        """One request's tokens of prompt and answer, which the context holds."""
        prompt = min(context - 64, _log_normal(rng, *self.prompt))
        return prompt, min(context - prompt, _log_normal(rng, *self.output))


CONVERSATION = Lengths((1020, 1155), (129, 211))
CODE = Lengths((1500, 2048), (13, 28))
CHAT = Lengths((80, 161), (230, 338))
LONG = Lengths((2800, 2900), (180, 220))
HEAVY = Lengths((400, 1155), (90, 211))


@dataclass(frozen=True)
class Trace:
    """A load for so many seconds, in requests a second. held_out: rules were not changed while looking at it."""

    name: str
    about: str
    duration_s: float
    rate: Rate
    lengths: Lengths
    seed: int
    variation: float = 1.0
    held_out: bool = False

    def jobs(self, context: int, scale: float = 1.0) -> list[Job]:
        """All requests, in the order in which they come. scale: of the trace's duration, for a short look at it."""
        rng, jobs = random.Random(self.seed), []
        for number, at in enumerate(self._arrivals(rng, self.duration_s * scale, scale)):
            prompt, output = self.lengths.draw(rng, context)
            jobs.append(Job(number, at, prompt, output, allowed=min(1024, context - prompt)))
            jobs[-1].output_tokens = min(output, jobs[-1].allowed)
        return jobs

    def _arrivals(self, rng: random.Random, duration_s: float, scale: float) -> Iterator[float]:
        """Unit-rate intervals, stretched by the rate at their time."""
        shape = 1 / self.variation**2
        at = 0.0
        while True:
            left = rng.gammavariate(shape, 1 / shape)
            # The rate changes slowly against the intervals, but for the edges of bursts: walk in small steps.
            while left > 0:
                rate, step = self.rate(at / scale), 0.5
                if rate * step >= left:
                    at += left / rate
                    left = 0.0
                else:
                    left -= rate * step
                    at += step
                if at >= duration_s:
                    return
            yield at


def _log_normal(rng: random.Random, median: float, mean: float) -> int:
    return max(1, round(rng.lognormvariate(math.log(median), math.sqrt(2 * math.log(mean / median)))))


def _ramp(at: float) -> float:
    return 0.6 + 5.4 * min(1.0, at / 1200) if at < 1500 else max(0.6, 6.0 - 5.4 * (at - 1500) / 600)


def _day(at: float) -> float:
    return 3.0 - 2.5 * math.cos(2 * math.pi * at / 3600)


def _bursts(at: float) -> float:
    starts = ((200, 60), (500, 120), (900, 60), (1250, 180), (1650, 60))
    return 5.0 if any(start <= at < start + length for start, length in starts) else 1.0


def _climb(at: float) -> float:
    return 1.0 + 4.0 * min(1.0, at / 900) if at < 1800 else max(1.0, 5.0 - 4.0 * (at - 1800) / 900)


def _waves(at: float) -> float:
    return 4.0 - 2.5 * math.cos(2 * math.pi * at / 1200)


def _shifts(at: float) -> float:
    return (1.0, 2.5, 0.6, 1.8)[int(at // 600) % 4]


TRACES = (
    Trace("constant", "3 conversations a second", 1800, lambda _: 3.0, CONVERSATION, seed=1),
    Trace("ramp", "conversations, from 0.6 to 6 a second in 20 minutes, and back in 10", 2400, _ramp, CONVERSATION, 2),
    Trace("day", "conversations, a day in an hour: 0.5 to 5.5 a second", 3600, _day, CONVERSATION, seed=3),
    Trace("bursts", "1 conversation a second, five times in half an hour 5 for one to three minutes", 1800, _bursts,
          CONVERSATION, seed=4),
    Trace("chat", "short prompts and long answers, 4 a second: the batch limit binds before memory does", 1800,
          lambda _: 4.0, CHAT, seed=5),
    Trace("long", "prompts of 2,900 tokens, 1.5 a second", 1800, lambda _: 1.5, LONG, seed=6),
    Trace("prefill", "code completion, 4 a second: long prompts, short answers", 1800, lambda _: 4.0, CODE, seed=7),
    Trace("heavy", "lengths of the same means with heavier tails, gamma intervals, 3 a second", 1800, lambda _: 3.0,
          HEAVY, seed=8, variation=2.0),
    Trace("climb", "conversations, from 1 to 5 a second in 15 minutes, as long there, and back", 2700, _climb,
          CONVERSATION, seed=21, held_out=True),
    Trace("waves", "short prompts and long answers, 1.5 to 6.5 a second and back in 20 minutes, twice", 2400,
          _waves, CHAT, seed=22, held_out=True),
    Trace("shifts", "long prompts, heavy gamma intervals, 1, 2.5, 0.6 and 1.8 a second for 10 minutes each",
          2400, _shifts, LONG, seed=23, variation=1.5, held_out=True),
)  # fmt: skip
