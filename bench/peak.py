"""What this processor multiplies at most (bench/peak.cpp): the roof of attention that multiplies much for each byte."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kvtide_kernels.cpu import build
from kvtide_sizing.formats import BF16, VectorFormat

_SOURCE = Path(__file__).with_suffix(".cpp")
_REPEATS = 200_000  # under a millisecond
_INSTRUCTIONS = 12 * _REPEATS


class Peak:
    """The multiply instructions of the AVX-512 kernels, on so many threads at once; measured whenever that is asked."""

    def __init__(self, threads: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "peak.so"
            options = ["-std=c++17", "-O2", "-fPIC", "-shared", str(_SOURCE), "-o", str(library)]
            subprocess.run([str(build.compiler()), *options], check=True)
            functions = ctypes.CDLL(str(library))
        self._pool, self._threads = ThreadPoolExecutor(threads), threads
        self._repeats = {"BF16": functions.peak_bf16, "bytes": functions.peak_bytes}
        self._seconds: dict[str, list[float]] = {name: [] for name in self._repeats}

    def measure(self) -> None:
        """A turn of each instruction."""
        for name, repeat in self._repeats.items():
            self._seconds[name] += self._pool.map(_timed, [repeat] * self._threads)

    def per_us(self, stored: VectorFormat) -> float:
        """Multiplications with elements of a format in a microsecond, all threads together, by the best tenth."""
        name, products = ("BF16", 32) if stored is BF16 else ("bytes", 64)
        seconds = sorted(self._seconds[name])
        return self._threads * _INSTRUCTIONS * products / seconds[len(seconds) // 10] / 1e6


def _timed(repeat: Callable[[ctypes.c_int64], object]) -> float:
    start = time.perf_counter()
    repeat(ctypes.c_int64(_REPEATS))
    return time.perf_counter() - start
