"""What `kvtide serve` was told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvtide_worker.engine.config import DType


@dataclass(frozen=True)
class ServeSettings:
    """The options of `kvtide serve`, checked and typed.

    model:            as written: a URI, or a path
    served_name:      None takes the plan's name of the model
    chat_template:    a file to take in place of the model's own
    plan_file:        None makes a plan from `memory_bytes`, or from what this process may use
    admin_token_file: None keeps the admin port on loopback and prints a token made for this run
    precision:        of KV; None is Auto, but BF16 where the dtype is float32, which goes with no other
    kv_heads:         into how many the model's are pooled; None takes them as they are
    weights:          how matrices are held; None is BF16
    reencodable:      whether the KV pool may be re-encoded while it serves, which is checked when it starts
    enforce_eager:    whether a GPU's steps are launched one kernel at a time, and none as a CUDA graph
    gpu_memory_wait_seconds: how long what the plan needs of a GPU may be held by others at the start
    threads:          of the engine; None takes what the cgroup and the affinity mask allow
    """

    model: str
    served_name: str | None = None
    plan_file: Path | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: DType = "auto"
    host: str = "127.0.0.1"
    port: int = 8000
    admin_port: int = 8001
    admin_token_file: Path | None = None
    api_key_file: Path | None = None
    chat_template: Path | None = None
    drain_seconds: float = 120.0
    lame_duck_seconds: float = 5.0
    engine_timeout_seconds: float = 60.0
    gpu_memory_wait_seconds: float = 120.0
    memory_bytes: int | None = None
    max_context_tokens: int | None = None
    precision: str | None = None
    kv_heads: int | None = None
    weights: str | None = None
    block_size_tokens: int | None = None
    max_batch: int | None = None
    threads: int | None = None
    reencodable: bool = False
    enforce_eager: bool = False
