"""What a step takes beside weights and pool: the tensors that live at once at its fullest moment.

    forward   | S + attention of a layer | S + MLP of a layer | ... | S + logits |
    sampling                                                                     | logits + one row's |

S lives through the forward pass: the residual stream, rotations, and what attention planned. Attention is that of the
kernels, which read blocks where they lie: the image has them. On a CPU this is what the worker's forward pass
allocates, by its kernels for whole layers or by plain torch, checked against the allocator's record for each served
family. On a GPU plain torch's pass is counted; that has not been measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtide_sizing.devices.device import DeviceKind
from kvtide_sizing.memory.kv import KvLayout
from kvtide_sizing.memory.matrices import (
    CPU_DEQUANTISED_ELEMENTS,
    GPU_DEQUANTISED_ELEMENTS,
    dequantised_rows,
    head_of,
    matrices_of,
)
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_sizing.shape import LayerShape, ModelShape

_BF16, _FLOAT32, _INT64, _INT32 = 2, 4, 8, 4

# Tokens that one piece of a decode on a CPU attends to: in sequences of up to LONG_TOKENS, and in longer ones. Pieces
# begin at multiples of it, so that they hang on the own sequence alone. Small enough that two cores share a sequence of
# a thousand tokens evenly, large enough that what each piece costs beside its tokens does not show. Each leaves its
# part of the result in memory.
SPLIT_TOKENS, LONG_SPLIT_TOKENS, LONG_TOKENS = 512, 2048, 4096

# New tokens of a chunk that read the context together.
CHUNK_TOKENS = 32

# How the CPU's kernels are told of a sequence's share of a step, and of a piece of work: so many int64 each.
_SPAN_FIELDS, _UNIT_FIELDS = 7, 8

# Each of oneDNN's threads has memory of its own for a product; how many there will be is not known when a plan is made.
# What more of them take comes out of the reserve.
CPU_THREADS = 4

# Of a row that is drawn from: float32 logits and probabilities, their order (float32 and int64), the sum before each,
# and which are kept.
_DRAW_BYTES = _FLOAT32 + _FLOAT32 + _FLOAT32 + _INT64 + _FLOAT32 + 1

# Rows that a GPU draws from side by side. Each has what a sort takes beside its result too: keys and places once more.
GPU_DRAWN_ROWS = 8
_GPU_DRAW_BYTES = GPU_DRAWN_ROWS * (_DRAW_BYTES + _FLOAT32 + _INT64)

# Of an element of an embedding that is tied to a head in INT8, as it is looked up: its byte and its sign, and float32.
_LOOKED_UP_BYTES = 2 + 4 * _FLOAT32

# Lengths, places and scalars.
_SMALL_BYTES = 16 << 10


@dataclass(frozen=True)
class _Step:
    """A step's tokens, of batch sequences up to context tokens long: one of each that decodes, the rest in chunks."""

    context: int
    batch: int
    tokens: int
    decodes: int


def step_bytes(
    shape: ModelShape,
    kind: DeviceKind,
    layout: KvLayout,
    *,
    context_tokens: int,
    batch: int,
    key_bases: bool = False,
    threads: int = CPU_THREADS,
    layer_kernels: bool = True,
    bf16_units: bool = True,
    weights: WeightFormat = WeightFormat.BF16,
) -> int:
    """Peak bytes of a step's tensors: of one full of prefill, or of one with a full batch, whichever takes more.

    shape:           as one device computes it
    context_tokens:  of the longest sequence
    batch:           sequences that a step runs at most; each may sample
    key_bases:       whether keys have bases, which a GPU turns keys and queries into in float32
    layer_kernels:   whether kernels compute a CPU's layers (AVX512-BF16 and VBMI); else plain torch does, of which are
    threads:         its threads
    bf16_units:      whether it multiplies bfloat16 (AVX512-BF16, AMX); else products are first made in float32
    weights:         of matrices; plain torch, which a GPU has for INT8, dequantises some rows of one at a time
    """
    steps = (_prefill(layout, context_tokens, batch), _full_batch(layout, context_tokens, batch))
    if kind is DeviceKind.CPU and layer_kernels:
        return max(_kernels_peak(shape, layout, step, weights) for step in steps)
    return max(_peak(shape, kind, layout, step, key_bases, threads, bf16_units, weights) for step in steps)


