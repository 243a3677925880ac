"""What a step takes beside weights and pool: the tensors that live at once at its fullest moment.

    forward   | S + attention of a layer | S + MLP of a layer | ... | S + logits |
    sampling                                                                     | logits + one row's |

S lives through the forward pass: the residual stream, rotations, and what attention planned. On a CPU this is what
the worker's forward pass allocates, checked against the allocator's record for each served family. On a GPU the same
pass is counted with kernels that read blocks where they lie; that has not been measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtide_sizing.devices.device import DeviceKind
from kvtide_sizing.memory.kv import KvLayout, TableLayout
from kvtide_sizing.shape import LayerShape, ModelShape

_BF16, _FLOAT32, _INT64, _INT32 = 2, 4, 8, 4

# Tokens that a group of decoding sequences gathers at most on a CPU, unless one sequence has more. Measured with the
# heads of SmolLM2-135M and Gemma 3 270M on two cores: from 1024 to 16384 nothing differs beyond the noise, and with no
# bound a step of 64 sequences of 1000 tokens takes twice as long, as every copy is of new pages.
GATHER_TOKENS = 4096

# Each of torch's threads has scores and sums of its own, at most 0.4 MiB; how many there will be is not known when a
# plan is made. What more of them take comes out of the reserve.
CPU_THREADS = 4

# Of a row that is drawn from: float32 probabilities, their order (float32 and int64), the sum before each, and which
# are kept.
_DRAW_BYTES = _FLOAT32 + _FLOAT32 + _INT64 + _FLOAT32 + 1

# Lengths, places and scalars.
_SMALL_BYTES = 16 << 10


@dataclass(frozen=True)
class _Step:
    """A step's tokens: prefill of them in chunks, and one for each of decodes sequences, all context tokens long."""

    context: int
    batch: int
    prefill: int
    chunks: int
    decodes: int

    @property
    def tokens(self) -> int:
        return self.prefill + self.decodes


def step_bytes(
    shape: ModelShape,
    kind: DeviceKind,
    layout: KvLayout,
    *,
    context_tokens: int,
    batch: int,
    threads: int = CPU_THREADS,
    bf16_units: bool = True,
) -> int:
    """Peak bytes of a step's tensors: of one full of prefill, or of one with a full batch, whichever takes more.

    shape:           as one device computes it
    context_tokens:  of the longest sequence
    batch:           sequences that a step runs at most; each may sample
    threads:         of torch, on a CPU
    bf16_units:      whether a CPU multiplies bfloat16 (AVX512-BF16, AMX); else products are first made in float32
    """
    return max(
        _peak(shape, kind, layout, step, threads, bf16_units)
        for step in (_prefill(layout, context_tokens, batch), _full_batch(layout, context_tokens, batch))
    )


