"""Memory in huge pages, by what Linux says about it (proc_pid_smaps(5): "hg" among a mapping's VmFlags)."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from kvtide_kernels.huge_pages import in_huge_pages
from kvtide_kernels.pool import KVPool
from kvtide_sizing.formats import BF16, LayerFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout

pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system has no huge pages to ask for"
)


def flags(address: int) -> list[str]:
    """Of the mapping that has the address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first:
            start, end = (int(one, 16) for one in first.split("-"))
            inside = start <= address < end
        elif inside and first == "VmFlags:":
            return rest.split()
    raise AssertionError(f"nothing has {address:#x}")


def test_a_pool_asks_for_them() -> None:
    layout = KvLayout(64, 64 * 2 * 2 * 128 * 2, (TableLayout((0,), None),), 1)
    pool = KVPool.allocate(
        layout, [LayerFormat(BF16, BF16)], num_blocks=128, kv_heads=2, head_dim=128, device=torch.device("cpu")
    )
    assert "hg" in flags(pool.storage.data_ptr() + pool.nbytes // 2)
    assert not pool.storage.any()


def test_what_has_room_for_none_stays_as_it_is() -> None:
    # A mapping of its own: others' freed memory may have been asked for already.
    memory = torch.frombuffer(mmap.mmap(-1, 2**20), dtype=torch.uint8)
    assert in_huge_pages(memory) is memory
    assert "hg" not in flags(memory.data_ptr())
