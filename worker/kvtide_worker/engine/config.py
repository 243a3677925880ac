"""What the server process tells the engine process at its start."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Device = Literal["cpu", "cuda"]
DType = Literal["auto", "bfloat16", "float32"]


class EngineConfig(msgspec.Struct, frozen=True):
    """Everything the engine process needs to start; picklable, so that `multiprocessing` can spawn with it.

    plan:     the plan's JSON object, keys as `kvtide plan -o json` writes them
    dtype:    of the weights and the arithmetic; "auto" is bfloat16, and the pool is what the plan says. "float32" is an
              instrument for exactness tests: the pool is float32 too, in twice the bytes that a plan for BF16 counted
    threads:  of torch on the CPU; None takes what the cgroup's quota and the affinity mask allow
    gpu_memory_wait_s: seconds that the memory which the plan needs of a GPU may be held by others while it loads
    reencodable: whether smaller KV formats are checked at load too, which takes seconds: those that pass are what the
              pool may become while it serves
    enforce_eager: whether no step of a GPU is recorded as a CUDA graph; a CPU has none
    """

    model_uri: str
    plan: dict[str, Any]
    device: Device = "cpu"
    dtype: DType = "auto"
    threads: int | None = None
    reencodable: bool = True
    enforce_eager: bool = False
    gpu_memory_wait_s: float = 120.0
