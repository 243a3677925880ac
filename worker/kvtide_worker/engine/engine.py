"""The step loop's one step: schedule, compute, sample, finish."""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Iterable

import torch

from kvtide_kernels.attention import PagedAttention
from kvtide_kernels.pool import KVPool
from kvtide_worker.engine.admission import NeverFits, output_tokens
from kvtide_worker.engine.block_manager import BlockManager
from kvtide_worker.engine.cannot_reencode import CannotReencode
from kvtide_worker.engine.decode_graphs import DecodeGraphs
from kvtide_worker.engine.device_sampling import sampler_for
from kvtide_worker.engine.grammar import GrammarCompiler
from kvtide_worker.engine.kv_formats import KvFormats, told
from kvtide_worker.engine.layout import ServedKv
from kvtide_worker.engine.logprobs import token_logprobs
from kvtide_worker.engine.memory import MemoryMeter
from kvtide_worker.engine.messages import (
    AddRequest,
    EngineState,
    ErrorKind,
    FinishReason,
    KvFormat,
    MeasuredMemory,
    PoolMap,
    ReencodeError,
    SetVocabulary,
    TokenOutput,
)
from kvtide_worker.engine.pool_map import pool_map
from kvtide_worker.engine.prefix_cache import PrefixCache
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.sampling import NoToken, Sampled
from kvtide_worker.engine.scheduler import Scheduler
from kvtide_worker.engine.shares import Chunk
from kvtide_worker.engine.step_batch import StepBatch
from kvtide_worker.engine.upload import on_device
from kvtide_worker.models.model import Model

# Reading the kernel's counters takes longer than they take to change.
_MEMORY_SAMPLE_SECONDS = 1.0

# How long a step without anything to run waits for a grammar: commands must not wait behind it.
_GRAMMAR_SECONDS = 0.005

logger = logging.getLogger(__name__)


