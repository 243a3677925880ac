"""The text that key bases are fitted to: a story written for it, with a little code and some figures."""

from __future__ import annotations

from importlib.resources import files

from kvtide_sizing.memory.key_bases import CALIBRATION_TOKENS

__all__ = ["CALIBRATION_TOKENS", "calibration_text"]


def calibration_text() -> str:
    """The text, of more tokens than are read by any tokenizer."""
    return files("kvtide_worker.engine").joinpath("calibration.txt").read_text(encoding="utf-8")
