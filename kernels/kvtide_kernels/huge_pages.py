"""Memory in huge pages. Blocks lie anywhere in a pool, and looking a page up takes about as long as reading it."""

from __future__ import annotations

import ctypes
import mmap

import torch

_HUGE_PAGE_BYTES = 2 * 2**20
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux has it


def in_huge_pages(memory: torch.Tensor) -> torch.Tensor:
    """Ask for huge pages for contiguous host memory that nobody has written to yet, and return it.

    They take nothing more: only whole ones inside of it are asked for, and where there are none it stays as it is.
    """
    start, end = memory.data_ptr(), memory.data_ptr() + memory.nbytes
    first, last = -(-start // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES, end // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
    if _ADVICE is not None and first < last:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _ADVICE)
    return memory
