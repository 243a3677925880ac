"""Real weights: their tokenizer is what these tests compare."""

from pathlib import Path

import pytest

from devcluster.model import smollm2_gguf
from kvtide_worker.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file."""
    return smollm2_gguf()


@pytest.fixture(scope="session")
def ours(smollm2: Path) -> Tokenizer:
    """Its tokenizer, as the server reads it."""
    return Tokenizer.load(smollm2)
