"""Where a device's memory goes beside the KV pool. All in bytes, all from above where they cannot be known.

A CPU's memory is the container's limit, and two processes live in it: the engine (torch) and the API server.

    device = weights + activations + overhead + reserve + KV pool
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvtide_sizing.devices.device import Device, DeviceKind
from kvtide_sizing.formats import Precision, layer_formats
from kvtide_sizing.memory.activations import step_bytes
from kvtide_sizing.memory.key_bases import key_bases_bytes
from kvtide_sizing.memory.kv import KvLayout, kv_layout
from kvtide_sizing.memory.overhead import load_bytes, overhead_bytes
from kvtide_sizing.memory.sharding import shard
from kvtide_sizing.memory.weights import WeightFormat, weights_bytes
from kvtide_sizing.shape import ModelShape

# Tokens that one step of the engine computes at most, prefill and decode together.
STEP_TOKEN_BUDGET = 512

# Sequences that one step runs at most, however many the pool holds: beyond these a step only gets slower, and
# every sequence has a row of logits.
MAX_BATCH = {DeviceKind.CPU: 64, DeviceKind.GPU: 256}

# A block id in a table, on the device.
TABLE_ENTRY_BYTES = 4

# One part in so many is kept for what allocators lose between allocations and what the kernel keeps for a process.
RESERVE_PARTS = 25


@dataclass(frozen=True)
class Budget:
    """What is taken from one device of any size, before the pool has a block.

    weights_bytes:  this device's share, key bases included
    key_bases_bytes:  of these, what keys of less than 16 bits are stored in
    activations_bytes:  what a step takes at its peak
    tables_bytes:   of these, block tables of a full batch of the longest sequences
    load_bytes:     what loading takes beside the weights at its peak, before the pool is there
    layout:         how blocks cover the layers
    weights:        how matrices are stored
    """

    weights_bytes: int
    key_bases_bytes: int
    activations_bytes: int
    tables_bytes: int
    overhead_bytes: int
    load_bytes: int
    layout: KvLayout
    weights: WeightFormat

    @property
    def load_peak_bytes(self) -> int:
        """All that is taken at the peak of loading."""
        return self.weights_bytes + self.overhead_bytes + self.load_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of block_size tokens in all layers: one block of each table."""
        return self.layout.block_bytes * len(self.layout.tables)

    def num_blocks(self, device_bytes: int) -> int:
        """Blocks of all layers that a device of this size holds; 0 where not one fits, or the weights do not load."""
        if self.load_peak_bytes > device_bytes:
            return 0
        free = device_bytes - reserve_bytes(device_bytes) - self._fixed_bytes
        return max(0, free // self.block_bytes)

    def sequences(self, num_blocks: int, num_tokens: int) -> int:
        """How many sequences of so many tokens a pool of so many blocks of all layers holds."""
        return self.layout.sequences(num_blocks * len(self.layout.tables), num_tokens)

    def expected_sequences(self, num_blocks: int, mean_tokens: int) -> int:
        """As `sequences`, of sequences of this mean length."""
        return self.layout.expected_sequences(num_blocks * len(self.layout.tables), mean_tokens)

    def blocks_for(self, sequences: int, num_tokens: int) -> int:
        """The fewest blocks of all layers that hold so many sequences: the inverse of `sequences`."""
        return -(-self.layout.required_blocks(sequences, num_tokens) // len(self.layout.tables))

    def required_bytes(self, num_blocks: int) -> int:
        """The smallest device that holds so many blocks of all layers: the inverse of `num_blocks`."""
        used = self._fixed_bytes + num_blocks * self.block_bytes
        # device - device // parts >= used  <=>  device > parts * (used - 1) / (parts - 1)
        with_reserve = RESERVE_PARTS * (used - 1) // (RESERVE_PARTS - 1) + 1
        return max(with_reserve, self.load_peak_bytes)

    def at_context(self, local: ModelShape, kind: DeviceKind, context_tokens: int, batch: int) -> Budget:
        """The budget of another longest sequence; local is the shape of one device, as `shard` gives it."""
        return replace(
            self,
            activations_bytes=step_bytes(
                local,
                kind,
                self.layout,
                context_tokens=context_tokens,
                batch=batch,
                key_bases=self.key_bases_bytes > 0,
                weights=self.weights,
            ),
            tables_bytes=batch * self.layout.sequence_blocks(context_tokens) * TABLE_ENTRY_BYTES,
        )

    @property
    def _fixed_bytes(self) -> int:
        return self.weights_bytes + self.activations_bytes + self.overhead_bytes


def reserve_bytes(device_bytes: int) -> int:
    """What is kept back of a device of this size."""
    return device_bytes // RESERVE_PARTS


def budget(
    shape: ModelShape,
    device: Device,
    precision: Precision,
    block_size: int,
    *,
    context_tokens: int,
    batch: int,
    weights: WeightFormat = WeightFormat.BF16,
) -> Budget:
    """What this model takes of each device of this kind, whatever its memory.

    context_tokens:  of the longest sequence
    batch:           sequences that a step runs at most
    Raises UnsupportedPolicy where so many devices cannot share the model.
    """
    local = shard(shape, device.count)
    formats = layer_formats(shape, precision)
    layout = kv_layout(local, formats, block_size, STEP_TOKEN_BUDGET)
    bases = key_bases_bytes(local, formats)
    taken = Budget(
        weights_bytes=weights_bytes(shape, weights, device.count, packed=device.kind is DeviceKind.CPU) + bases,
        key_bases_bytes=bases,
        activations_bytes=0,
        tables_bytes=0,
        overhead_bytes=overhead_bytes(local, device),
        load_bytes=load_bytes(local, device, key_bases=bases > 0, weights=weights),
        layout=layout,
        weights=weights,
    )
    return taken.at_context(local, device.kind, context_tokens, batch)
