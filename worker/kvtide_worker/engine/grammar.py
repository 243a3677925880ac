"""Answers that must match a grammar: compiled beside the step loop, applied to a request's row of logits."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from kvtide_worker.engine.messages import ErrorKind, SetVocabulary
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.sampling import NoToken

COMPILE_SECONDS = 10.0

# Two, so that a grammar that takes its full time does not hold up all others.
_THREADS = 2

# Lexer states take up to 2 kB each, and are the one thing of a grammar that grows with what is generated: 40 MB at
# most. Grammars of ordinary schemas have some hundreds. Masks are bounded in time by llguidance's own limits.
_LIMITS = LLParserLimits(max_lexer_states=20_000, verbose_errors=False)


class Grammar:
    """Where one answer is in its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def finished(self) -> bool:
        """Whether the answer is complete and nothing may follow."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def mask(self, logits: torch.Tensor) -> str | None:
        """Leave the tokens that may come next, in place; logits [vocab_size]. What is wrong, where something is."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            return f"the grammar of this request failed: {_short(self._matcher.get_error())}"
        known = min(len(logits), 8 * len(bits))
        forbidden = torch.from_numpy(np.unpackbits(bits, bitorder="little", count=known) == 0)
        logits[:known].masked_fill_(forbidden.to(logits.device), -torch.inf)
        logits[known:] = -torch.inf
        return None

    def accept(self, token_id: int) -> None:
        """Go on with a token that the mask left."""
        self._matcher.consume_token(token_id)


@dataclass(frozen=True)
class _Job:
    request: Request
    compiled: Future[Grammar]
    deadline: float


class GrammarCompiler:
    """Compiles grammars in threads, which llguidance lets run beside the steps, each within a time limit."""

    def __init__(self, timeout_s: float = COMPILE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")
        self._tokenizer: Future[LLTokenizer] | None = None
        self._jobs: dict[str, _Job] = {}

    def __len__(self) -> int:
        """Requests that wait for their grammar."""
        return len(self._jobs)

    def __contains__(self, request_id: str) -> bool:
        """Whether this request waits for its grammar."""
        return request_id in self._jobs

    def set_vocabulary(self, vocabulary: SetVocabulary) -> None:
        """What tokens are, for all grammars from now on."""
        self._tokenizer = self._threads.submit(_build_tokenizer, vocabulary)

    def begin(self, request: Request, grammar: str) -> None:
        """Compile a request's grammar; `take` gives the request back."""
        assert self._tokenizer is not None, "the server sends the vocabulary before the first grammar"
        compiled = self._threads.submit(_compile, self._tokenizer, grammar)
        self._jobs[request.request_id] = _Job(request, compiled, self._clock() + self._timeout_s)

    def forget(self, request_id: str) -> None:
        """Nobody waits for this one any more."""
        self._jobs.pop(request_id).compiled.cancel()

    def take(self) -> list[tuple[Request, NoToken | None]]:
        """The requests that wait no longer: with their `grammar` set, or with why there is none."""
        now = self._clock()
        over = [job for job in self._jobs.values() if job.compiled.done() or now >= job.deadline]
        taken: list[tuple[Request, NoToken | None]] = []
        for job in over:
            del self._jobs[job.request.request_id]
            failure = None
            if not job.compiled.done():
                job.compiled.cancel()
                failure = NoToken(
                    f"the grammar was not compiled within {self._timeout_s:g} s; use a smaller schema",
                    ErrorKind.GRAMMAR_TIMEOUT,
                )
            else:
                try:
                    job.request.grammar = job.compiled.result()
                except (Exception, CancelledError) as error:
                    failure = NoToken(f"the grammar cannot be used: {error}", ErrorKind.GRAMMAR)
            taken.append((job.request, failure))
        return taken

    def wait(self, seconds: float) -> None:
        """Until a grammar is compiled, or as long as this: for a loop that has nothing else to do."""
        wait([job.compiled for job in self._jobs.values()], seconds, FIRST_COMPLETED)


def _build_tokenizer(vocabulary: SetVocabulary) -> LLTokenizer:
    """Where a grammar leaves one text only, that is cut into the longest tokens first: no tokenizer is read here, which
    would take many times the memory of a table of tokens."""

    class Words:
        eos_token_id = vocabulary.eos_token_ids[0]
        bos_token_id = None
        tokens = vocabulary.token_bytes
        special_token_ids = vocabulary.special_ids

        def __call__(self, text: bytes | str) -> list[int]:
            known = text.decode(errors="replace") if isinstance(text, bytes) else text
            return tokenizer.greedy_tokenize(known)

    tokenizer = LLTokenizer("byte")
    tokenizer = LLTokenizer(TokenizerWrapper(Words()), eos_token=vocabulary.eos_token_ids)
    return tokenizer


def _compile(tokenizer: Future[LLTokenizer], grammar: str) -> Grammar:
    """Raises ValueError where llguidance refuses the grammar."""
    matcher = LLMatcher(tokenizer.result(), grammar, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise ValueError(_short(matcher.get_error()))
    return Grammar(matcher)


def _short(message: str) -> str:
    return " ".join(message.split())[:300]
