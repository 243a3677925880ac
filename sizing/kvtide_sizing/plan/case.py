"""One way to serve a model on a device: all is fixed but the context."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvtide_sizing.devices.device import Device
from kvtide_sizing.formats import LayerFormat, Precision, layer_formats
from kvtide_sizing.memory.activations import step_bytes
from kvtide_sizing.memory.budget import Budget, budget
from kvtide_sizing.memory.sharding import shard
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_sizing.shape import ModelShape


@dataclass(frozen=True)
class Case:
    """A plan in the making.

    shape:            with the KV heads that this case serves
    batch_cap:        sequences that a step runs at most
    sequence_tokens:  of the expected sequence
    """

    shape: ModelShape
    device: Device
    precision: Precision
    block_size: int
    batch_cap: int
    sequence_tokens: int
    weights: WeightFormat

    @cached_property
    def bytes_per_token(self) -> int:
        """KV bytes of one token on each device."""
        stored = zip(self.formats, self._local.layers, strict=True)
        return sum(each.bytes_per_token(layer) for each, layer in stored)

    @cached_property
    def formats(self) -> tuple[LayerFormat, ...]:
        """How each layer's keys and values are stored, on every device alike."""
        return layer_formats(self.shape, self.precision)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of all layers on each device."""
        return self._budget_at_no_context.block_bytes

    def budget(self, context_tokens: int) -> Budget:
        """What is taken of a device where the longest sequence has so many tokens."""
        # Only activations and tables depend on the context. A search asks for many, and all else for the same again.
        known = self._budgets.get(context_tokens)
        if known is None:
            known = self._budget_at_no_context.at_context(self._local, self.device.kind, context_tokens, self.batch_cap)
            self._budgets[context_tokens] = known
        return known

    @cached_property
    def _budgets(self) -> dict[int, Budget]:
        return {}

    @cached_property
    def _local(self) -> ModelShape:
        return shard(self.shape, self.device.count)

    @cached_property
    def _budget_at_no_context(self) -> Budget:
        return budget(
            self.shape,
            self.device,
            self.precision,
            self.block_size,
            context_tokens=0,
            batch=self.batch_cap,
            weights=self.weights,
        )

    def activations_bytes(self, context_tokens: int) -> int:
        """What a step takes that runs as many sequences as this case's batch limit.

        At most what the budget counts, which is for as many as a step can run: were the pool to grow by the difference,
        more memory could hold fewer tokens where it makes the limit larger.
        """
        limit = self.batch_limit(context_tokens)
        taken = self._budget_at_no_context.at_context(self._local, self.device.kind, context_tokens, limit)
        return taken.activations_bytes

    def more_without_kernels(self, context_tokens: int) -> int:
        """What a step takes beside that at most on a processor that has no kernels for whole layers."""
        layout, limit = self._budget_at_no_context.layout, self.batch_limit(context_tokens)
        without = step_bytes(
            self._local,
            self.device.kind,
            layout,
            context_tokens=context_tokens,
            batch=limit,
            layer_kernels=False,
            bf16_units=False,
            weights=self.weights,
        )
        return without - self.activations_bytes(context_tokens)

    def num_blocks(self, context_tokens: int) -> int:
        """Blocks of all layers that the device holds."""
        return self.budget(context_tokens).num_blocks(self.device.memory_bytes)

    def max_concurrency(self, context_tokens: int) -> int:
        """Sequences of this context that the device holds."""
        taken = self.budget(context_tokens)
        return taken.sequences(taken.num_blocks(self.device.memory_bytes), context_tokens)

    def held(self, context_tokens: int) -> int:
        """Sequences of the expected length that the device holds, where the longest has context_tokens."""
        taken = self.budget(context_tokens)
        num_blocks = taken.num_blocks(self.device.memory_bytes)
        return taken.expected_sequences(num_blocks, self.expected_tokens(context_tokens))

    def batch_limit(self, context_tokens: int) -> int:
        """Of these, as many as a step runs; at least one."""
        return max(1, min(self.held(context_tokens), self.batch_cap))

    def expected_tokens(self, context_tokens: int) -> int:
        """Tokens of the expected sequence, which the context cuts."""
        return min(self.sequence_tokens, context_tokens)

    def required_bytes(self, context_tokens: int, sequences: int = 1) -> int:
        """The smallest memory that holds so many sequences of this context."""
        taken = self.budget(context_tokens)
        return taken.required_bytes(taken.blocks_for(sequences, context_tokens))

    @cached_property
    def longest_context(self) -> int:
        """The longest context of which the device holds one sequence, in whole blocks up to the model's; or 0."""
        most = self.shape.max_context_tokens
        if self.max_concurrency(most):
            return most
        low, high = 0, most // self.block_size
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.max_concurrency(middle * self.block_size) else (low, middle - 1)
        return low * self.block_size
