"""Products with packed matrices, against torch in float64."""

from __future__ import annotations

import pytest
import torch

from kvtide_kernels.cpu.layers import INSTRUCTION_SET
from kvtide_kernels.cpu.library import Library, library
from kvtide_kernels.cpu.linear import PackedMatrix

# Outputs and inputs: SmolLM2's, the tiny test models', and tails of panels, of halves of them, of lanes.
SHAPES = [(960, 576), (576, 1536), (320, 64), (192, 64), (64, 96), (49, 34), (17, 2), (1, 6), (33, 640)]


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


def quantised(weight: torch.Tensor) -> torch.Tensor:
    """Symmetric, per output: the nearest of 127 steps, the last of which is the largest weight."""
    scales = weight.float().abs().amax(dim=1, keepdim=True) / 127
    return (weight.float() / scales).round() * scales


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


@pytest.mark.parametrize("rows", [1, 12, 13, 145])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_int8_equals_torch_with_what_it_holds(kernels: Library, shape: tuple[int, int], rows: int) -> None:
    weight, x, bias = drawn(*shape, rows)
    held = quantised(weight).double()
    exact = x.double() @ held.T + bias.double()
    out = PackedMatrix.int8(weight, bias).multiply(x, kernels)
    assert_rounded_once(out, exact, x.double().abs() @ held.abs().T)


@pytest.mark.parametrize("kind", ["bf16", "int8"])
@pytest.mark.parametrize("shape", [(192, 64), (49, 34), (576, 1536)], ids=str)
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
    indices = torch.randint(0, len(weight), (40,))
    original, held = weight.clone(), quantised(weight).bfloat16()
    assert torch.equal(PackedMatrix.int8(weight).rows(indices), held[indices])
    assert torch.equal(PackedMatrix.bf16(weight).rows(indices), original[indices])


def test_what_is_packed_takes_no_second_place() -> None:
    weight = torch.ones(4096, 1024, dtype=torch.bfloat16)
    matrix = PackedMatrix.bf16(weight)
    assert matrix.structure.weights == weight.data_ptr()
    assert matrix.nbytes == 2 * 4096 * 1024
    # a byte each, and a float32 for each output
    assert PackedMatrix.int8(weight).nbytes == 4096 * 1024 + 4 * 4096


def test_outputs_of_zeros_stay_zeros(kernels: Library) -> None:
    out = PackedMatrix.int8(torch.zeros(40, 8, dtype=torch.bfloat16)).multiply(torch.ones(3, 8).bfloat16(), kernels)
    assert torch.equal(out, torch.zeros(3, 40).bfloat16())


@pytest.mark.parametrize("weight", [torch.ones(4, 3).bfloat16(), torch.ones(4, 4)], ids=["odd", "float32"])
@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_refuses_what_it_has_no_tiles_for(weight: torch.Tensor, kind: str) -> None:
    with pytest.raises(ValueError, match="bfloat16 with an even number of inputs, but this one is"):
        getattr(PackedMatrix, kind)(weight)
