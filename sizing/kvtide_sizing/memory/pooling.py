"""What loading takes where KV heads are pooled: the model with all its heads is loaded first, to be compared with."""

from __future__ import annotations

from kvtide_sizing.memory.matrices import head_of
from kvtide_sizing.shape import ModelShape

# Windows of a text that both models read, and the last predictions of each, which are compared.
CHECKED_WINDOWS, WINDOW_TOKENS, CHECKED_ROWS = 5, 121, 24

_BF16, _FLOAT32 = 2, 4


def pooling_bytes(shape: ModelShape) -> int:
    """Bytes beside the pooled model's weights at most, before the pool is there; 0 where no heads are pooled.

    The first model's keys and values are of all heads. What it predicts is kept, in BF16, beside the scores of one
    window in float32; and of a window each layer's scores, probabilities and their sums, in float32.
    """
    if shape.pooled_from is None:
        return 0
    more = sum((shape.pooled_from - layer.kv_heads) * (layer.head_dim + layer.value_dim) for layer in shape.layers)
    outputs, _ = head_of(shape)
    kept = 2 * CHECKED_WINDOWS * CHECKED_ROWS * outputs * _BF16
    scoring = 3 * CHECKED_ROWS * outputs * _FLOAT32
    attending = 8 * shape.query_heads * WINDOW_TOKENS**2 * _FLOAT32
    stepping = WINDOW_TOKENS * (shape.hidden_size + shape.intermediate_size) * 4 * _BF16
    return more * (shape.hidden_size + 1) * _BF16 + kept + scoring + attending + stepping
