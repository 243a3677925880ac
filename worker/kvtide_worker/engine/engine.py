"""The step loop's one step: schedule, compute, sample, finish."""

from __future__ import annotations

import logging
import time

import torch

from kvtide_kernels.attention import PagedAttention, SequenceSpan
from kvtide_kernels.pool import KVPool
from kvtide_worker.engine.admission import refusal
from kvtide_worker.engine.block_manager import BlockManager
from kvtide_worker.engine.memory import MemoryMeter
from kvtide_worker.engine.messages import AddRequest, EngineState, FinishReason, MeasuredMemory, TokenOutput
from kvtide_worker.engine.request import Request
from kvtide_worker.engine.sampling import Sampler
from kvtide_worker.engine.scheduler import Chunk, Scheduler
from kvtide_worker.models.model import Model

# Reading the kernel's counters takes longer than they take to change.
_MEMORY_SAMPLE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Engine:
    """Requests in, tokens out, one step at a time. It has no thread and no I/O of its own.

    The pool holds one sequence of max_context_tokens at least (`served_layout`), so that every request ends.
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
    ) -> None:
        self._model = model
        self._pool = pool
        self._attention = attention
        self._meter = meter
        self._device = pool.storage.device
        self._max_context_tokens = max_context_tokens
        self._blocks = BlockManager(pool.layout, pool.num_blocks)
        self._scheduler = Scheduler(self._blocks, max_batch_limit=max_batch_limit)
        self._sampler = Sampler(self._device)
        self._requests: dict[str, Request] = {}
        self._refused: list[TokenOutput] = []
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
        refused = refusal(len(command.prompt_token_ids), command.sampling.max_tokens, self._max_context_tokens)
        vocab_size = self._model.config.vocab_size
        if refused is None and not all(0 <= token < vocab_size for token in command.prompt_token_ids):
            refused = f"the prompt has token ids outside the model's vocabulary, which is 0 to {vocab_size - 1}"
        if refused is not None:
            self._refused.append(TokenOutput(command.request_id, [], FinishReason.ERROR, refused))
            return
        request = Request(command.request_id, self._arrivals, command.prompt_token_ids, command.sampling)
        self._arrivals += 1
        self._requests[command.request_id] = request
        self._scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Forget a request and free its blocks. Unknown ids are ignored: it may just have finished."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request)

    def set_batch_limit(self, batch_limit: int) -> None:
        """The most sequences that a step may run, from the next one on; kept between 1 and the plan's."""
        self._scheduler.set_batch_limit(batch_limit)

    def step(self) -> list[TokenOutput]:
        """Run one step; what it gave each request. A step that fails ends its own requests and no others."""
        outputs, self._refused = self._refused, []
        chunks = self._scheduler.schedule()
        if not chunks:
            return outputs
        started = time.perf_counter()
        try:
            outputs += self._run(chunks)
        except Exception as error:  # whatever torch raises: the engine goes on with the other requests
            logger.exception("a step of %d requests failed", len(chunks))
            outputs += [self._fail(chunk.request, f"the step failed: {error}") for chunk in chunks]
        self._last_step_seconds = time.perf_counter() - started
        return outputs

    def state(self) -> EngineState:
        """The numbers as they stand between two steps."""
        scheduler, blocks = self._scheduler, self._blocks
        return EngineState(
            sampled_at=time.time(),
            num_blocks=blocks.num_blocks,
            block_tables=len(blocks.layout.tables),
            block_size_tokens=blocks.layout.block_size,
            live_blocks=blocks.live_blocks,
            cached_blocks=blocks.cached_blocks,
            free_blocks=blocks.free_blocks,
            live_tokens=blocks.live_tokens,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            queued_prompt_tokens=scheduler.queued_prompt_tokens,
            expected_output_tokens=scheduler.expected_output_tokens,
            batch_limit=scheduler.batch_limit,
            max_batch_limit=scheduler.max_batch_limit,
            last_step_seconds=self._last_step_seconds,
            memory=self._measured_memory(),
            preemptions=scheduler.preemptions,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            requests=self._arrivals,
        )

    def reset_counters(self) -> None:
        """Count from zero again: the warm-up is nobody's request."""
        self._arrivals = self._prompt_tokens = self._generation_tokens = 0

    def _run(self, chunks: list[Chunk]) -> list[TokenOutput]:
        logits, sampled = self._compute(chunks)
        tokens = self._sampler.sample(logits, sampled) if sampled else []
        for chunk in chunks:
            self._blocks.advance(chunk.request.blocks, chunk.new_tokens)
        return [self._output(request, token) for request, token in zip(sampled, tokens, strict=True)]

    def _compute(self, chunks: list[Chunk]) -> tuple[torch.Tensor, list[Request]]:
        """The logits of the requests whose last token is in the step, and these requests."""
        token_ids: list[int] = []
        positions: list[int] = []
        logit_rows: list[int] = []
        sampled: list[Request] = []
        spans: list[SequenceSpan] = []
        for chunk in chunks:
            request, past = chunk.request, chunk.request.blocks.num_tokens
            token_ids += request.token_ids(past, past + chunk.new_tokens)
            positions += range(past, past + chunk.new_tokens)
            spans.append(SequenceSpan(request.blocks.tables, past, chunk.new_tokens))
            if chunk.new_tokens == request.pending_tokens:
                logit_rows.append(len(token_ids) - 1)
                sampled.append(request)
        logits = self._model.forward(
            self._tensor(token_ids), self._tensor(positions), self._attention.plan(spans), self._tensor(logit_rows)
        )
        return logits, sampled

    def _output(self, request: Request, token: int | None) -> TokenOutput:
        if token is None:
            return self._fail(request, "the model gave logits that are not finite")
        if not request.output_token_ids:
            self._prompt_tokens += len(request.prompt_token_ids)
        self._generation_tokens += 1
        reason = request.append(token, self._model.config.eos_token_ids)
        if reason is not None:
            self._end(request)
        return TokenOutput(request.request_id, [token], reason)

    def _fail(self, request: Request, message: str) -> TokenOutput:
        self._end(request)
        return TokenOutput(request.request_id, [], FinishReason.ERROR, message)

    def _end(self, request: Request) -> None:
        self._scheduler.remove(request)
        self._sampler.forget(request.request_id)
        del self._requests[request.request_id]

    def _measured_memory(self) -> MeasuredMemory:
        now = time.monotonic()
        if self._memory is None or now - self._memory_measured_at >= _MEMORY_SAMPLE_SECONDS:
            self._memory = self._meter.measure()
            self._memory_measured_at = now
        return self._memory

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
