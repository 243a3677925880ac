"""Products with packed matrices, against torch in float64."""

from __future__ import annotations

import pytest
import torch

from kvtide_kernels.cpu.layers import INSTRUCTION_SET
from kvtide_kernels.cpu.library import Library, library
from kvtide_kernels.cpu.linear import PackedMatrix
from kvtide_kernels.hadamard import hadamard_matrix

# Outputs and inputs: SmolLM2's, the tiny test models', and tails of panels, of halves of them, of lanes.
INT8_SHAPES = [(960, 576), (576, 1536), (320, 64), (192, 64), (64, 96), (49, 48), (17, 16), (1, 80), (33, 640)]
SHAPES = [*INT8_SHAPES, (49, 34), (17, 2), (1, 6)]


@pytest.fixture(scope="module")
def kernels() -> Library:
    """The library of this processor; what it has not cannot be tested on it."""
    found = library()
    if found.instruction_set != INSTRUCTION_SET:
        pytest.skip(f"this processor has no {INSTRUCTION_SET}")
    return found


def drawn(outputs: int, inputs: int, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(outputs * inputs)
    weight = (0.05 * torch.randn(outputs, inputs, generator=random)).bfloat16()
    return weight, torch.randn(rows, inputs, generator=random).bfloat16(), torch.randn(outputs).bfloat16()


def rotated(rows: torch.Tensor) -> torch.Tensor:
    """float64, for what has an exact answer."""
    return rows.double() @ hadamard_matrix(rows.shape[1]).double()


def quantised(rows: torch.Tensor) -> torch.Tensor:
    """Rotated, symmetric, per row: the nearest of 127 steps, the last of which is the largest element."""
    turned = rotated(rows)
    scales = turned.abs().amax(dim=1, keepdim=True) / 127
    return (turned / scales).round() * scales


def assert_rounded_once(out: torch.Tensor, exact: torch.Tensor, sizes: torch.Tensor) -> None:
    """Half a step of bfloat16, 2^-9 of the number, and what float32 loses in sums of terms of these sizes."""
    assert ((out.double() - exact).abs() <= 2**-8 * exact.abs() + 1e-6 * sizes).all()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 12, 13, 64, 145])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bf16_equals_torch(kernels: Library, shape: tuple[int, int], rows: int, biased: bool) -> None:
    weight, x, bias = drawn(*shape, rows)
    exact = x.double() @ weight.double().T + (bias.double() if biased else 0)
    sizes = x.double().abs() @ weight.double().abs().T
    out = PackedMatrix.bf16(weight, bias if biased else None).multiply(x, kernels)
    assert_rounded_once(out, exact, sizes)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 12, 13, 145])
@pytest.mark.parametrize("shape", INT8_SHAPES, ids=str)
def test_int8_equals_torch_with_both_rounded(kernels: Library, shape: tuple[int, int], rows: int, biased: bool) -> None:
    """But for a few steps that float32 rounds to the other side, each worth one of its row, times a weight."""
    weight, x, bias = drawn(*shape, rows)
    held, digits = quantised(weight), quantised(x)
    exact = digits @ held.T + (bias.double() if biased else 0)
    step = rotated(x).abs().amax(dim=1, keepdim=True) / 127 * held.abs().amax(dim=1)
    out = PackedMatrix.int8(weight, bias if biased else None).multiply(x, kernels).double()
    off = (out - exact).abs() - 2**-8 * exact.abs() - 1e-6 * (digits.abs() @ held.abs().T)
    assert (off <= 2 * step).all()
    assert (off > 0).double().mean() < 0.01


@pytest.mark.parametrize("shape", INT8_SHAPES, ids=str)
def test_int8_loses_little(kernels: Library, shape: tuple[int, int]) -> None:
    """Of products with the weights as they were: two roundings to 127 steps, whose errors no element makes large."""
    weight, x, _ = drawn(*shape, 64)
    x[:, 0] *= 40  # an outlier, as real models have them: alone it would leave three steps to all others
    exact = x.double() @ weight.double().T
    error = PackedMatrix.int8(weight).multiply(x, kernels).double() - exact
    assert error.norm() < 0.015 * exact.norm()


