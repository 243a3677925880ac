"""How far each KV precision's predictions are from BF16's, with the model's own weights, before anybody is served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from kvtide_sizing.formats import LayerFormat, Precision, stored_bytes_per_token
from kvtide_worker.engine.messages import CalibrationTokens
from kvtide_worker.quality.compare import read_text
from kvtide_worker.quality.subject import Subject
from kvtide_worker.quality.windows import spread

# Windows that are read together, the last tokens of each one at a time, as answers are: 120 predictions. Far enough
# into a text for most of it to be packed, the last 32 tokens left out. All prefills are one step's tokens.
_WINDOWS, _WINDOW_TOKENS, _SCORED = 5, 121, 24


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
    size = min(_WINDOW_TOKENS, subject.model.config.max_position_embeddings, len(text.start) + len(text.checked))
    a_token = sum(
        stored_bytes_per_token(subject.shape, layers) for layers in (subject.formats(Precision.BF16), *formats.values())
    )
    # A window takes less than three blocks' tokens with what its recent ones take.
    count = max(1, min(_WINDOWS, memory_bytes // (a_token * (size + 3 * subject.block_size))))
    windows = spread(text.checked, text.start, count=count, size=size, scored=min(_SCORED, size // 3))
    named = {precision.value: layers for precision, layers in formats.items()}
    scores = read_text(subject, named, windows, lambda: None)
    return {precision: fmean(scores[precision.value].divergences) for precision in formats}
