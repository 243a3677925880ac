"""The compiled kernels in this process: finding, loading, and the structures that they take (src/layout.h)."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import torch

from kvtide_kernels.cpu import build

# Names an instruction set that the processor has, in place of the best one.
SET_VARIABLE = "KVTIDE_CPU_INSTRUCTION_SET"


class Side(ctypes.Structure):
    """One layer's keys or values: `Side` of src/layout.h."""

    _fields_ = (
        ("base", ctypes.c_void_p),
        ("block_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("format", ctypes.c_int32),
        ("dim", ctypes.c_int32),
    )


class Basis(ctypes.Structure):
    """What keys are stored in: `Basis` of src/layout.h."""

    _fields_ = (("of_key", ctypes.c_void_p), ("of_query", ctypes.c_void_p), ("centre", ctypes.c_void_p))


class Layer(ctypes.Structure):
    """A layer's arenas and shape: `Layer` of src/layout.h."""

    _fields_ = (
        ("key", Side),
        ("value", Side),
        ("basis", Basis),
        ("kv_heads", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("window", ctypes.c_int32),
        ("recent", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("sinks", ctypes.c_void_p),
    )


class Step(ctypes.Structure):
    """A planned step in one layer: `Step` of src/layout.h."""

    _fields_ = (
        ("layer", ctypes.POINTER(Layer)),
        ("spans", ctypes.c_void_p),
        ("units", ctypes.c_void_p),
        ("num_units", ctypes.c_int64),
        ("query", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("partial", ctypes.c_void_p),
        ("arrived", ctypes.c_void_p),
    )


# Columns of the int64 tensors that stand for arrays of `Span` and `Unit`.
SPAN_FIELDS = ("blocks", "recent", "first", "recent_from", "past", "fresh", "row")
UNIT_FIELDS = ("span", "begin", "count", "low", "high", "part", "parts", "first_slot")


class Library:
    """The kernels for one instruction set."""

    def __init__(self, path: Path, instruction_set: str) -> None:
        self.instruction_set = instruction_set
        self._functions = ctypes.CDLL(str(path))
        self._parallel = _parallel_region()

    def run(self, step: Step, threads: int) -> None:
        """Run a step's units on so many threads."""
        self.in_threads("kvtide_run", ctypes.byref(step), threads=threads)

    def in_threads(self, function: str, *arguments: object, threads: int) -> None:
        """Call a function that ends in how many threads, and the parallel region to have them from."""
        getattr(self._functions, function)(*arguments, threads, self._parallel)

    def reencode(self, old: Side, new: Side, block_size: int, kv_heads: int, num_blocks: int) -> None:
        """Re-encode the first blocks of an arena in place."""
        self._functions.kvtide_reencode(
            ctypes.byref(old), ctypes.byref(new), block_size, kv_heads, ctypes.c_int64(num_blocks)
        )


def _parallel_region() -> ctypes.c_void_p:
    """GOMP_parallel of the very OpenMP that torch runs on, so that both share its threads; null where it has none.

    Two pools of threads would take the cores from each other: one spins while the other works. A process may have
    loaded several copies (sentencepiece brings its own); only what torch itself is linked to is looked through.
    """
    linked_to_torch = ctypes.CDLL(torch._C.__file__)
    if not hasattr(linked_to_torch, "GOMP_parallel"):
        return ctypes.c_void_p()
    return ctypes.cast(linked_to_torch.GOMP_parallel, ctypes.c_void_p)


def _folder() -> Path:
    """The folder of prebuilt libraries if it has them, or else the cache, filled now."""
    prebuilt = os.environ.get(build.FOLDER_VARIABLE)
    if prebuilt and all(build.library_path(Path(prebuilt), name).exists() for name in build.instruction_sets()):
        return Path(prebuilt)
    build.build(build.cache_folder())
    return build.cache_folder()


@cache
def library(instruction_set: str | None = None) -> Library:
    """The kernels, of the best instruction set or of that one; compiled now where they have not been.

    Raises RuntimeError where they are not built and cannot be; ValueError for an instruction set that is not there.
    """
    folder = _folder()
    detect = ctypes.CDLL(str(build.library_path(folder, "plain")))
    detect.kvtide_best.restype = ctypes.c_char_p
    best = detect.kvtide_best().decode()
    # Each has what those before it have.
    usable = ["plain", "avx2", "avx512"]
    usable = [name for name in usable[: usable.index(best) + 1] if name in build.instruction_sets()]
    chosen = instruction_set or os.environ.get(SET_VARIABLE) or best
    if chosen not in usable:
        raise ValueError(f"this processor has no kernels for '{chosen}'; there are {', '.join(usable)}")
    return Library(build.library_path(folder, chosen), chosen)