class Engine:
    """Requests in, tokens out, one step at a time. It has no thread and no I/O of its own.

    The pool holds one sequence of max_context_tokens at least (`served_kv`), so that every request ends.

    prefix_caching:   whether prompts that begin alike share what was computed
    reserve_context:  give each request blocks for max_context_tokens at once, as engines without paging do: for
                      comparison only, and without prefix caching
    formats:          what the pool may be re-encoded to; None is nothing
    graphs:           what steps of decodes alone are replayed by, where they are recorded; None is nothing
    clock:            seconds, for deadlines
    """

    def __init__(
        self,
        *,
        model: Model,
        pool: KVPool,
        attention: PagedAttention,
        meter: MemoryMeter,
        max_context_tokens: int,
        max_batch_limit: int,
        prefix_caching: bool = True,
        reserve_context: bool = False,
        formats: KvFormats | None = None,
        graphs: DecodeGraphs | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._pool = pool
        self._attention = attention
        self._meter = meter
        self._formats = formats
        self._graphs = graphs
        self._told = self._tell_format()
        self._device = pool.storage.device
        self._max_context_tokens = max_context_tokens
        self._clock = clock
        self._prefix: PrefixCache | None = None
        if prefix_caching:
            self._prefix = PrefixCache(pool.layout, formats=[layer.format for layer in pool.layers])
        self._blocks = BlockManager(pool.layout, pool.num_blocks, self._prefix)
        self._scheduler = Scheduler(
            self._blocks,
            max_batch_limit=max_batch_limit,
            reserved_tokens=max_context_tokens if reserve_context else 0,
        )
        self._sampler = sampler_for(self._device, model.config.eos_token_ids)
        self._grammars = GrammarCompiler()
        self._requests: dict[str, Request] = {}
        self._refused: list[TokenOutput] = []
        self._deadlines: list[tuple[float, str, float]] = []
        self._arrivals = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._last_step_seconds = 0.0
        self._memory: MeasuredMemory | None = None
        self._memory_measured_at = 0.0

    @property
    def has_work(self) -> bool:
        """Whether `step` would do or tell something."""
        return bool(self._requests or self._refused)

    @property
    def request_ids(self) -> list[str]:
        """Requests that wait or run."""
        return list(self._requests)

    def add(self, command: AddRequest) -> None:
        """Queue a request; one that can never run is told so by the next step, as an error with the numbers."""
        refused, sampling, vocab_size = None, command.sampling, self._model.config.vocab_size
        try:
            output_tokens(len(command.prompt_token_ids), sampling.max_tokens, self._max_context_tokens)
        except NeverFits as error:
            refused = str(error)
        named = (command.prompt_token_ids, sampling.logit_bias, sampling.stop_token_ids)
        if refused is None and not all(0 <= token < vocab_size for ids in named for token in ids):
            refused = f"the request has token ids outside the model's vocabulary, which is 0 to {vocab_size - 1}"
        if refused is not None:
            self._refused.append(TokenOutput(command.request_id, [], FinishReason.ERROR, refused))
            return
        request = Request(
            command.request_id,
            self._arrivals,
            command.prompt_token_ids,
            command.sampling,
            priority=command.priority,
        )
        if self._prefix is not None:
            request.blocks.chain = self._prefix.chain(command.cache_salt, request.token_ids)
        request.leader = self._leader(command)
        self._arrivals += 1
        self._requests[command.request_id] = request
        if command.timeout_s is not None:
            deadline = self._clock() + command.timeout_s
            heapq.heappush(self._deadlines, (deadline, request.request_id, command.timeout_s))
        if command.grammar is None:
            self._queue(request)
        else:
            self._grammars.begin(request, command.grammar)

    def set_vocabulary(self, vocabulary: SetVocabulary) -> None:
        """What the tokens are that later requests' grammars are about."""
        self._grammars.set_vocabulary(vocabulary)

    def abort(self, request_id: str) -> None:
        """Forget a request and free its blocks. Unknown ids are ignored: it may just have finished."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request)

    def set_batch_limit(self, batch_limit: int) -> None:
        """The most sequences that a step may run, from the next one on; kept between 1 and the plan's."""
        self._scheduler.set_batch_limit(batch_limit)

    def reencode(self, precision: str, tick: Callable[[], None] = lambda: None) -> None:
        """Store KV in another precision, before the next step.

        In a smaller one requests go on with their blocks, and what is cached stays. In a larger one nothing may be
        live, and what was cached is lost.

        tick: called several times a second while it takes
        Raises CannotReencode where nothing has changed; or where it failed: then what ran has ended with an error.
        """
        formats, blocks = self._formats, self._blocks
        if formats is None:
            raise CannotReencode(f"kvPrecision {precision}: this engine has no other", ReencodeError.NEVER)
        before, target = formats.served, formats.target(precision, live_blocks=blocks.live_blocks)
        if target is before:
            return
        started = time.perf_counter()
        if target.precision in formats.reencodable:
            self._shrink(formats, target, tick)
        else:
            self._empty(formats, target)
        self._attention = formats.attention(self._pool)
        if self._graphs is not None:
            self._graphs.record(
                self._attention,
                layout=target.layout,
                batch_limit=target.batch_limit,
                progress=lambda stage: tick(),
            )
        self._scheduler.set_max_batch_limit(target.batch_limit)
        self._meter.set_batch(target.batch_limit)
        self._memory = None
        self._told = self._tell_format()
        logger.info(
            "KV is stored as %s: %d blocks in place of %d as %s, after %.2f s",
            *(target.precision, target.num_blocks, before.num_blocks, before.precision, time.perf_counter() - started),
        )

    def step(self) -> list[TokenOutput]:
        """Run one step; what it gave each request. A step that fails ends its own requests and no others."""
        outputs, self._refused = self._refused, []
        outputs += self._take_grammars()
        outputs += self._end_overdue()
        chunks: list[Chunk] = []
        started = time.perf_counter()
        try:
            chunks = self._scheduler.schedule()
            if chunks:
                self._run(chunks, outputs)
        except Exception as error:  # whatever torch raises: the engine goes on with the other requests
            failed = self._of_step(chunks)
            logger.exception("a step of %d requests failed", len(failed))
            outputs += [self._fail(request, f"the step failed: {error}") for request in failed]
        if chunks:
            self._last_step_seconds = time.perf_counter() - started
        elif self._grammars:
            self._grammars.wait(_GRAMMAR_SECONDS)
        return outputs

    def state(self) -> EngineState:
        """The numbers as they stand between two steps."""
        scheduler, blocks = self._scheduler, self._blocks
        return EngineState(
            sampled_at=time.time(),
            kv=self._told,
            num_blocks=blocks.num_blocks,
            block_tables=len(blocks.layout.tables),
            block_size_tokens=blocks.layout.block_size,
            live_blocks=blocks.live_blocks,
            cached_blocks=blocks.cached_blocks,
            free_blocks=blocks.free_blocks,
            live_tokens=blocks.live_tokens,
            running=len(scheduler.running),
            waiting=scheduler.num_waiting + len(self._grammars),
            queued_prompt_tokens=scheduler.queued_prompt_tokens,
            expected_output_tokens=scheduler.expected_output_tokens,
            batch_limit=scheduler.batch_limit,
            max_batch_limit=scheduler.max_batch_limit,
            last_step_seconds=self._last_step_seconds,
            memory=self._measured_memory(),
            preemptions=scheduler.preemptions,
            recomputed_tokens=scheduler.recomputed_tokens,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            requests=self._arrivals,
            prefix_cache_queries=scheduler.prefix_queries,
            prefix_cache_hits=scheduler.prefix_hits,
        )

    def pool_map(self) -> PoolMap:
        """The pool block by block, as it stands between two steps."""
        return pool_map(self._blocks, self._requests.values())

    def reset_counters(self) -> None:
        """Count from zero again: the warm-up is nobody's request."""
        self._arrivals = self._prompt_tokens = self._generation_tokens = 0
        self._scheduler.prefix_queries = self._scheduler.prefix_hits = 0

    def _shrink(self, formats: KvFormats, target: ServedKv, tick: Callable[[], None]) -> None:
        """The pool re-encoded, with all that it holds."""
        before, blocks = formats.served, self._blocks
        try:
            if copies := blocks.take_copies():
                self._pool.copy_blocks(copies)
            used = blocks.used_blocks(request.blocks for request in self._scheduler.running)
            self._pool = formats.reencoded(self._pool, target, used, tick)
        except Exception as error:  # whatever torch raises: nobody knows what the blocks hold now
            logger.exception("the KV pool could not be re-encoded to %s", target.precision)
            why = f"KV could not be stored as {target.precision}: {error}"
            self._refused += [self._fail(request, why, kept=False) for request in list(self._scheduler.running)]
            self._empty(formats, before)
            raise CannotReencode(why, ReencodeError.FAILED) from error
        blocks.grow(target.layout, target.num_blocks)
        if target.layout.recent_blocks and not before.layout.recent_blocks:
            self._scheduler.add_recent()

    def _empty(self, formats: KvFormats, target: ServedKv) -> None:
        """Another pool in the same memory, in which nothing is known."""
        self._pool = formats.emptied(self._pool, target)
        self._blocks.reset(target.layout, target.num_blocks)

    def _tell_format(self) -> KvFormat:
        if self._formats is not None:
            return self._formats.told
        stored = [layer.format for layer in self._pool.layers]
        return told(stored[0].key.name, stored)

    def _take_grammars(self) -> list[TokenOutput]:
        """Queue the requests whose grammar is compiled, and end those whose grammar failed."""
        failed = []
        for request, failure in self._grammars.take():
            self._queue(request)
            if failure is not None:
                failed.append(self._fail(request, failure.error, failure.kind))
        return failed

    def _leader(self, command: AddRequest) -> Request | None:
        """The request that computes the same prompt, where there is one."""
        named = self._requests.get(command.same_prompt_as or "")
        if named is None or named.prompt_token_ids != command.prompt_token_ids:
            return None
        return named

    def _queue(self, request: Request) -> None:
        leader, request.leader = request.leader, None
        # One that is gone, or whose own grammar is still compiled, is not waited for.
        if leader is not None and (leader.request_id not in self._requests or leader.request_id in self._grammars):
            leader = None
        self._scheduler.add(request, leader)

    def _end_overdue(self) -> list[TokenOutput]:
        """End the requests whose deadline has passed, whether they run, wait, or have a grammar compiled."""
        ended = []
        while self._deadlines and self._deadlines[0][0] <= self._clock():
            _, request_id, timeout_s = heapq.heappop(self._deadlines)
            request = self._requests.get(request_id)
            if request is not None:
                told = f"the request's deadline passed: it had {timeout_s:g} s and got {len(request.output_token_ids)}"
                ended.append(self._fail(request, f"{told} of {request.sampling.max_tokens} tokens", ErrorKind.DEADLINE))
        return ended

    def _of_step(self, chunks: Iterable[Chunk]) -> list[Request]:
        """Who must end with a step that failed: its requests, and those that it had made of them. All that run and
        wait, where it was not even scheduled: nobody knows then what the queues are worth.
        """
        known = list(self._requests.values())
        if not chunks:
            return known
        own = {chunk.request for chunk in chunks}
        return [
            request for request in known if request in own or (request.blocks.tables and not request.pending_tokens)
        ]

    def _run(self, chunks: list[Chunk], outputs: list[TokenOutput]) -> None:
        """Compute the step, and put what it gives each request behind outputs one by one."""
        if copies := self._blocks.take_copies():
            self._pool.copy_blocks(copies)
        batch = StepBatch.of(chunks)
        logits, sampled = self._logits(batch), batch.sampled
        tokens = self._sampler.sample(logits[: len(sampled)], sampled) if sampled else []
        self._score(logits[len(sampled) :], batch.scored)
        for chunk in chunks:
            self._blocks.advance(chunk.request.blocks, chunk.new_tokens)
        for row, (request, token) in enumerate(zip(sampled, tokens, strict=True)):
            # Before it may end: they share what it has. Each draws its own token from the same logits.
            children = self._scheduler.fork(request)
            outputs.append(self._output(request, token))
            for child in children:
                (own,) = self._sampler.sample(logits[row : row + 1], [child])
                outputs.append(self._output(child, own))

    def _logits(self, batch: StepBatch) -> torch.Tensor:
        logits = None
        if self._graphs is not None:
            logits = self._graphs.logits(batch.token_ids, batch.positions, batch.spans, batch.rows)
        if logits is not None:
            return logits
        return self._model.forward(
            on_device(batch.token_ids, self._device),
            on_device(batch.positions, self._device),
            self._attention.plan(batch.spans),
            on_device(batch.rows, self._device),
        )

    def _score(self, logits: torch.Tensor, scored: list[Request]) -> None:
        for row, request in zip(logits, scored, strict=True):
            token = request.prompt_token_ids[len(request.prompt_logprobs) + 1]
            request.prompt_logprobs.append(token_logprobs(row, token, request.sampling.prompt_logprobs or 0))

    def _output(self, request: Request, token: Sampled | NoToken) -> TokenOutput:
        if isinstance(token, NoToken):
            return self._fail(request, token.error, token.kind)
        first = not request.output_token_ids
        if first:
            self._prompt_tokens += len(request.prompt_token_ids) - (request.cached_tokens or 0)
        self._generation_tokens += 1
        reason = request.append(token.token_id, self._model.config.eos_token_ids)
        if reason is not None:
            self._end(request)
        return TokenOutput(
            request.request_id,
            [token.token_id],
            reason,
            logprobs=None if token.logprobs is None else [token.logprobs],
            prompt_logprobs=request.prompt_logprobs if first and request.sampling.prompt_logprobs is not None else None,
            cached_tokens=(request.cached_tokens or 0) if first else 0,
        )

    def _fail(
        self, request: Request, message: str, kind: ErrorKind = ErrorKind.ENGINE, *, kept: bool = True
    ) -> TokenOutput:
        # Numbers that are not finite must not become another prompt's beginning.
        self._end(request, kept=kept and kind is not ErrorKind.NOT_FINITE)
        return TokenOutput(request.request_id, [], FinishReason.ERROR, message, kind)

    def _end(self, request: Request, *, kept: bool = True) -> None:
        if request.request_id in self._grammars:
            self._grammars.forget(request.request_id)
        else:
            self._scheduler.remove(request, kept=kept)
        self._sampler.forget(request.request_id)
        del self._requests[request.request_id]
        request.blocks.chain = None  # it knows the request

    def _measured_memory(self) -> MeasuredMemory:
        now = time.monotonic()
        if self._memory is None or now - self._memory_measured_at >= _MEMORY_SAMPLE_SECONDS:
            self._memory = self._meter.measure()
            self._memory_measured_at = now
        return self._memory
