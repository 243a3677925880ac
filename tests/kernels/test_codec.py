"""The codec: its bits against bytes packed by hand, its errors against what rounding allows."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvtide_kernels.block_view import BlockView
from kvtide_kernels.codec import Packed, decode, decode_stored, encode
from kvtide_kernels.hadamard import hadamard, hadamard_matrix
from kvtide_sizing.formats import BF16, FP8, INT4, INT8, VectorFormat

DIMS = (64, 80, 96, 112, 128, 192, 256)
ODD_DIMS = (1, 2, 3, 5, 7, 9, 20)

# The smallest step of float16: what rounding a scale or zero to it may add however small they are.
SUBNORMAL = 2.0**-24


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (2, [[1, 1], [1, -1]]),
        (4, [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]),  # Sylvester, 1867
    ],
)
def test_hadamard_is_sylvesters(dim: int, expected: list[list[int]]) -> None:
    torch.testing.assert_close(hadamard_matrix(dim) * math.sqrt(dim), torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("dim", DIMS + ODD_DIMS)
def test_hadamard_is_orthonormal_and_its_own_inverse(dim: int) -> None:
    x = torch.randn(3, dim, generator=torch.Generator().manual_seed(dim))
    torch.testing.assert_close(hadamard(x), x @ hadamard_matrix(dim))
    torch.testing.assert_close(hadamard(hadamard(x)), x)
    torch.testing.assert_close(hadamard(x).norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize(("dim", "run"), [(80, 16), (96, 32), (112, 16), (192, 64)])
def test_hadamard_stays_in_its_run(dim: int, run: int) -> None:
    one = torch.zeros(dim)
    one[run] = 1.0
    assert torch.equal(hadamard(one).nonzero().flatten(), torch.arange(run, 2 * run))


def test_int8_bytes() -> None:
    # max |x| = 254: the scale is 2. 3 / 2 = 1.5 and 5 / 2 = 2.5 both go to the even 2.
    packed = encode(INT8, torch.tensor([254.0, -254.0, 3.0, 5.0, 0.0, -3.0]))
    assert packed.data.tolist() == [127, 129, 2, 2, 0, 254]
    assert packed.scale is not None
    assert packed.scale.item() == 2.0
    assert packed.zero is None


def test_int4_bytes() -> None:
    # Stored are 0, 30, 2, 3: zero 0, scale 2, levels 0, 15, 1 and 3 / 2 = 1.5, which goes to 2. What is given is their
    # transform, (0 + 30 + 2 + 3, 0 - 30 + 2 - 3, 0 + 30 - 2 - 3, 0 - 30 - 2 + 3) / 2.
    packed = encode(INT4, torch.tensor([17.5, -15.5, 12.5, -14.5]))
    assert packed.data.tolist() == [0 | 15 << 4, 1 | 2 << 4]
    assert packed.scale is not None
    assert packed.zero is not None
    assert (packed.scale.item(), packed.zero.item()) == (2.0, 0.0)
    assert decode_stored(INT4, packed, 4).tolist() == [0.0, 30.0, 2.0, 4.0]


def test_bf16_bytes() -> None:
    # 1.0 is 0x3F80, -2.0 is 0xC000.
    assert encode(BF16, torch.tensor([1.0, -2.0])).data.tolist() == [0x80, 0x3F, 0x00, 0xC0]


@pytest.mark.parametrize("stored", [BF16, INT8, INT4], ids=lambda stored: stored.name)
@pytest.mark.parametrize("dim", DIMS + ODD_DIMS)
def test_sizes_are_the_tables(stored: VectorFormat, dim: int) -> None:
    packed = encode(stored, torch.ones(2, 3, dim))
    parts = [part for part in (packed.data, packed.scale, packed.zero) if part is not None]
    assert sum(part.nbytes for part in parts) == 6 * stored.vector_bytes(dim)


@st.composite
def vectors(draw: st.DrawFn) -> torch.Tensor:
    """A few rows of one width: ordinary, with outliers, of equal elements, of zeros, at scales far apart."""
    dim = draw(st.sampled_from(DIMS + ODD_DIMS))
    rows = draw(st.integers(1, 4))
    x = torch.randn(rows, dim, generator=torch.Generator().manual_seed(draw(st.integers(0, 2**32))))
    kind = draw(st.sampled_from(["ordinary", "outlier", "offset", "equal", "zeros"]))
    if kind == "outlier":
        x[:, draw(st.integers(0, dim - 1))] *= 300
    elif kind == "offset":
        x += 40
    elif kind == "equal":
        x = x[:, :1].expand(rows, dim)
    elif kind == "zeros":
        x = torch.zeros(rows, dim)
    return x * 10.0 ** draw(st.integers(-6, 2))


@given(vectors())
def test_int8_error_is_half_a_step(x: torch.Tensor) -> None:
    packed = encode(INT8, x)
    assert packed.scale is not None
    scale = packed.scale.float()[:, None]
    # The largest element may miss the end of a grid whose scale was rounded down by half a bit of float16.
    clipped = torch.maximum(x.abs() * 2.0**-11, torch.tensor(127 * SUBNORMAL / 2))
    assert ((x - decode(INT8, packed, x.shape[1])).abs() <= torch.maximum(scale / 2, clipped) * (1 + 1e-5)).all()


@given(vectors())
def test_int4_error_is_half_a_step(x: torch.Tensor) -> None:
    packed = encode(INT4, x)
    assert packed.scale is not None
    y, stored = hadamard(x), decode_stored(INT4, packed, x.shape[1])
    # Half a bit of float16 in the zero, and 15 halves in the scale, of what they are.
    largest = y.abs().amax(-1, keepdim=True)
    rounded = 2.0**-11 * 3 * largest + 8 * SUBNORMAL
    assert ((y - stored).abs() <= packed.scale.float()[:, None] / 2 + rounded).all()


@given(vectors(), st.sampled_from([BF16, INT8, INT4]))
def test_a_stored_vector_is_stored_as_it_is(x: torch.Tensor, stored: VectorFormat) -> None:
    once = decode(stored, encode(stored, x), x.shape[1])
    again = decode(stored, encode(stored, once), x.shape[1])
    # A grid's ends may move by a bit of float16 and its codes with them, by less than a step in 200.
    assert ((once - again).norm(dim=-1) <= once.norm(dim=-1) * 1e-2 + 1e-4).all()


@pytest.mark.parametrize("stored", [BF16, INT8, INT4], ids=lambda stored: stored.name)
def test_zeros_are_zeros(stored: VectorFormat) -> None:
    assert decode(stored, encode(stored, torch.zeros(3, 64)), 64).eq(0).all()


@pytest.mark.parametrize("stored", [INT8, INT4], ids=lambda stored: stored.name)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e38])
def test_what_no_scale_fits_is_nan_and_alone(stored: VectorFormat, bad: float) -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    expected = decode(stored, encode(stored, x), 64)
    x[1, 5] = bad
    got = decode(stored, encode(stored, x), 64)
    assert got[1].isnan().all()
    assert torch.equal(got[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("stored", [BF16, INT8, INT4], ids=lambda stored: stored.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_dtype_is_taken_as_float32(stored: VectorFormat, dtype: torch.dtype) -> None:
    x = torch.randn(4, 96, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert torch.equal(encode(stored, x).data, encode(stored, x.float()).data)


def test_a_block_is_data_then_scales_then_zeros() -> None:
    stored, dim, block_size = INT4, 64, 16
    arena = torch.zeros(3, 2, block_size * stored.vector_bytes(dim), dtype=torch.uint8)
    x = torch.randn(1, 2, dim, generator=torch.Generator().manual_seed(2))
    packed = encode(stored, x)
    BlockView.of(arena, stored, block_size, dim).write(torch.tensor([2]), torch.tensor([5]), packed)
    assert packed.scale is not None
    assert packed.zero is not None
    for head in range(2):
        raw = bytes(arena[2, head].tolist())
        assert raw[5 * 32 : 6 * 32] == bytes(packed.data[0, head].tolist())
        assert struct.unpack_from("<e", raw, 16 * 32 + 5 * 2) == (packed.scale[0, head].item(),)
        assert struct.unpack_from("<e", raw, 16 * 32 + 16 * 2 + 5 * 2) == (packed.zero[0, head].item(),)
        assert sum(byte != 0 for byte in raw) <= 32 + 4
    assert not arena[:2].any()


@pytest.mark.parametrize("stored", [BF16, INT8, INT4], ids=lambda stored: stored.name)
@pytest.mark.parametrize("dim", [64, 80])
def test_what_is_written_to_blocks_is_read(stored: VectorFormat, dim: int) -> None:
    arena = torch.full((4, 3, 32 * stored.vector_bytes(dim)), 255, dtype=torch.uint8)
    view = BlockView.of(arena, stored, 32, dim)
    packed = encode(stored, torch.randn(6, 3, dim, generator=torch.Generator().manual_seed(3)))
    blocks, slots = torch.tensor([3, 0, 0, 3, 1, 0]), torch.tensor([0, 31, 7, 1, 16, 8])
    view.write(blocks, slots, packed)
    assert torch.equal(decode(stored, view.read(blocks, slots), dim), decode(stored, packed, dim))


def test_refusals_name_what_there_is() -> None:
    with pytest.raises(ValueError, match="no codec for FP8; there is one for BF16, INT8, INT4"):
        encode(FP8, torch.ones(64))
    with pytest.raises(ValueError, match="no codec for FP8"):
        decode(FP8, Packed(torch.zeros(64, dtype=torch.uint8)), 64)
    with pytest.raises(
        ValueError, match=r"need uint8 \[blocks, heads, 576\], but the arena is torch.uint8 \[1, 1, 64\]"
    ):
        BlockView.of(torch.zeros(1, 1, 64, dtype=torch.uint8), INT4, 16, 64)
