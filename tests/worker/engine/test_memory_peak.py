"""The peak of tensors' memory, on cases whose peak is known from the shapes."""

from __future__ import annotations

import torch

from kvtide_worker.engine.peak import AllocationPeak

MIB = 1 << 20


def empty(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8)


def test_what_lives_at_once_is_counted_and_what_is_gone_is_not() -> None:
    before = empty(64)  # there already: not this step's
    with AllocationPeak(torch.device("cpu")) as peak:
        first, second = empty(1), empty(2)
        del first
        third = empty(4)
        del second
        fourth = empty(1)
    assert peak.peak_bytes == 6 * MIB  # second and third
    assert before.nbytes + third.nbytes + fourth.nbytes == 69 * MIB


def test_a_temporary_inside_an_operation_is_seen() -> None:
    """logsumexp needs exp(x - max) at once, as large as x, and returns one number."""
    values = torch.ones(MIB)
    with torch.inference_mode(), AllocationPeak(torch.device("cpu")) as peak:
        values.logsumexp(dim=0)
    assert 4 * MIB <= peak.peak_bytes < 4 * MIB + 1024


def test_a_peak_is_measured_even_where_the_step_fails() -> None:
    peak = AllocationPeak(torch.device("cpu"))
    try:
        with peak:
            kept = empty(3)
            raise ArithmeticError
    except ArithmeticError:
        assert peak.peak_bytes == kept.nbytes
