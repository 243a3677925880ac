"""A model's matrices as the worker merges and holds them, each as (outputs, inputs)."""

from __future__ import annotations

from fractions import Fraction

from kvtide_sizing.shape import LayerShape, ModelShape

# Outputs of a packed matrix that lie together: PANEL of the CPU's kernels.
PANEL_OUTPUTS = 32

# Elements of a matrix in INT8 that plain torch makes BF16 at a time: on a GPU enough to keep it busy with a product, on
# a CPU few, as its memory is short.
GPU_DEQUANTISED_ELEMENTS, CPU_DEQUANTISED_ELEMENTS = 1 << 25, 1 << 20

_BF16 = 2

Matrix = tuple[int, int]


def head_of(shape: ModelShape) -> Matrix:
    """What makes logits."""
    return shape.vocab_size, shape.hidden_size


def matrices_of(shape: ModelShape, layer: LayerShape) -> list[Matrix]:
    """A layer's: queries, keys and values; what attention gives; gate and up; down."""
    hidden, width = shape.hidden_size, shape.intermediate_size
    heads = shape.query_heads * layer.head_dim
    kept = layer.kv_heads * (layer.head_dim + layer.value_dim)
    return [(heads + kept, hidden), (hidden, heads), (2 * width, hidden), (hidden, width)]


def panels_bytes(shape: ModelShape, element_bytes: Fraction, channel_bytes: int) -> int:
    """Bytes of the outputs beyond a model's own that fill the last panel of each packed matrix."""
    matrices = [head_of(shape), *(each for layer in shape.layers for each in matrices_of(shape, layer))]
    return sum(int(_filling(each) * (each[1] * element_bytes + channel_bytes)) for each in matrices)


def converting_bytes(shape: ModelShape, *, quantised: bool, packed: bool) -> int:
    """What loading holds beside the weights at most while it turns matrices into what is kept.

    A layer's matrices, and the head, come in BF16. Those that are packed in BF16 are turned where they lie, but for
    those whose last panel is not full: of these there is a copy, as there is of one at a time that is quantised.
    """
    together = ([head_of(shape)], *(matrices_of(shape, layer) for layer in shape.layer_kinds))
    return max(_BF16 * _converting_elements(matrices, quantised, packed) for matrices in together)


def _converting_elements(matrices: list[Matrix], quantised: bool, packed: bool) -> int:
    copied = [each for each in matrices if packed and _filling(each)]
    if not quantised:
        return sum(outputs * inputs for outputs, inputs in copied)
    copy = max(((each[0] + _filling(each)) * each[1] for each in copied), default=0)
    return copy + sum(outputs * inputs for outputs, inputs in matrices)


def dequantised_rows(matrix: Matrix, elements: int) -> int:
    """Outputs that plain torch multiplies with at a time, of so many elements together; at least one."""
    outputs, inputs = matrix
    return min(outputs, max(1, elements // inputs))


def _filling(matrix: Matrix) -> int:
    return -matrix[0] % PANEL_OUTPUTS
