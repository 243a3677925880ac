"""A request inside the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtide_worker.engine.block_manager import SequenceBlocks
from kvtide_worker.engine.messages import FinishReason, SamplingParams, TokenLogprobs

if TYPE_CHECKING:
    from kvtide_worker.engine.grammar import Grammar


@dataclass(eq=False)
class Request:
    """One sequence: its prompt, what it generated, and where its keys and values lie.

    arrival:          its place in the order of arrival, which it keeps when it is preempted
    priority:         lower ones first
    leader:           whose prompt it has too, and waits for; followers: those that wait for this one
    put_back:         whether it has run and waits again: it goes before those of its priority that have not
    preemptions:      how often it lost its blocks to others
    lost_tokens:      what was computed of it when it last lost its blocks
    passed:           how many later ones were let in before it since it waits
    cached_tokens:    of the prompt, those that were there already when it was first let in
    grammar:          what the answer must match, once it is compiled
    prompt_logprobs:  of prompt tokens 1, 2, … as far as they are known, where they are asked for
    """

    request_id: str
    arrival: int
    prompt_token_ids: list[int]
    sampling: SamplingParams
    output_token_ids: list[int] = field(default_factory=list)
    blocks: SequenceBlocks = field(default_factory=SequenceBlocks)
    priority: int = 0
    leader: Request | None = None
    followers: list[Request] = field(default_factory=list)
    put_back: bool = False
    preemptions: int = 0
    lost_tokens: int = 0
    passed: int = 0
    cached_tokens: int | None = None
    grammar: Grammar | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def rank(self) -> tuple[int, int]:
        """Its place among those that run: the least is served first, and the last that loses its blocks."""
        return self.priority, self.arrival

    @property
    def place(self) -> tuple[int, bool, int]:
        """Its place among those that wait."""
        return self.priority, not self.put_back, self.arrival

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def pending_tokens(self) -> int:
        """Tokens whose keys and values are not computed yet: 1 between two decode steps, more in prefill."""
        return self.num_tokens - self.blocks.num_tokens

    @property
    def expected_output_tokens(self) -> int:
        """Tokens it may still generate."""
        return self.sampling.max_tokens - len(self.output_token_ids)

    @property
    def most_tokens(self) -> int:
        """Tokens of prompt and output that it may end with."""
        return len(self.prompt_token_ids) + self.sampling.max_tokens

    @property
    def scores_prompt(self) -> bool:
        """Whether log probabilities of prompt tokens are still to be computed."""
        known = len(self.prompt_logprobs)
        return self.sampling.prompt_logprobs is not None and known < len(self.prompt_token_ids) - 1

    def token_ids(self, start: int, end: int) -> list[int]:
        """Tokens [start, end) of prompt and output."""
        prompt = len(self.prompt_token_ids)
        if start >= prompt:
            return self.output_token_ids[start - prompt : end - prompt]
        if end <= prompt:
            return self.prompt_token_ids[start:end]
        return self.prompt_token_ids[start:] + self.output_token_ids[: end - prompt]

    def append(self, token_id: int, eos_token_ids: tuple[int, ...]) -> FinishReason | None:
        """Take a generated token, and say whether it was the last one, and why."""
        self.output_token_ids.append(token_id)
        if token_id in self.sampling.stop_token_ids:
            return FinishReason.STOP
        if token_id in eos_token_ids and not self.sampling.ignore_eos:
            return FinishReason.STOP
        if self.grammar is not None and self.grammar.finished:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.expected_output_tokens == 0 else None