def _prefill(layout: KvLayout, context: int, batch: int) -> _Step:
    return _Step(context, batch, tokens=min(layout.step_tokens, batch * context), decodes=0)


def _full_batch(layout: KvLayout, context: int, batch: int) -> _Step:
    """As few chunks as fill the budget, and decodes."""
    chunks = min(batch, max(1, -(-(layout.step_tokens - batch) // max(1, context - 1))))
    decodes = min(batch, layout.step_tokens) - chunks
    return _Step(context, batch, min(layout.step_tokens, decodes + chunks * context), decodes)


def _kernels_peak(shape: ModelShape, layout: KvLayout, step: _Step, weights: WeightFormat) -> int:
    """Of `kvtide_kernels.cpu.layers`: all in bfloat16, with nothing in float32 and nothing of a thread's own."""
    hidden = step.tokens * shape.hidden_size * _BF16
    query = max(shape.query_heads * layer.head_dim for layer in shape.layer_kinds)
    # What is normalised, all heads side by side, and queries, keys and values apart. Attention's result is no wider.
    in_layers = hidden + 2 * step.tokens * _BF16 * max(
        shape.query_heads * layer.head_dim + layer.kv_heads * (layer.head_dim + layer.value_dim)
        for layer in shape.layer_kinds
    )
    # What was attended to and what is normalised; gate and up side by side, where the result lies too; their product.
    mlp = hidden + step.tokens * _BF16 * (
        query + max(2 * shape.intermediate_size, shape.hidden_size) + shape.intermediate_size
    )
    logits = step.batch * shape.vocab_size * _BF16
    # The rows themselves, and as they are normalised.
    projecting = logits + 2 * step.batch * shape.hidden_size * _BF16
    return _whole(shape, DeviceKind.CPU, layout, step, weights, logits, max(in_layers, mlp, projecting))


def _peak(
    shape: ModelShape,
    kind: DeviceKind,
    layout: KvLayout,
    step: _Step,
    key_bases: bool,
    threads: int,
    bf16_units: bool,
    weights: WeightFormat,
) -> int:
    in_layers = max(_attention(shape, kind, step, layer, key_bases) for layer in shape.layer_kinds)
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
    widest = max(in_layers, mlp, norm, projecting) + _dequantised(shape, kind, step, bf16_units, weights)
    return _whole(shape, kind, layout, step, weights, logits, widest)


def _whole(
    shape: ModelShape,
    kind: DeviceKind,
    layout: KvLayout,
    step: _Step,
    weights: WeightFormat,
    logits: int,
    widest: int,
) -> int:
    """The peak of a step: the widest moment of its layers and head, or of what comes before or behind them."""
    looked_up = step.tokens * shape.hidden_size * _LOOKED_UP_BYTES if weights is WeightFormat.INT8 else 0
    drawing = logits + shape.vocab_size * (_GPU_DRAW_BYTES if kind is DeviceKind.GPU else _DRAW_BYTES)
    return max(_lasting(shape, kind, layout, step) + max(looked_up, widest), drawing) + _SMALL_BYTES


def _dequantised(shape: ModelShape, kind: DeviceKind, step: _Step, bf16_units: bool, weights: WeightFormat) -> int:
    """Rows of a matrix of INT8 that are BF16 for a product, and what it gives; a CPU's kernels do without."""
    if weights is not WeightFormat.INT8 or (kind is DeviceKind.CPU and bf16_units):
        return 0
    elements = GPU_DEQUANTISED_ELEMENTS if kind is DeviceKind.GPU else CPU_DEQUANTISED_ELEMENTS
    each = _BF16 if bf16_units else _BF16 + _FLOAT32
    most = 0
    for matrix in (head_of(shape), *(one for layer in shape.layer_kinds for one in matrices_of(shape, layer))):
        rows = dequantised_rows(matrix, elements)
        most = max(most, rows * (matrix[1] + max(step.tokens, step.batch)) * each)
    return most


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
    planned = _gpu_plan(layout, step) if kind is DeviceKind.GPU else _cpu_plan(shape, layout, step)
    return hidden + ids + rotations + planned


def _gpu_plan(layout: KvLayout, step: _Step) -> int:
    """Block tables of all sequences, as wide as the longest's, and where each new token is written."""
    return step.batch * _table_entries(layout, step) * _INT32 + len(layout.tables) * step.tokens * _INT64


def _cpu_plan(shape: ModelShape, layout: KvLayout, step: _Step) -> int:
    """Each table's block ids and spans, each window's pieces of work, and parts of results of decodes that are cut."""
    pieces = {table.window: _pieces(table.window, step.context) for table in layout.tables}
    units = sum(step.decodes * each + -(-step.tokens // CHUNK_TOKENS) + step.batch for each in pieces.values())
    spans = len(layout.tables) * step.batch
    ids = step.batch * _table_entries(layout, step)
    most = max(pieces.values())
    # So have a decode's queries. A chunk of several pieces has a part too, though it leaves nothing there.
    parts = (step.decodes * (most + 1) if most > 1 else 0) + min(step.batch, step.tokens // (CHUNK_TOKENS + 1))
    part = shape.query_heads * (shape.head_dim + 2) * _FLOAT32 + shape.kv_heads * _INT32
    return ids * _INT32 + (spans * _SPAN_FIELDS + units * _UNIT_FIELDS) * _INT64 + parts * part


def _table_entries(layout: KvLayout, step: _Step) -> int:
    """Blocks that a sequence attends to and is written to at most, over all tables, recent ones included."""
    whole = -(-step.context // layout.block_size)
    entries = len(layout.tables) * layout.recent_blocks
    for table in layout.tables:
        # A chunk that is all of the step reaches into most.
        seen = step.context if table.window is None else table.window - 1 + max(0, step.tokens - 1)
        reach = -(-seen // layout.block_size) + 1
        entries += min(whole, reach)
    return entries


def _pieces(window: int | None, context: int) -> int:
    """What a decode of at most so many tokens is cut into at most."""
    if window is not None and window < context:
        # Pieces begin at multiples of their length, a window anywhere.
        return 1 + max(-(-min(window, LONG_TOKENS) // SPLIT_TOKENS), -(-window // LONG_SPLIT_TOKENS))
    return max(-(-min(context, LONG_TOKENS) // SPLIT_TOKENS), -(-context // LONG_SPLIT_TOKENS))


def _attention(shape: ModelShape, kind: DeviceKind, step: _Step, layer: LayerShape, key_bases: bool) -> int:
    """A layer's attention: projected heads, and what is made of them."""
    query, key = shape.query_heads * layer.head_dim, layer.kv_heads * layer.head_dim
    value = layer.kv_heads * layer.value_dim
    heads = step.tokens * (query + key + value) * _BF16
    # Where heads are normalised: a float32 copy and its square. No attention takes as much: in bfloat16 rotated heads,
    # a result, and on a CPU all heads side by side; on a GPU rotated heads, a result, and float32 parts of it.
    normalised = step.tokens * (query + key) * 2 * _FLOAT32
    if kind is DeviceKind.CPU or not key_bases:
        return heads + normalised
    # rotated heads, and queries in float32, as their product's operand, and turned
    turning = step.tokens * (query + key) * _BF16 + step.tokens * 3 * query * _FLOAT32
    return heads + max(normalised, turning)
