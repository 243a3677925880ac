"""Refusals: by how much, and what would fit. Each change that a message offers is made, and must fit."""

import re

import pytest

from kvtide_sizing.devices.device import Device, device_named
from kvtide_sizing.errors import DoesNotFit
from kvtide_sizing.models import catalog
from kvtide_sizing.plan import Policy, Workload, plan
from kvtide_sizing.quantity import parse_quantity

CASES = [
    ("llama-2-70b", "a100-80gb", 4096, None),
    ("llama-3.1-8b", "l4", 131072, None),
    ("llama-2-7b", "mygpu:8GiB", 4096, 128),
    ("smollm2-135m", "cpu:1Gi", 8192, None),
    ("smollm2-135m", "cpu:1152Mi", 8192, 256),
    ("smollm2-135m", "cpu:256Mi", 64, 16),
]


def refusal(model: str, device: Device, context: int, block_size: int | None) -> DoesNotFit:
    with pytest.raises(DoesNotFit) as refused:
        plan(catalog.builtin(model), device, Workload(max_context_tokens=context), Policy(block_size_tokens=block_size))
    return refused.value


@pytest.mark.parametrize(("model", "device", "context", "block_size"), CASES)
def test_every_offered_change_fits(model: str, device: str, context: int, block_size: int | None) -> None:
    given = device_named(device)
    error = refusal(model, given, context, block_size)
    assert 1 <= len(error.changes) <= 3
    for change in error.changes:
        assert change in str(error)
        changed = re.search(r"maxContextTokens (\d+)", change)
        memory = re.search(r"device\.memory (\S+)", change)
        name = re.search(r"on the device (\S+)", change)
        blocks = re.search(r"blockSizeTokens (\d+)", change)
        other = device_named(name[1]) if name else given
        if memory:
            other = Device(given.name, given.kind, parse_quantity(memory[1]))
        result = plan(
            catalog.builtin(model),
            other,
            Workload(max_context_tokens=int(changed[1]) if changed else context),
            Policy(block_size_tokens=int(blocks[1]) if blocks else block_size),
        )
        assert result.max_concurrency >= 1


@pytest.mark.parametrize(("model", "device", "context", "block_size"), CASES)
def test_the_need_is_exact(model: str, device: str, context: int, block_size: int | None) -> None:
    given = device_named(device)
    needed = refusal(model, given, context, block_size).needed_bytes
    workload, policy = Workload(max_context_tokens=context), Policy(block_size_tokens=block_size)
    plan(catalog.builtin(model), Device(given.name, given.kind, needed), workload, policy)
    with pytest.raises(DoesNotFit):
        plan(catalog.builtin(model), Device(given.name, given.kind, needed - 1), workload, policy)


def test_the_message_says_what_there_is() -> None:
    error = refusal("llama-2-70b", device_named("a100-80gb"), 4096, None)
    # 68,976,648,192 parameters · 2 bytes = 128.5 GiB; 4096 tokens · 327,680 bytes = 1.25 GiB
    for part in ("weights 128.5 GiB", "KV 1.25 GiB", "the device has 80.0 GiB", "on the device h200"):
        assert part in str(error)
    assert error.device_bytes == 80 * 1024**3


def test_a_device_too_small_for_the_shortest_context_is_refused_without_a_wish() -> None:
    with pytest.raises(DoesNotFit, match="but the device has 512 MiB"):
        plan(catalog.builtin("smollm2-135m"), device_named("cpu:512Mi"), Workload(), Policy())


def test_the_peak_of_loading_is_named_where_it_is_what_does_not_fit() -> None:
    # Untied embeddings are dequantised last: 12 bytes for each of 128,256 · 4096 elements, 5.9 GiB beside the weights.
    error = refusal("llama-3.1-8b", device_named("cpu:20Gi"), 512, None)
    assert "at the peak of loading 6.2" in str(error) or "at the peak of loading 6.1" in str(error)