def test_int8_hides_no_lack_of_a_number(kernels: Library) -> None:
    weight, x, _ = drawn(49, 64, 4)
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    out = PackedMatrix.int8(weight).multiply(x, kernels)
    assert out.isfinite().all(dim=1).tolist() == [True, False, False, True]
    assert out[1:3].isnan().all()


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        *(("bf16", shape) for shape in [(192, 64), (49, 34), (576, 1536)]),
        *(("int8", shape) for shape in [(192, 64), (49, 48), (576, 1536)]),
    ],
    ids=str,
)
def test_a_row_is_the_same_in_any_company(kernels: Library, shape: tuple[int, int], kind: str) -> None:
    """Bit for bit: alone, in any batch, at any place in it, and in chunks of prefill of any length."""
    weight, x, _ = drawn(*shape, 300)
    matrix = getattr(PackedMatrix, kind)(weight)
    every = matrix.multiply(x, kernels)
    for rows in (*range(1, 71), 143, 144, 145, 299):
        assert torch.equal(matrix.multiply(x[:rows], kernels), every[:rows])
        assert torch.equal(matrix.multiply(x[-rows:].contiguous(), kernels), every[-rows:])


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_is_the_same_on_any_number_of_threads(kernels: Library, threads: int) -> None:
    weight, x, _ = drawn(960, 576, 20)
    matrix, before = PackedMatrix.bf16(weight), torch.get_num_threads()
    expected = matrix.multiply(x, kernels)
    torch.set_num_threads(threads)
    try:
        assert torch.equal(matrix.multiply(x, kernels), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_are_looked_up(shape: tuple[int, int]) -> None:
    weight, _, _ = drawn(*shape, 1)
    indices, original = torch.randint(0, len(weight), (40,)), weight.clone()
    assert torch.equal(PackedMatrix.bf16(weight).rows(indices), original[indices])


@pytest.mark.parametrize("shape", INT8_SHAPES, ids=str)
def test_rows_of_int8_are_turned_back(shape: tuple[int, int]) -> None:
    weight, _, _ = drawn(*shape, 1)
    indices, back = torch.randint(0, len(weight), (40,)), rotated(quantised(weight))
    step = rotated(weight).abs().amax(dim=1, keepdim=True)[indices] / 127
    off = (PackedMatrix.int8(weight).rows(indices).double() - back[indices]).abs() - 2**-8 * back[indices].abs()
    assert (off <= step).all()
    assert (off > 1e-4 * step).double().mean() < 0.1


def test_what_is_packed_takes_no_second_place() -> None:
    weight = torch.ones(4096, 1024, dtype=torch.bfloat16)
    matrix = PackedMatrix.bf16(weight)
    assert matrix.structure.weights == weight.data_ptr()
    assert matrix.nbytes == 2 * 4096 * 1024
    # a byte each, and a float32 for each output
    assert PackedMatrix.int8(weight).nbytes == 4096 * 1024 + 4 * 4096


def test_outputs_of_zeros_stay_zeros(kernels: Library) -> None:
    out = PackedMatrix.int8(torch.zeros(40, 16, dtype=torch.bfloat16)).multiply(torch.ones(3, 16).bfloat16(), kernels)
    assert torch.equal(out, torch.zeros(3, 40).bfloat16())


@pytest.mark.parametrize(
    ("kind", "multiple", "weight"),
    [
        ("bf16", 2, torch.ones(4, 3).bfloat16()),
        ("bf16", 2, torch.ones(4, 4)),
        ("int8", 16, torch.ones(4, 24).bfloat16()),
        ("int8", 16, torch.ones(4, 16)),
    ],
    ids=["odd", "float32", "int8", "int8-float32"],
)
def test_refuses_what_it_has_no_tiles_for(kind: str, multiple: int, weight: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=f"bfloat16 with a multiple of {multiple} inputs, but this one is"):
        getattr(PackedMatrix, kind)(weight)
