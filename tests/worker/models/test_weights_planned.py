"""What the planner counts for weights, against what loaded models hold of each family: byte by byte."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from kvtide_kernels.cpu.library import library
from kvtide_kernels.cpu.linear import PANEL
from kvtide_sizing.memory.matrices import PANEL_OUTPUTS, converting_bytes
from kvtide_sizing.memory.overhead import CPU_LOAD_CHUNK_BYTES, QUANTISING_CHUNK_BYTES
from kvtide_sizing.memory.weights import WeightFormat, weights_bytes
from kvtide_sizing.models.inspect import inspect_model
from kvtide_worker.engine.peak import AllocationPeak
from kvtide_worker.models import choice
from kvtide_worker.models.checkpoint import open_checkpoint
from kvtide_worker.models.model import load_model
from tests.worker.models.dense import CPU
from tests.worker.models.tiny import save_tiny

FORMATS = (WeightFormat.BF16, WeightFormat.INT8)
ODD = {
    # No matrix fills its last panel of 32 outputs: (4 + 2 · 2) · 18 = 144 of queries, keys and values, 68, 2 · 98, 331.
    WeightFormat.BF16: {"hidden_size": 68, "intermediate_size": 98, "vocab_size": 331, "head_dim": 18},
    # Multiples of 16 inputs: those of 80 outputs and of 331 do not fill it.
    WeightFormat.INT8: {"hidden_size": 80, "intermediate_size": 112, "vocab_size": 331, "head_dim": 20},
}


class Unread:
    """A checkpoint whose tensors come from no file: all that is allocated is what they are turned into."""

    def __init__(self, path: Path) -> None:
        self._checkpoint = open_checkpoint(path)
        self.config = self._checkpoint.config

    def shape(self, name: str) -> tuple[int, ...]:
        return self._checkpoint.shape(name)

    def read(self, name: str, out: torch.Tensor) -> None:
        out.fill_(0.5)


def held(path: Path, stored: WeightFormat) -> int:
    return load_model(open_checkpoint(path), dtype=torch.bfloat16, device=CPU, weight_format=stored).weights_bytes


@pytest.mark.parametrize("stored", FORMATS)
@pytest.mark.parametrize("tied", [False, True], ids=["own-head", "tied"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3"])
def test_every_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, tied: bool, stored: WeightFormat
) -> None:
    save_tiny(tmp_path, family, tie_word_embeddings=tied)
    shape = inspect_model(tmp_path)
    assert held(tmp_path, stored) == weights_bytes(shape, stored, packed=True)
    monkeypatch.setattr(choice, "library", partial(library, "plain"))
    assert held(tmp_path, stored) == weights_bytes(shape, stored)


@pytest.mark.parametrize("stored", FORMATS)
def test_panels_are_whole_in_the_kernels_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: WeightFormat
) -> None:
    assert PANEL_OUTPUTS == PANEL
    save_tiny(tmp_path, "llama", **ODD[stored], tie_word_embeddings=True)
    shape = inspect_model(tmp_path)
    planned = weights_bytes(shape, stored, packed=True)
    assert planned > weights_bytes(shape, stored)
    if choice.library().instruction_set == choice.INSTRUCTION_SET:
        assert held(tmp_path, stored) == planned
    monkeypatch.setattr(choice, "library", partial(library, "plain"))
    assert held(tmp_path, stored) == weights_bytes(shape, stored)


@pytest.mark.slow
@pytest.mark.parametrize("stored", FORMATS)
def test_real_weights(smollm2: Path, monkeypatch: pytest.MonkeyPatch, stored: WeightFormat) -> None:
    # 134,515,008 parameters, of which 35,136 are norms. In INT8: a byte for each of the others, two for norms, and
    # four for each output: (960 + 576 + 2 · 1536 + 576) of 30 layers and 49,152 of the head.
    expected = {
        WeightFormat.BF16: 2 * 134_515_008,
        WeightFormat.INT8: 134_479_872 + 2 * 35_136 + 4 * (30 * 5184 + 49_152),
    }[stored]
    assert weights_bytes(inspect_model(smollm2), stored, packed=True) == expected
    assert held(smollm2, stored) == expected
    monkeypatch.setattr(choice, "library", partial(library, "plain"))
    assert held(smollm2, stored) == expected


@pytest.mark.parametrize("computed_by", ["plain", None], ids=["torch", "best"])
@pytest.mark.parametrize(
    ("changes", "stored"),
    [
        ({"hidden_size": 1024, "intermediate_size": 2048, "vocab_size": 320}, WeightFormat.INT8),
        ({"hidden_size": 256, "intermediate_size": 256, "vocab_size": 60_000}, WeightFormat.INT8),
        ({"hidden_size": 256, "intermediate_size": 256, "vocab_size": 60_001}, WeightFormat.INT8),
        ({"hidden_size": 256, "intermediate_size": 256, "vocab_size": 60_001}, WeightFormat.BF16),
        ({"hidden_size": 256, "intermediate_size": 256, "vocab_size": 60_000}, WeightFormat.BF16),
    ],
    ids=["large-layers", "large-head", "odd-head", "odd-head-bf16", "large-head-bf16"],
)
@pytest.mark.slow
def test_loading_takes_no_more_beside_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    stored: WeightFormat,
    computed_by: str | None,
) -> None:
    """By the allocator's record, with the chunk that is counted beside them; plain torch fills no panels."""
    monkeypatch.setattr(choice, "library", partial(library, computed_by))
    save_tiny(tmp_path, "llama", tie_word_embeddings=True, **changes)
    shape, checkpoint = inspect_model(tmp_path), Unread(tmp_path)
    with AllocationPeak(CPU) as peak:
        load_model(checkpoint, dtype=torch.bfloat16, device=CPU, weight_format=stored)
    quantised, packed = stored is WeightFormat.INT8, choice.library().instruction_set == choice.INSTRUCTION_SET
    converting = converting_bytes(shape, quantised=quantised, packed=packed)
    beside = peak.peak_bytes - weights_bytes(shape, stored, packed=packed)
    chunk = QUANTISING_CHUNK_BYTES if quantised else CPU_LOAD_CHUNK_BYTES
    assert 0.99 * converting - 20_000 <= beside <= converting + chunk
