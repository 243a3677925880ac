"""Real weights, and transformers' reading of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from devcluster.model import smollm2_gguf


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file."""
    return smollm2_gguf()


@pytest.fixture(scope="session")
def smollm2_float32(smollm2: Path) -> LlamaForCausalLM:
    """The same file as transformers dequantises it, in float32."""
    read = LlamaForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32)
    # A model from a GGUF file cannot be saved; one that has its weights can.
    config = read.config.to_dict()
    del config["quantization_config"]
    plain = LlamaForCausalLM(LlamaConfig(**config)).eval()
    plain.load_state_dict(read.state_dict())
    return plain
