"""The estimates of a CPU's overhead against what processes really take on this machine."""

import subprocess
import sys

import pytest

from kvtide_sizing.devices.device import DeviceKind
from kvtide_sizing.memory.budget import (
    CPU_ENGINE_OVERHEAD,
    CPU_SERVER_OVERHEAD,
    overhead_bytes,
    step_bytes,
)
from kvtide_sizing.models import catalog

KIB = 1024

_PRIVATE_KIB = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('RssAnon')))"


def private_bytes(program: str) -> int:
    """Memory that only this process has, after the program: what the page cache holds is not counted."""
    code = f"{program}\n{_PRIVATE_KIB}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(result.stdout) * KIB


@pytest.mark.slow
def test_torch_and_its_kernels_stay_within_the_engines_overhead() -> None:
    engine = """
import torch
torch.set_num_threads(2)
with torch.inference_mode():
    for rows in (1, 3, 16, 512):
        x = torch.ones(rows, 576, dtype=torch.bfloat16)
        torch.nn.functional.linear(x, torch.ones(1536, 576, dtype=torch.bfloat16))
    q = torch.ones(1, 9, 512, 64, dtype=torch.bfloat16)
    k = torch.ones(1, 3, 512, 64, dtype=torch.bfloat16)
    torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
"""
    assert 100_000_000 < private_bytes(engine) < CPU_ENGINE_OVERHEAD


def test_the_servers_packages_stay_within_its_overhead() -> None:
    server = "import fastapi, httptools, jinja2, msgspec, prometheus_client, pydantic, tokenizers, uvicorn, uvloop, zmq"
    assert 10_000_000 < private_bytes(server) < CPU_SERVER_OVERHEAD


def test_a_larger_vocabulary_takes_more_of_the_server() -> None:
    small, large = catalog.builtin("llama-2-7b"), catalog.builtin("llama-3.1-8b")
    more = overhead_bytes(large, DeviceKind.CPU) - overhead_bytes(small, DeviceKind.CPU)
    assert more == (128_256 - 32_000) * KIB


def test_activations_hold_at_least_the_tensors_of_a_step() -> None:
    shape = catalog.builtin("smollm2-135m")
    # One layer's MLP at 512 tokens and 64 rows of float32 logits live at once whatever else does.
    assert step_bytes(shape, 2048, batch=64) > 512 * 1536 * 2 * 3
    assert step_bytes(shape, 2048, batch=64) > 64 * 49152 * 4
