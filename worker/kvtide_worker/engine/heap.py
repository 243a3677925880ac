"""The C heap of this process."""

from __future__ import annotations

import ctypes


def give_back_heap() -> None:
    """Return to the kernel what the heap keeps of freed memory: of loading, tens of MiB. glibc alone can be asked."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
