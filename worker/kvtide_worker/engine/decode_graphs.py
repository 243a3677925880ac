"""Decode steps that are recorded once and replayed: a step of hundreds of launches becomes one.

    inputs   │ token ids of a batch, then positions │      one copy from the host a step
    plan     │ block tables, slots, lengths         │      another one, for each bucket where it lies
    logits   │ a row for each sequence              │      the end of every graph writes here

Rows of the batch beyond a step's sequences are token 0 at position 0, whose keys and values the plan writes nowhere.
Prefill, and what has prompt tokens to score, runs without a graph. Not yet run on a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from kvtide_kernels.attention import PagedAttention, SequenceSpan
from kvtide_sizing.memory.kv import KvLayout
from kvtide_worker.engine.graph_buckets import Bucket, bucket_for, buckets_up_to
from kvtide_worker.engine.upload import on_device
from kvtide_worker.models.model import Model

logger = logging.getLogger(__name__)


class RefilledStep(Protocol):
    """An `AttentionStep` of decodes that stays where it is: `kvtide_kernels.triton.graph_plan.GraphPlan`."""

    def refill(self, spans: Sequence[SequenceSpan]) -> None:
        """Make these the step's sequences."""
        ...

    def run(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """As `AttentionStep.run`, with a row for each sequence that there is room for."""
        ...


@runtime_checkable
class GraphAttention(Protocol):
    """Attention whose decodes can be recorded."""

    def plan(self, spans: Sequence[SequenceSpan]) -> object:
        """As `PagedAttention.plan`."""
        ...

    def graph_plan(self, *, sequences: int, tokens: int) -> RefilledStep:
        """A step with room for so many sequences of so many tokens."""
        ...


class Recorder(Protocol):
    """What records launches."""

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Run it, and return what launches the same again over the same memory."""
        ...

    def used_bytes(self) -> int:
        """What recordings have taken of the device so far, their buffers included."""
        ...


@dataclass(frozen=True)
class _Graph:
    plan: RefilledStep
    replay: Callable[[], None]


class DecodeGraphs:
    """A graph for each bucket of batches, over static buffers that they share.

    most_sequences:  of any batch limit that will be asked for
    most_bytes:      beyond which no further graph is recorded: the plan counts so many in its overhead
    """

    def __init__(
        self,
        model: Model,
        recorder: Recorder,
        device: torch.device,
        dtype: torch.dtype,
        *,
        layout: KvLayout,
        max_context_tokens: int,
        most_sequences: int,
        most_bytes: int,
    ) -> None:
        self._model, self._recorder, self._device = model, recorder, device
        self._max_context_tokens, self._most_bytes = max_context_tokens, most_bytes
        room = self._buckets_up_to(most_sequences, layout)[-1].sequences
        self._inputs = torch.zeros(2 * room, dtype=torch.int64, device=device)
        self._rows = torch.arange(room, device=device)
        self._logits = torch.zeros(room, model.config.vocab_size, dtype=dtype, device=device)
        self._graphs: dict[Bucket, _Graph] = {}

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Those that have a graph, the smallest batch first."""
        return tuple(sorted(self._graphs, key=lambda bucket: bucket.sequences))

    def record(
        self,
        attention: PagedAttention,
        *,
        layout: KvLayout,
        batch_limit: int,
        progress: Callable[[str], None] = lambda stage: None,
    ) -> None:
        """Record decodes over this attention's pool, in place of what was recorded before.

        The largest first: smaller ones are recorded into the memory that it leaves. progress is told each one before it
        begins. What cannot be recorded runs without a graph, and the log says why.
        """
        self._graphs.clear()
        if not isinstance(attention, GraphAttention):
            return
        wanted = [one for one in self._buckets_up_to(batch_limit, layout) if one.sequences <= len(self._rows)]
        for number, bucket in enumerate(reversed(wanted), 1):
            if self._recorder.used_bytes() > self._most_bytes:
                logger.warning("graphs take %d bytes: no more are recorded", self._recorder.used_bytes())
                break
            progress(f"recording decode steps ({number} of {len(wanted)}: batches of {bucket.sequences})")
            try:
                self._graphs[bucket] = self._recorded(attention, bucket)
            except RuntimeError as error:  # torch's own, memory that is not there included
                logger.warning("decodes of batches of %d cannot be recorded: %s", bucket.sequences, error)
                break
        logger.info("%d graphs of decode steps take %d bytes", len(self._graphs), self._recorder.used_bytes())

    def logits(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        spans: Sequence[SequenceSpan],
        logit_rows: Sequence[int],
    ) -> torch.Tensor | None:
        """As `Model.forward` gives them, by a graph; valid until the next step. None where no graph has this step:
        a chunk of prefill, a row that nobody samples from, a batch or a sequence beyond every bucket.
        """
        count = len(spans)
        if len(token_ids) != count or list(logit_rows) != list(range(count)):
            return None
        bucket = bucket_for(self.buckets, [span.total_tokens for span in spans])
        if bucket is None:
            return None
        graph, padding = self._graphs[bucket], [0] * (bucket.sequences - count)
        inputs = [*token_ids, *padding, *positions, *padding]
        self._inputs[: len(inputs)].copy_(on_device(inputs, self._device))
        graph.plan.refill(spans)
        graph.replay()
        return self._logits[:count]

    def _recorded(self, attention: GraphAttention, bucket: Bucket) -> _Graph:
        size = bucket.sequences
        plan = attention.graph_plan(sequences=size, tokens=bucket.tokens)
        plan.refill([])
        token_ids, positions = self._inputs[:size], self._inputs[size : 2 * size]
        rows, logits = self._rows[:size], self._logits[:size]
        # What was left there by a step with other sequences need not be a token of this model's, nor a position.
        self._inputs.zero_()

        @torch.inference_mode()
        def run() -> None:
            logits.copy_(self._model.forward(token_ids, positions, plan, rows))

        return _Graph(plan, self._recorder.record(run))

    def _buckets_up_to(self, batch_limit: int, layout: KvLayout) -> tuple[Bucket, ...]:
        return buckets_up_to(
            batch_limit,
            layout=layout,
            max_context_tokens=self._max_context_tokens,
            vocab_size=self._model.config.vocab_size,
        )
