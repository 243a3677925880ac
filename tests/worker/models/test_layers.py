"""What computes layers: the kernels beside torch's functions one by one, and beside plain torch in whole models."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import gelu, rms_norm, silu

from kvtide_kernels.cpu.layers import INSTRUCTION_SET, CpuLayer, CpuLayers
from kvtide_kernels.cpu.library import library
from kvtide_kernels.cpu.linear import PackedMatrix
from kvtide_kernels.hadamard import hadamard
from kvtide_sizing.errors import UnsupportedPrecision
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_worker.models import choice, matrix
from kvtide_worker.models.checkpoint import open_checkpoint
from kvtide_worker.models.model import load_model
from kvtide_worker.models.rope import rotate
from tests.worker.models.dense import CPU, dense_logits, load
from tests.worker.models.tiny import save_tiny

ROWS, EPSILON = 5, 1e-5
# No multiples of sixteen: half a head is ten elements, the MLP twenty-four.
QUERY_HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 2, 1, 20, 24
HIDDEN = (QUERY_HEADS + 2 * KV_HEADS) * HEAD_DIM


@pytest.fixture(autouse=True, scope="module")
def kernels() -> None:
    """Asked when the tests run: kernels that are not there yet take a minute to compile."""
    if library().instruction_set != INSTRUCTION_SET:
        pytest.skip(f"this processor has no {INSTRUCTION_SET}")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16()


def same(*outputs_inputs: int) -> PackedMatrix:
    """Ones on the diagonal: what goes in comes out."""
    return PackedMatrix.bf16(torch.eye(*outputs_inputs).bfloat16())


def layers_of(gate: Any = "silu", **weights: Any) -> CpuLayers:
    """One layer: queries, keys and values are the normalised residual, attention gives nothing back, and neither does
    the MLP."""
    layers = CpuLayers(
        library(), query_heads=QUERY_HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, epsilon=EPSILON, gate=gate
    )
    attended = QUERY_HEADS * HEAD_DIM
    given: dict[str, Any] = {
        "attention_norm": torch.ones(HIDDEN).bfloat16(),
        "qkv": same(HIDDEN, HIDDEN),
        "attention_out": PackedMatrix.bf16(torch.zeros(HIDDEN, attended).bfloat16()),
        "mlp_norm": torch.ones(HIDDEN).bfloat16(),
        "gate_up": same(2 * INTERMEDIATE, HIDDEN),
        "down": PackedMatrix.bf16(torch.zeros(HIDDEN, INTERMEDIATE).bfloat16()),
    }
    layers.append(CpuLayer(**{**given, **weights}))
    return layers


def rotation(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.rand(ROWS, 1, size // 2) * 6
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def assert_within_a_step(out: torch.Tensor, expected: torch.Tensor) -> None:
    """Of bfloat16: 2^-7 of a number at most."""
    torch.testing.assert_close(out, expected, rtol=2**-7, atol=0)


def test_norms_round_before_a_bfloat16_scale_and_once_with_a_float32_one() -> None:
    rows = drawn(ROWS, HIDDEN)
    for scale in (drawn(HIDDEN), torch.randn(HIDDEN)):
        layers = layers_of()
        layers.end(scale, same(HIDDEN, HIDDEN))
        normalised = rms_norm(rows.double(), (HIDDEN,), eps=EPSILON)
        out = layers.logits(rows)
        if scale.dtype is torch.bfloat16:
            assert torch.equal(out, normalised.bfloat16() * scale)
        else:
            assert torch.equal(out, (normalised * scale).bfloat16())


@pytest.mark.parametrize("size", [HEAD_DIM, 16, 6])
def test_heads_are_normalised_and_rotated_and_values_are_not(size: int) -> None:
    rows, turned = drawn(ROWS, HIDDEN), rotation(size)
    heads_norm = drawn(QUERY_HEADS + KV_HEADS, HEAD_DIM)
    plain = rms_norm(rows.double(), (HIDDEN,), eps=EPSILON).bfloat16().view(ROWS, -1, HEAD_DIM)
    for scale in (None, heads_norm):
        step = layers_of(heads_norm=scale).begin(rows.clone())
        query, key, value = step.before_attention(0, turned)
        heads = plain[:, : QUERY_HEADS + KV_HEADS]
        if scale is not None:
            heads = rms_norm(heads.double(), (HEAD_DIM,), eps=EPSILON).bfloat16() * scale
        expected = rotate(heads, *turned)
        assert torch.equal(query, expected[:, :QUERY_HEADS])
        assert torch.equal(key, expected[:, QUERY_HEADS:])
        assert torch.equal(value, plain[:, QUERY_HEADS + KV_HEADS :])
        assert torch.equal(step.hidden, rows)


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
def test_gates(gate: str) -> None:
    """Of all sizes, where e^x overflows too."""
    rows = (drawn(ROWS, HIDDEN).float() * torch.logspace(-3, 3, ROWS)[:, None]).bfloat16()
    scale = torch.logspace(-2, 2, HIDDEN).bfloat16()
    layers = layers_of(gate, mlp_norm=scale, down=same(HIDDEN, INTERMEDIATE))
    step = layers.begin(rows.clone())
    step.before_attention(0, rotation(HEAD_DIM))
    step.after_attention(0, drawn(ROWS, QUERY_HEADS, HEAD_DIM))
    wide = rms_norm(rows.double(), (HIDDEN,), eps=EPSILON).bfloat16() * scale
    opened = wide[:, :INTERMEDIATE]
    opened = silu(opened) if gate == "silu" else gelu(opened, approximate="tanh")
    expected = rows.clone()
    expected[:, :INTERMEDIATE] += opened * wide[:, INTERMEDIATE : 2 * INTERMEDIATE]
    assert_within_a_step(step.hidden, expected)


def test_what_goes_back_to_the_residual_is_normalised() -> None:
    rows, attended = drawn(ROWS, HIDDEN), drawn(ROWS, QUERY_HEADS, HEAD_DIM)
    scale = torch.randn(HIDDEN)
    back = torch.zeros(HIDDEN, QUERY_HEADS * HEAD_DIM)
    back[: QUERY_HEADS * HEAD_DIM] = torch.eye(QUERY_HEADS * HEAD_DIM)
    given = torch.cat([attended.flatten(1), torch.zeros(ROWS, HIDDEN - QUERY_HEADS * HEAD_DIM)], dim=1)
    for norm in (None, scale):
        step = layers_of(attention_out=PackedMatrix.bf16(back.bfloat16()), attention_out_norm=norm).begin(rows.clone())
        step.after_attention(0, attended)
        more = given if norm is None else rms_norm(given.double(), (HIDDEN,), eps=EPSILON) * norm
        assert torch.equal(step.hidden, rows + more.bfloat16())


@pytest.mark.parametrize("tied", [False, True], ids=["own-head", "tied"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3", "phi3"])
def test_models_are_plain_torchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, tied: bool) -> None:
    """Both are as far from the same model in float32: what is between them is rounding."""
    save_tiny(tmp_path, family, tie_word_embeddings=tied)
    checkpoint, tokens = open_checkpoint(tmp_path), torch.randint(0, 320, (60,))
    exact = dense_logits(load(checkpoint), tokens, [60])
    kernels = dense_logits(load(checkpoint, torch.bfloat16), tokens, [30, 1, 1, 28])
    monkeypatch.setattr(choice, "library", partial(library, "plain"))
    plain = dense_logits(load(checkpoint, torch.bfloat16), tokens, [30, 1, 1, 28])
    lost = [(logits.double() - exact).square().mean().sqrt() for logits in (kernels, plain)]
    assert lost[0] <= 1.25 * lost[1]


def rounded(rows: torch.Tensor) -> torch.Tensor:
    """To 127 steps each way of a row's largest element. A padding token's embedding is all zeros."""
    scales = rows.abs().amax(dim=-1, keepdim=True).clamp(min=1e-9) / 127
    return (rows / scales).round() * scales


def rounded_rotated(rows: torch.Tensor) -> torch.Tensor:
    return hadamard(rounded(hadamard(rows)))


def noise(logits: torch.Tensor, exact: torch.Tensor) -> float:
    return float((logits - exact).square().mean().sqrt())


# Plain torch rounds twice: products, and what they are with the scales. The kernels round rows too, to steps that what
# bfloat16 loses before may turn over.
@pytest.mark.parametrize(("computed_by", "most"), [(None, 3), ("plain", 1.5)], ids=["best", "torch"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3", "phi3"])
def test_weights_of_eight_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, computed_by: str | None, most: float
) -> None:
    """As transformers computes with matrices that are rounded, head and embeddings with them: by the kernels where they
    are rotated, and with what they are multiplied with."""
    reference = save_tiny(tmp_path, family, tie_word_embeddings=True)
    turn = rounded_rotated if computed_by is None else rounded
    with torch.inference_mode():
        for name, weight in reference.named_parameters():
            if weight.ndim == 2:
                weight.copy_(turn(weight.bfloat16().float()))
            elif "norm" not in name:
                weight.copy_(weight.bfloat16())
        for module in reference.modules():
            if isinstance(module, torch.nn.Linear) and computed_by is None:
                module.register_forward_pre_hook(lambda _, rows: (turn(rows[0]),))
        tokens = torch.randint(0, 320, (60,))
        expected = reference(tokens[None]).logits[0]
    monkeypatch.setattr(choice, "library", partial(library, computed_by))
    checkpoint = open_checkpoint(tmp_path)
    model = load_model(checkpoint, dtype=torch.bfloat16, device=CPU, weight_format=WeightFormat.INT8)
    bf16, exact = load(checkpoint, torch.bfloat16), dense_logits(load(checkpoint), tokens, [60])
    # What arithmetic in bfloat16 loses: as much as of weights in bfloat16.
    lost = noise(dense_logits(bf16, tokens, [30, 1, 29]), exact)
    assert noise(dense_logits(model, tokens, [30, 1, 29]), expected) <= most * lost
    assert model.weights_bytes < 0.6 * bf16.weights_bytes


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_weights_of_eight_bits_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """Nothing is lost beside the rounding of the matrices, whatever part of one is multiplied with at a time."""
    monkeypatch.setattr(matrix, "CPU_DEQUANTISED_ELEMENTS", 64 * 50)
    reference = save_tiny(tmp_path, family, tie_word_embeddings=True)
    with torch.inference_mode():
        for weight in reference.parameters():
            if weight.ndim == 2:
                weight.copy_(rounded(weight))
        tokens = torch.randint(0, 320, (60,))
        expected = reference(tokens[None]).logits[0]
    model = load_model(open_checkpoint(tmp_path), dtype=torch.float32, device=CPU, weight_format=WeightFormat.INT8)
    torch.testing.assert_close(dense_logits(model, tokens, [30, 1, 29]), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("stored", [WeightFormat.INT4, WeightFormat.FP8])
def test_weights_that_nothing_multiplies_with_are_refused(tmp_path: Path, stored: WeightFormat) -> None:
    save_tiny(tmp_path, "llama")
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(UnsupportedPrecision, match=rf"weightPrecision {stored} .*; write BF16 or INT8"):
        load_model(checkpoint, dtype=torch.bfloat16, device=CPU, weight_format=stored)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_weights_take_what_they_take_in_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    save_tiny(tmp_path, family)
    packed = load(open_checkpoint(tmp_path), torch.bfloat16).weights_bytes
    monkeypatch.setattr(choice, "library", partial(library, "plain"))
    assert packed == load(open_checkpoint(tmp_path), torch.bfloat16).weights_bytes
