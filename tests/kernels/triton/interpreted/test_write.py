"""Writing new tokens, interpreted: byte for byte what the oracle stores, and nothing else."""

from __future__ import annotations

import pytest
import torch

from kvtide_kernels.key_basis import KeyBasis
from kvtide_kernels.triton.arena import Arena
from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat, VectorFormat
from tests.kernels.triton.interpreted.oracle import FORMATS, Case, attend, kept, name, put


def written(case: Case, rotary: tuple[torch.Tensor, torch.Tensor] | None = None) -> torch.Tensor:
    """Run the step of a case without a past."""
    return case.attention().plan(case.sequences()).run(0, case.query, *case.fresh(), rotary=rotary)


def vectors(arena_bytes: torch.Tensor, stored: VectorFormat, dim: int, size: int) -> torch.Tensor:
    """Decode all tokens of [blocks, heads, bytes]: [blocks, heads, size, dim], rotated as they are."""
    data = arena_bytes[..., : size * dim * stored.bits // 8].unflatten(-1, (size, -1))
    per_token = arena_bytes[..., size * dim * stored.bits // 8 :].contiguous().view(torch.float16).float()
    if stored == INT8:
        return data.contiguous().view(torch.int8).float() * per_token[..., None]
    scale, zero = per_token.unflatten(-1, (2, size)).unbind(-2)
    return torch.stack([data & 15, data >> 4], -1).flatten(-2).float() * scale[..., None] + zero[..., None]


@pytest.mark.parametrize("stored", FORMATS[:4], ids=name)
@pytest.mark.parametrize("dim", [pytest.param(64, marks=pytest.mark.slow), 96])
def test_bytes_are_the_oracles(stored: LayerFormat, dim: int) -> None:
    case = Case(stored, [(0, 17), (0, 1)], dim=dim, kv_heads=2, group=1)
    case.build()
    arenas = (case.key, case.value)
    expected = [Arena(one.format, dim, one.block_size, one.storage.clone()) for one in arenas]
    for held, drawn in zip(case.held, case.history, strict=True):
        for token in range(drawn.shape[1]):
            for side, arena in enumerate(expected):
                put(arena, held.blocks[token // 16], token % 16, drawn[side, token])
    written(case)
    for arena, by_oracle in zip(arenas, expected, strict=True):
        different = (arena.storage != by_oracle.storage).float().mean().item()
        if arena.format == INT4:
            # The rotation sums in another order: a level may fall to the other side of a half.
            ours, theirs = (vectors(one.storage, INT4, dim, 16) for one in (arena, by_oracle))
            assert different < 0.01
            torch.testing.assert_close(ours, theirs, atol=1.0, rtol=0, equal_nan=True)
        else:
            assert different == 0


def test_equal_elements_and_zeros_have_no_scale() -> None:
    """A vector of zeros, and one whose rotation is one spike: no scale is divided by, nothing becomes NaN."""
    for stored in (INT8, INT4):
        case = Case(LayerFormat(stored, stored), [(0, 1)], group=1)
        case.build()
        case.history[0][:] = 0.0
        assert torch.equal(written(case), torch.zeros(1, 1, 64))


def test_large_and_small_keys_keep_their_size() -> None:
    case = Case(LayerFormat(INT8, INT4), [(0, 3)], group=1)
    case.build()
    case.history[0][:, 0] *= 1000
    case.history[0][:, 1] *= 0.001
    written(case)
    block = case.value.storage[case.held[0].blocks[0]][None]
    stored = vectors(block, INT4, 64, 16)[0, 0, :3]
    turned = kept(case.history[0][1, :, 0], INT4)
    torch.testing.assert_close(stored.norm(dim=-1), turned.norm(dim=-1), rtol=1e-3, atol=0)


def rope(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """By complex numbers: element i and i + dim / 2 are one."""
    real, imaginary = x.chunk(2, -1)
    angle = positions[:, None, None] * 10000.0 ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    turned = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], -1)


@pytest.mark.parametrize("stored", [LayerFormat(INT8, INT8), LayerFormat(INT4, INT8)], ids=name)
@pytest.mark.parametrize("spans", [[(0, 7), (0, 3)], [(0, 1), (0, 1)]], ids=["prefill", "decode"])
@pytest.mark.parametrize("dim", [64, 80])
def test_rope_is_applied_to_queries_and_keys(stored: LayerFormat, spans: list[tuple[int, int]], dim: int) -> None:
    case = Case(stored, spans, dim=dim, group=2)
    case.build()
    positions = torch.cat([torch.arange(new) for _, new in spans]) + 3
    angle = torch.outer(positions.float(), 10000.0 ** (-torch.arange(0, dim, 2) / dim))[:, None]
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([-angle.sin(), angle.sin()], -1)
    out, row = written(case, (cos, sin)), 0
    for (_, new), drawn in zip(spans, case.history, strict=True):
        at = positions[row : row + new]
        key, value = rope(drawn[0], at), drawn[1]
        if new == 1:
            key, value = kept(key, stored.key), kept(value, stored.value)
        expected = attend(rope(case.query[row : row + new], at), key, value, case.scale)
        torch.testing.assert_close(out[row : row + new], expected, atol=3e-4, rtol=1e-3)
        row += new


def test_rope_comes_before_the_basis() -> None:
    """A basis that only changes the order of elements gives what none gives, unless it comes first."""
    case = Case(LayerFormat(INT8, INT8), [(0, 7), (0, 1)], kv_heads=2)
    case.build()
    angle = torch.rand(8, 1, 32) * 6
    rotary = torch.cat([angle.cos()] * 2, -1), torch.cat([-angle.sin(), angle.sin()], -1)
    expected = written(case, rotary)
    permuted = torch.eye(64)[torch.randperm(64)].expand(2, 64, 64)
    step = case.attention(KeyBasis(permuted, permuted, torch.zeros(2, 64))).plan(case.sequences())
    torch.testing.assert_close(step.run(0, case.query, *case.fresh(), rotary=rotary), expected, atol=3e-4, rtol=1e-3)


def test_a_slot_of_minus_one_is_skipped() -> None:
    case = Case(LayerFormat(BF16, BF16), [(0, 2)], group=1)
    case.build()
    step = case.attention().plan(case.sequences())
    step.tables[0].slots[1] = -1
    step.run(0, case.query, *case.history[0])
    rows = case.key.storage.view(-1, 16, 128)
    changed = (rows != 255).any(-1).nonzero().tolist()
    assert changed == [[case.held[0].blocks[0], 0]]


def test_refuses_heads_that_do_not_lie_side_by_side() -> None:
    case = Case(LayerFormat(BF16, BF16), [(0, 3)], group=1, kv_heads=2)
    case.build()
    key, value = case.fresh()
    by_head = key.transpose(0, 1).contiguous().transpose(0, 1)
    with pytest.raises(ValueError, match=r"but key \[3, 2, 64\] has strides \[64, 192, 1\]"):
        case.attention().plan(case.sequences()).run(0, case.query, by_head, value)
