"""The text that key bases are fitted to and formats checked on: a story written for it, with some code and figures."""

from __future__ import annotations

from importlib.resources import files

from kvtide_sizing.memory.key_bases import CALIBRATION_TOKENS
from kvtide_worker.engine.messages import CalibrationTokens
from kvtide_worker.text.tokenizer import Tokenizer

# At the text's end; what stands before it and is not fitted to is checked on too.
_CHECKED_TOKENS = 512


def calibration_tokens(tokenizer: Tokenizer) -> CalibrationTokens:
    """The text's first CALIBRATION_TOKENS tokens to fit to, what the model wants before a text included; those behind
    them, or _CHECKED_TOKENS of the end where these are fewer, to check on."""
    tokens = tokenizer.encode(calibration_text(), add_special_tokens=True)
    return CalibrationTokens(
        fitted=tokens[:CALIBRATION_TOKENS],
        checked=tokens[min(CALIBRATION_TOKENS, len(tokens) - _CHECKED_TOKENS) :],
        start=tokenizer.encode("", add_special_tokens=True),
    )


def calibration_text() -> str:
    """The text, of more tokens than are fitted to by any tokenizer."""
    return files("kvtide_worker.engine").joinpath("calibration.txt").read_text(encoding="utf-8")