def _prefill(layout: KvLayout, context: int, batch: int) -> _Step:
    tokens = min(layout.step_tokens, batch * context)
    return _Step(context, batch, tokens, chunks=-(-tokens // max(1, context)), decodes=0)


def _full_batch(layout: KvLayout, context: int, batch: int) -> _Step:
    """As few chunks as fill the budget, and decodes."""
    chunks = min(batch, max(1, -(-(layout.step_tokens - batch) // max(1, context - 1))))
    decodes = min(batch, layout.step_tokens) - chunks
    return _Step(context, batch, min(layout.step_tokens - decodes, chunks * context), chunks, decodes)


def _peak(shape: ModelShape, kind: DeviceKind, layout: KvLayout, step: _Step, threads: int, bf16_units: bool) -> int:
    in_layers = max(
        _attention(shape, kind, layout, step, layer, shape.window_of(layer), threads) for layer in shape.layer_kinds
    )
    # bfloat16 gate and up side by side, the gate's activation, their product
    mlp = step.tokens * shape.intermediate_size * 4 * _BF16
    # a layer's bfloat16 output, and a float32 copy and its square
    norm = step.tokens * shape.hidden_size * (_BF16 + 2 * _FLOAT32)
    # a single row is computed twice
    rows = max(step.batch, 2)
    logits = rows * shape.vocab_size * _BF16
    projecting = logits + rows * shape.hidden_size * _BF16
    if kind is DeviceKind.CPU:
        projecting += threads * _product_bytes(rows, shape.hidden_size)
        if not bf16_units:
            projecting += rows * shape.vocab_size * _FLOAT32
            # its input, gate and up in bfloat16 and in float32
            wide = step.tokens * (shape.hidden_size * _BF16 + 2 * shape.intermediate_size * (_BF16 + _FLOAT32))
            mlp = max(mlp, wide + threads * _product_bytes(step.tokens, shape.hidden_size))
    lasting = _lasting(shape, kind, layout, step)
    drawing = logits + shape.vocab_size * _DRAW_BYTES
    return max(lasting + max(in_layers, mlp, norm, projecting), drawing) + _SMALL_BYTES


def _product_bytes(rows: int, inner: int) -> int:
    """oneDNN's own memory for a product of bfloat16 matrices, for each thread, where the processor has bfloat16.

    By the allocator's record of torch 2.15: 64 KiB, 272 bytes for each of up to 128 rows, and their sums in float32 for
    256 columns where the inner dimension is too long for one pass.
    """
    at_once = min(rows, 128)
    return (64 << 10) + at_once * (320 + (0 if inner <= 1024 else 256 * _FLOAT32))


def _lasting(shape: ModelShape, kind: DeviceKind, layout: KvLayout, step: _Step) -> int:
    """What lives from the first layer to the logits."""
    windows = {table.window for table in layout.tables}
    hidden = step.tokens * shape.hidden_size * _BF16
    ids = step.tokens * 2 * _INT64
    # cosines and sines, in one set for each kind of layer
    rotations = len(windows) * step.tokens * 2 * shape.head_dim * _BF16
    blocks = {table: _blocks(table, layout, step) for table in layout.tables}
    if kind is DeviceKind.GPU:
        tables = sum(step.batch * of_sequence for of_sequence, _ in blocks.values()) * _INT32
        return hidden + ids + rotations + tables + len(layout.tables) * step.tokens * _INT64
    # masks of every chunk and decode, and the places in a last block that nobody wrote
    masks = 0
    for window in windows:
        table = next(table for table in layout.tables if table.window == window)
        masks += step.prefill * _attended(window, step) * _BF16
        masks += step.decodes * blocks[table][0] * layout.block_size * _BF16
        masks += step.decodes * (layout.block_size - 1) * shape.kv_heads * _INT64
    # for each KV head, where a new token is written and what is gathered
    rows = sum(
        step.tokens + step.decodes * of_decode + step.chunks * of_chunk for of_decode, of_chunk in blocks.values()
    )
    return hidden + ids + rotations + masks + rows * shape.kv_heads * _INT64


def _attention(
    shape: ModelShape,
    kind: DeviceKind,
    layout: KvLayout,
    step: _Step,
    layer: LayerShape,
    window: int | None,
    threads: int,
) -> int:
    """A layer's attention: its heads before and after the rotation, and what attends over the blocks."""
    query, key = shape.query_heads * layer.head_dim, layer.kv_heads * layer.head_dim
    value = layer.kv_heads * layer.value_dim
    result = shape.query_heads * (layer.value_dim or layer.head_dim)
    heads = step.tokens * (query + key + value) * _BF16
    # where heads are normalised: a float32 copy and its square
    normalised = step.tokens * (query + key) * 2 * _FLOAT32
    attending = step.tokens * (query + key + result) * _BF16
    if kind is DeviceKind.GPU:
        # float32 parts of results that a kernel merges
        return heads + max(normalised, attending + step.tokens * result * _FLOAT32)
    decode_blocks, chunk_blocks = _blocks(TableLayout((), window), layout, step)
    one = decode_blocks * layout.block_size
    groups = min(step.decodes * one, max(GATHER_TOKENS, one))
    grouped = min(step.decodes, max(1, GATHER_TOKENS // one)) if one else 0
    chunk = -(-step.prefill // step.chunks) if step.chunks else 0
    copied = max(
        _copies(shape, layer, layout, groups, grouped, result + query, shape.query_heads // layer.kv_heads, threads),
        _copies(shape, layer, layout, chunk_blocks * layout.block_size, chunk, result, chunk, threads),
    )
    return heads + max(normalised, attending + copied)


def _copies(
    shape: ModelShape,
    layer: LayerShape,
    layout: KvLayout,
    gathered: int,
    rows: int,
    row: int,
    queries: int,
    threads: int,
) -> int:
    """What torch attends over: gathered tokens' keys and values, and for each of rows queries `row` elements."""
    copy = gathered * layer.elements_per_token * _BF16 + gathered // layout.block_size * layer.kv_heads * _INT64
    results = rows * (row * _BF16 + shape.query_heads * _FLOAT32)
    # aten/src/ATen/native/cpu/FlashAttentionKernel.cpp: scores of 32, 64 or 256 queries by 512 keys in float32 and
    # bfloat16, their maxima and sums, and the result
    split = min(queries, 256 if queries >= 768 else 64 if queries >= 192 else 32)
    tile = split * (512 * (_FLOAT32 + _BF16) + (2 + layer.head_dim) * _FLOAT32)
    return copy + results + threads * tile


def _blocks(table: TableLayout, layout: KvLayout, step: _Step) -> tuple[int, int]:
    """Blocks of one table that a decode, and that a chunk attends to."""
    chunk = -(-step.prefill // step.chunks) if step.chunks else 0
    whole = -(-step.context // layout.block_size)
    if table.window is None:
        return whole, whole
    return (
        table.sequence_blocks(step.context, layout.block_size),
        min(whole, -(-(table.window - 1 + chunk - 1) // layout.block_size) + 1),
    )


def _attended(window: int | None, step: _Step) -> int:
    """Tokens that a chunk attends to, its own included."""
    chunk = -(-step.prefill // step.chunks) if step.chunks else 0
    return step.context if window is None else min(step.context, window - 1 + chunk)
