"""What several of these tests need: a real GGUF file, and builders of small files and shapes."""

from pathlib import Path

import pytest

from devcluster.model import smollm2_gguf


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, as llama.cpp's converter wrote it."""
    return smollm2_gguf()
