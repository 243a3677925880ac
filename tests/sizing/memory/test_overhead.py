"""The estimates of a CPU's overhead against what processes really take on this machine."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from kvtide_sizing.devices.device import device_named
from kvtide_sizing.memory.overhead import CPU_ENGINE_BYTES, CPU_SERVER_BYTES, load_bytes, overhead_bytes
from kvtide_sizing.models import catalog

CPU = device_named("cpu:2GiB")

_PRIVATE_KIB = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('RssAnon')))"


def private_bytes(program: str) -> int:
    """Memory that only this process has, after the program: what the page cache holds is not counted."""
    code = f"{program}\n{_PRIVATE_KIB}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(result.stdout) * 1024


@pytest.mark.slow
def test_torch_and_its_kernels_stay_within_the_engines_part() -> None:
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
    assert 100_000_000 < private_bytes(engine) < CPU_ENGINE_BYTES


def test_the_servers_packages_stay_within_its_part() -> None:
    server = "import fastapi, httptools, jinja2, msgspec, prometheus_client, pydantic, tokenizers, uvicorn, uvloop, zmq"
    assert 10_000_000 < private_bytes(server) < CPU_SERVER_BYTES


def test_a_larger_vocabulary_takes_more_of_the_server() -> None:
    small, large = catalog.builtin("llama-2-7b"), catalog.builtin("llama-3.1-8b")
    assert overhead_bytes(large, CPU) - overhead_bytes(small, CPU) == (128_256 - 32_000) * 768
    assert load_bytes(large, CPU) - load_bytes(small, CPU) == (128_256 - 32_000) * 512


def test_what_was_measured_takes_the_estimates_place() -> None:
    assert (
        overhead_bytes(catalog.builtin("llama-2-7b"), replace(CPU, measured_overhead_bytes=123_456_789)) == 123_456_789
    )


def test_several_gpus_have_buffers_for_each_other() -> None:
    shape, gpu = catalog.builtin("llama-2-7b"), device_named("a100-80gb")
    assert overhead_bytes(shape, replace(gpu, count=2)) > overhead_bytes(shape, gpu)
    assert load_bytes(shape, gpu) == 0  # weights are dequantised in the host's memory


@pytest.mark.parametrize(
    ("model", "measured_bytes"),
    # the allocator's record of a fit to 1024 tokens with real weights, torch 2.15, without the bases themselves
    [("smollm2-135m", 14_303_232), ("gemma-3-270m", 30_204_928)],
)
def test_key_bases_are_fitted_while_a_model_loads(model: str, measured_bytes: int) -> None:
    shape = catalog.builtin(model)
    fitting = load_bytes(shape, device_named("a100-80gb"), key_bases=True)
    assert measured_bytes <= fitting <= 1.25 * measured_bytes
    assert load_bytes(shape, CPU, key_bases=True) == fitting + shape.vocab_size * 512
