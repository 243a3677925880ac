"""The text that key bases are fitted to: a story written for it, with a little code and some figures."""

from __future__ import annotations

from importlib.resources import files

from kvtide_sizing.memory.key_bases import CALIBRATION_TOKENS
from kvtide_worker.text.tokenizer import Tokenizer


def calibration_tokens(tokenizer: Tokenizer) -> list[int]:
    """The text's first CALIBRATION_TOKENS tokens, what the model wants before a text included."""
    return tokenizer.encode(calibration_text(), add_special_tokens=True)[:CALIBRATION_TOKENS]


def calibration_text() -> str:
    """The text, of more tokens than are read by any tokenizer."""
    return files("kvtide_worker.engine").joinpath("calibration.txt").read_text(encoding="utf-8")
