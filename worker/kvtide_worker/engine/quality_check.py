"""How far each KV precision's predictions are from BF16's, with the model's own weights, before anybody is served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from kvtide_sizing.formats import LayerFormat, Precision, stored_bytes_per_token
from kvtide_sizing.memory.pooling import CHECKED_ROWS, CHECKED_WINDOWS, WINDOW_TOKENS
from kvtide_worker.engine.messages import CalibrationTokens
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.quality.compare import read_text
from kvtide_worker.quality.subject import Subject
from kvtide_worker.quality.windows import Window, spread


def window_tokens(text: CalibrationTokens, config: ModelConfig) -> int:
    """Tokens of a window that a check at load reads: fewer where the model or the text has fewer."""
    return min(WINDOW_TOKENS, config.max_position_embeddings, len(text.start) + len(text.checked))


def checked_windows(text: CalibrationTokens, size: int, count: int = CHECKED_WINDOWS) -> list[Window]:
    """What a check at load reads: windows of `size` tokens all over the text.

    The last tokens of each are read one at a time, as answers are: 120 predictions of five windows. Far enough into a
    text for most of it to be packed, the last 32 tokens left out. All prefills are one step's tokens.
    """
    return spread(text.checked, text.start, count=count, size=size, scored=min(CHECKED_ROWS, size // 3))


def divergences(
    subject: Subject,
    formats: Mapping[Precision, Sequence[LayerFormat]],
    text: CalibrationTokens,
    *,
    memory_bytes: int,
) -> dict[Precision, float]:
    """The mean KL divergence of each precision's next-token predictions from BF16's, in nats; NaN where logits are.

    memory_bytes:  what the pools that are read through may take together, BF16's included: fewer windows are read where
                   they would take more, one at least
    """
    if not formats:
        return {}
    size = window_tokens(text, subject.model.config)
    a_token = sum(
        stored_bytes_per_token(subject.shape, layers) for layers in (subject.formats(Precision.BF16), *formats.values())
    )
    # A window takes less than three blocks' tokens with what its recent ones take.
    count = max(1, min(CHECKED_WINDOWS, memory_bytes // (a_token * (size + 3 * subject.block_size))))
    named = {precision.value: layers for precision, layers in formats.items()}
    scores = read_text(subject, named, checked_windows(text, size, count), lambda: None)
    return {precision: fmean(scores[precision.value].divergences) for precision in formats}
