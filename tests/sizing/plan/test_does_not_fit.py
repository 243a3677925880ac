"""Refusals: by how much, and what would fit. Each change that a message offers is made, and must fit."""

import re
from dataclasses import replace

import pytest

from kvtide_sizing import served
from kvtide_sizing.devices.device import Device, device_named
from kvtide_sizing.errors import DoesNotFit
from kvtide_sizing.formats import Precision
from kvtide_sizing.models import catalog
from kvtide_sizing.plan import Plan, Policy, Workload, plan
from kvtide_sizing.quantity import parse_quantity

CASES = [
    ("llama-2-70b", "a100-80gb", 4096, None),
    ("llama-3.1-8b", "l4", 131072, None),
    ("llama-3.1-8b", "l4", 49152, None),
    ("llama-2-7b", "mygpu:8GiB", 4096, 128),
    ("smollm2-135m", "cpu:768Mi", 8192, None),
    ("smollm2-1.7b", "cpu:4Gi", 8192, 256),
    ("smollm2-135m", "cpu:256Mi", 64, 16),
    ("llama-3.1-8b", "mygpu:16Gi", 8192, 64),
    ("llama-3.1-8b", "mygpu:10496Mi", 8192, 64),
    ("gemma-3-27b", "a100-40gb", 131072, None),
    ("deepseek-v3", "h200", 65536, None),
]


def refusal(
    model: str, device: Device, context: int, block_size: int | None, precision: str = "BF16", served_only: bool = False
) -> DoesNotFit:
    policy = Policy(precision, block_size, served_only=served_only)
    with pytest.raises(DoesNotFit) as refused:
        plan(catalog.builtin(model), device, Workload(max_context_tokens=context), policy)
    return refused.value


def changed_plan(change: str, model: str, device: Device, context: int, block_size: int | None) -> Plan:
    """The plan with one offered change made."""
    keys = (
        "maxContextTokens",
        "device.memory",
        "on the device",
        "blockSizeTokens",
        "precision",
        "weightPrecision",
        "device.count",
    )
    found = {key: match[1] for key in keys if (match := re.search(rf"{re.escape(key)} (\S+)", change))}
    assert found, change
    if "on the device" in found:
        device = replace(device_named(found["on the device"]), count=device.count)
    if "device.memory" in found:
        device = replace(device, memory_bytes=parse_quantity(found["device.memory"]))
    if "device.count" in found:
        device = replace(device, count=int(found["device.count"]))
    return plan(
        catalog.builtin(model),
        device,
        Workload(max_context_tokens=int(found.get("maxContextTokens", context))),
        Policy(
            found.get("precision", "BF16"),
            int(found["blockSizeTokens"]) if "blockSizeTokens" in found else block_size,
            weights=found.get("weightPrecision", "Auto"),
        ),
    )


@pytest.mark.parametrize(
    ("model", "device", "context", "block_size", "served_only"),
    [
        (*case, served_only)
        for case in CASES
        for served_only in (False, True)
        # What is not served is refused by name, before any size.
        if not (served_only and catalog.builtin(case[0]).unserved)
    ],
)
def test_every_offered_change_fits(
    model: str, device: str, context: int, block_size: int | None, served_only: bool
) -> None:
    given = device_named(device)
    error = refusal(model, given, context, block_size, served_only=served_only)
    assert 1 <= len(error.changes) <= 3
    for change in error.changes:
        assert change in str(error)
        assert not (served_only and re.search("FP8|weightPrecision INT4|device.count", change))
        assert changed_plan(change, model, given, context, block_size).max_concurrency >= 1


@pytest.mark.parametrize(("model", "device", "context", "block_size"), CASES)
def test_the_need_is_exact(model: str, device: str, context: int, block_size: int | None) -> None:
    given = device_named(device)
    needed = refusal(model, given, context, block_size).needed_bytes
    workload, policy = Workload(max_context_tokens=context), Policy("BF16", block_size)
    plan(catalog.builtin(model), replace(given, memory_bytes=needed), workload, policy)
    with pytest.raises(DoesNotFit):
        plan(catalog.builtin(model), replace(given, memory_bytes=needed - 1), workload, policy)


def test_all_kinds_of_changes_are_offered() -> None:
    changes = [
        change
        for model, device, context, block_size in CASES
        for change in refusal(model, device_named(device), context, block_size).changes
    ]
    both = "weightPrecision INT8 and kvCache.precision"
    for kind in ("precision INT8", "maxContextTokens", "device.memory", "device.count 2", "weightPrecision INT8", both):
        assert any(kind in change for change in changes), kind


def test_only_precisions_that_are_served_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    # 22.5 GiB less 15 of weights and the rest: 49,152 tokens take 6 GiB in BF16, 3.05 in INT8
    asked = ("llama-3.1-8b", device_named("l4"), 49_152, None)
    assert "with kvCache.precision INT8" in refusal(*asked, served_only=True).changes
    monkeypatch.setattr(served, "PRECISIONS", frozenset({Precision.BF16}))
    assert not [change for change in refusal(*asked, served_only=True).changes if "precision" in change]


def test_smaller_blocks_are_offered_where_they_are_enough() -> None:
    # 3900 tokens are 16 blocks of 256, which are 4096 tokens, and 244 of 16, which are 3904: 96 MiB less of KV.
    just_enough = refusal("llama-2-7b", device_named("mygpu:8Gi"), 3900, 16).needed_bytes
    device = replace(device_named("mygpu:8Gi"), memory_bytes=just_enough)
    error = refusal("llama-2-7b", device, 3900, 256)
    assert error.changes[0] == "with kvCache.blockSizeTokens 16"
    assert changed_plan(error.changes[0], "llama-2-7b", device, 3900, 256).max_concurrency == 1


def test_the_message_says_what_there_is() -> None:
    error = refusal("llama-2-70b", device_named("a100-80gb"), 4096, None)
    # 68,976,648,192 parameters · 2 bytes = 128.5 GiB; 4096 tokens · 327,680 bytes = 1.25 GiB
    for part in ("weights 128.5 GiB", "KV 1.25 GiB", "the device has 80.0 GiB", "with device.count 2"):
        assert part in str(error)
    assert error.device_bytes == 80 * 1024**3


def test_a_device_too_small_for_the_shortest_context_is_refused_without_a_wish() -> None:
    with pytest.raises(DoesNotFit, match="but the device has 512 MiB"):
        plan(catalog.builtin("smollm2-135m"), device_named("cpu:512Mi"), Workload(), Policy())


def test_the_peak_of_loading_is_named_where_it_is_what_does_not_fit() -> None:
    # Gemma's 262,144 tokens are read while there is no pool yet, beside a chunk of weights: 512 bytes each and 16 MiB.
    error = refusal("gemma-3-270m", device_named("cpu:512Mi"), 64, 16)
    assert "at the peak of loading 144 MiB beside weights and overhead" in str(error)
