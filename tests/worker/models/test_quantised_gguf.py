"""Quantised tensors of a GGUF file: every kind that files have, read in rows, where rows of Q and K are permuted."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers.integrations.gguf.dequant import dequantize

from kvtide_sizing.errors import UnsupportedModel
from kvtide_worker.models.gguf import GgufCheckpoint
from tests.worker.models.dense import read
from tests.worker.models.gguf_files import write_llama
from tests.worker.models.tiny import save_tiny_llama

Stored = dict[str, tuple[np.ndarray, Kind]]


# Upper bytes of a block's float16 fields (ggml-common.h): without the exponent's highest bit they are finite.
SCALES = {
    Kind.Q2_K: [81, 83],
    Kind.Q3_K: [109],
    Kind.Q4_K: [1, 3],
    Kind.Q5_K: [1, 3],
    Kind.Q6_K: [209],
    Kind.IQ4_NL: [1],
    Kind.IQ4_XS: [1],
}


def blocks(weight: torch.Tensor, kind: Kind) -> np.ndarray:
    """The rows as blocks, by gguf where it can quantise; else any bytes, which all are blocks of something."""
    if kind not in SCALES:
        return gguf.quantize(weight.numpy(), kind)
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows, width = weight.shape
    drawn = np.random.default_rng(kind).integers(0, 256, (rows, width // block_size, block_bytes), np.uint8)
    drawn[:, :, SCALES[kind]] &= 0b1011_1111
    return drawn.reshape(rows, -1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """Rows of 256 elements, a K-quant's block: where models are written, and the matrices."""
    folder = tmp_path_factory.mktemp("quantised")
    reference = save_tiny_llama(folder, hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    matrices = {name: part.detach() for name, part in reference.named_parameters() if part.dim() == 2}
    return folder, matrices


def written(folder: Path, stored: Stored) -> GgufCheckpoint:
    reference = save_tiny_llama(folder, hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    write_llama(folder / "model.gguf", reference, stored=stored)
    return GgufCheckpoint(folder / "model.gguf")


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0, *SCALES])
def test_every_tensor_is_what_transformers_dequantises(model: tuple[Path, dict[str, torch.Tensor]], kind: Kind) -> None:
    """transformers has code of its own for these, of torch's operations."""
    folder, matrices = model
    stored = {name: (blocks(weight, kind), kind) for name, weight in matrices.items()}
    checkpoint = written(folder, stored)
    for name, (rows, _) in stored.items():
        expected = dequantize(torch.from_numpy(rows), kind).view(matrices[name].shape)
        torch.testing.assert_close(read(checkpoint, name), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (Kind.F16, 1 << 11),
        (Kind.BF16, 1 << 8),
        (Kind.Q4_0, 8),
        (Kind.Q4_1, 7.5),
        (Kind.Q5_0, 16),
        (Kind.Q5_1, 15.5),
        (Kind.Q8_0, 127),
    ],
)
def test_what_is_quantised_is_read_within_a_step(
    model: tuple[Path, dict[str, torch.Tensor]], kind: Kind, parts: float
) -> None:
    """parts: so many steps are the largest number of a block of 32, at least (ggml-quants.c: d is max / -8 in Q4_0,
    (max - min) / 15 in Q4_1, and so on; scales are float16)."""
    folder, matrices = model
    checkpoint = written(folder, {name: (blocks(weight, kind), kind) for name, weight in matrices.items()})
    for name, weight in matrices.items():
        error = (read(checkpoint, name) - weight).view(-1, 32).abs().amax(-1)
        largest = weight.view(-1, 32).abs().amax(-1)
        assert (error <= 1.01 * largest / parts).all(), name
        assert kind in (Kind.F16, Kind.BF16) or (error > 0).any()


def test_a_kind_that_is_not_read_is_named_before_anything_is(model: tuple[Path, dict[str, torch.Tensor]]) -> None:
    """Q8_K is what llama.cpp multiplies with, not what it stores."""
    folder, _ = model
    name = "model.layers.0.mlp.down_proj.weight"
    with pytest.raises(UnsupportedModel, match=r"stores blk\.0\.ffn_down\.weight as Q8_K, which is not read; Q4_0, "):
        written(folder, {name: (np.zeros((256, 292), np.uint8), Kind.Q8_K)})
