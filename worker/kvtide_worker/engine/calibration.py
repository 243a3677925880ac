"""The text that key bases are fitted to: a story written for it, with a little code and some figures."""

from __future__ import annotations

from importlib.resources import files

# So many tokens of it are read. Queries and keys of 64 to 256 elements show their directions in as many.
CALIBRATION_TOKENS = 1024


def calibration_text() -> str:
    """The text, of more tokens than are read by any tokenizer."""
    return files("kvtide_worker.engine").joinpath("calibration.txt").read_text(encoding="utf-8")
