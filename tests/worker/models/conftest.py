"""Real weights, and transformers' reading of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from devcluster.model import smollm2_gguf


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file."""
    return smollm2_gguf()


@pytest.fixture(scope="session")
def smollm2_float32(smollm2: Path) -> LlamaForCausalLM:
    """The same file as transformers dequantises it, in float32."""
    return LlamaForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32).eval()
