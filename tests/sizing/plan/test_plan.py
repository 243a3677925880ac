"""The plan's decisions, as rows."""

import time
from dataclasses import replace
from typing import Any

import pytest

from kvtide_sizing.devices.device import Device, DeviceKind, device_named
from kvtide_sizing.errors import (
    DoesNotFit,
    InvalidWorkload,
    UnsupportedModel,
    UnsupportedPolicy,
    UnsupportedPrecision,
)
from kvtide_sizing.memory.budget import MAX_BATCH, STEP_TOKEN_BUDGET
from kvtide_sizing.models import catalog
from kvtide_sizing.plan import Policy, Profile, Workload, plan
from tests.sizing.plan.plans import CHAT, NATIVE, plan_of


def test_the_seed_case_holds_exactly() -> None:
    result = plan_of("llama-2-7b", "a100-80gb", Workload(max_context_tokens=4096))
    assert result.kv.bytes_per_token == 524_288  # 2 · 32 layers · 32 KV heads · 128 · 2 bytes
    sequence = result.max_context_tokens * result.kv.bytes_per_token
    assert sequence == 2_147_483_648
    assert result.memory.weights_bytes == 2 * 6_738_415_616
    # 80 GiB less 12.6 of weights would hold 33 such sequences if nothing else were there.
    assert 25 <= result.max_concurrency <= 33


def test_a_small_container_holds_smollm2_and_a_useful_pool() -> None:
    result = plan_of(workload=Workload(max_context_tokens=2048))
    assert result.memory.weights_bytes == 2 * 134_515_008
    assert result.kv.bytes_per_token == 23_040
    assert result.kv.bytes_per_block == 64 * 23_040
    assert result.kv.pool_bytes >= 250_000_000
    assert result.batch_limit >= 12


@pytest.mark.parametrize(
    ("profile", "prompt", "output", "block_size"),
    [
        # The largest block whose half is at most a twentieth of the expected sequence.
        (Profile.CHAT, None, None, 64),  # 768 tokens: 38.4
        (Profile.DOCUMENTS, None, None, 256),  # 4608 tokens: 230
        (Profile.CUSTOM, 200, 120, 32),  # 320 tokens: 16, just
        (Profile.CUSTOM, 200, 119, 16),  # 319 tokens: 15.95
        (Profile.CUSTOM, 20, 10, 16),  # 30 tokens: none is small enough, so the smallest
        (Profile.CUSTOM, 2000, 560, 256),  # 2560 tokens: 128, just
        (Profile.CHAT, 2000, 560, 64),  # chats share whole blocks: no larger than 64
    ],
)
def test_the_block_size_follows_the_expected_sequence(
    profile: Profile, prompt: int | None, output: int | None, block_size: int
) -> None:
    workload = Workload(profile, mean_prompt_tokens=prompt, mean_output_tokens=output)
    assert plan_of(device="cpu:4Gi", workload=workload).kv.block_size_tokens == block_size


@pytest.mark.parametrize(
    ("precision", "prompt", "block_size"),
    [
        # 4608 tokens leave 128 of 256 empty, 2.8 %; the last 32 in BF16 take 128 tokens' room and a block of their own
        ("INT8", 4096, 256),
        ("K8V4", 4096, 128),
        ("INT4", 4096, 128),
        ("INT4", 4607, 128),
        ("INT4", 4608, 256),  # 128 + 128 of 5120 are 5 %
    ],
)
def test_recent_tokens_should_fill_their_blocks_too(precision: str, prompt: int, block_size: int) -> None:
    workload = Workload(Profile.DOCUMENTS, mean_prompt_tokens=prompt)
    assert plan_of(device="cpu:4Gi", workload=workload, policy=Policy(precision)).kv.block_size_tokens == block_size


def test_recent_tokens_and_key_bases_are_counted() -> None:
    """SmolLM2 in INT4: 30 layers of 3 heads of 64, whose blocks of 64 tokens have 64 · 30 · 3 · 72 bytes."""
    bf16, int4 = (plan_of(workload=Workload(max_context_tokens=2048), policy=Policy(name)) for name in ("BF16", "INT4"))
    assert int4.kv.bytes_per_block == 64 * 30 * 3 * 72
    assert (bf16.kv.recent_blocks, int4.kv.recent_blocks) == (0, 2)
    assert int4.max_concurrency == int4.kv.num_blocks // (2048 // 64 + 2)
    # two float32 matrices of 64 · 64 and a centre of 64 for each head
    assert int4.memory.weights_bytes - bf16.memory.weights_bytes == 30 * 3 * (8 * 64**2 + 4 * 64)
    assert any("2 more for the last 32 tokens in BF16" in reason for reason in int4.reasons)


def test_each_of_several_devices_has_its_heads_bases() -> None:
    """Llama 2 70B: 80 layers, four of eight KV heads of 128 on each of two."""
    two = replace(device_named("a100-80gb"), count=2)
    bf16, int8 = (
        plan(catalog.builtin("llama-2-70b"), two, Workload(max_context_tokens=4096), Policy(name))
        for name in ("BF16", "INT8")
    )
    assert int8.memory.weights_bytes - bf16.memory.weights_bytes == 80 * 4 * (8 * 128**2 + 4 * 128)


def test_what_was_asked_is_kept() -> None:
    policy = Policy(precision="BF16", block_size_tokens=128, kv_heads=3)
    result = plan_of(workload=Workload(max_context_tokens=1000), policy=policy)
    assert (result.kv.block_size_tokens, result.kv.precision, result.max_context_tokens) == (128, "BF16", 1000)
    assert result.max_concurrency == result.kv.num_blocks // 8  # 1000 tokens reach into the eighth block of 128
    assert not any("blockSizeTokens" in reason or "maxContextTokens" in reason for reason in result.reasons)


@pytest.mark.parametrize(("device", "whole"), [("h100-80gb", True), ("l4", False)])
def test_without_a_wish_the_context_is_the_models_cut_to_what_fits(device: str, whole: bool) -> None:
    result = plan_of("llama-3.1-8b", device)
    # 22.5 GiB less 15 of weights leave less than the 16 GiB of KV that 131,072 tokens take.
    assert (result.max_context_tokens == 131_072) is whole
    assert result.max_concurrency >= 1
    reason = next(reason for reason in result.reasons if reason.startswith("maxContextTokens"))
    assert ("131072" in reason and "cut" in reason) is not whole


def test_a_cut_context_is_the_longest_that_fits() -> None:
    cut = plan_of("llama-3.1-8b", "l4")
    assert cut.longest_context_tokens == cut.max_context_tokens
    longer = Workload(max_context_tokens=cut.max_context_tokens + cut.kv.block_size_tokens)
    with pytest.raises(DoesNotFit):
        plan_of("llama-3.1-8b", "l4", longer, Policy("BF16"))


@pytest.mark.parametrize(
    ("device", "cap"), [("cpu:64Gi", MAX_BATCH[DeviceKind.CPU]), ("h200", MAX_BATCH[DeviceKind.GPU])]
)
def test_the_batch_limit_ends_where_a_step_does(device: str, cap: int) -> None:
    result = plan_of(device=device)
    assert result.batch_limit == cap
    assert any(f"no more than {cap}" in reason for reason in result.reasons)


def test_a_wish_for_concurrency_raises_the_cap_up_to_the_steps_tokens() -> None:
    assert plan_of(device="cpu:64Gi", workload=Workload(target_concurrency=100)).batch_limit == 100
    assert plan_of(device="cpu:64Gi", workload=Workload(target_concurrency=9999)).batch_limit == STEP_TOKEN_BUDGET


def test_a_concurrency_that_is_not_reached_is_a_warning_with_the_numbers() -> None:
    result = plan_of(workload=Workload(max_context_tokens=2048, target_concurrency=32))
    warning = next(warning for warning in result.warnings if warning.startswith("targetConcurrency"))
    # in K8V4, of which every sequence has 2 blocks of 64 for its last tokens in BF16
    for number in (32, 32 * (2048 + 2 * 64), result.kv.capacity_tokens, result.max_concurrency, result.batch_limit):
        assert str(number) in warning


def test_a_sequence_that_is_expected_longer_than_allowed_is_counted_as_allowed() -> None:
    result = plan_of(workload=Workload(max_context_tokens=256))
    assert result.batch_limit == min(64, result.kv.num_blocks // 4)  # 256 tokens are 4 blocks of 64
    assert any("768" in warning and "256" in warning for warning in result.warnings)


def test_a_window_keeps_blocks_small() -> None:
    # 4608 tokens would have blocks of 256; a window of 512 has a quarter of itself, 128, at most
    workload = Workload(Profile.DOCUMENTS, 8192)
    assert plan_of("gemma-3-270m", "mygpu:8GiB", workload).kv.block_size_tokens == 128


def test_each_alternative_is_what_its_plan_would_be() -> None:
    workload = Workload(max_context_tokens=2048)
    result = plan_of("llama-2-7b", "a100-40gb", workload)
    assert len(result.alternatives) >= 9
    for other in result.alternatives:
        field, value = other.choice.split()
        name = {
            "precision": "precision",
            "kvHeads": "kv_heads",
            "blockSizeTokens": "block_size_tokens",
            "weightPrecision": "weights",
        }[field]
        choice = Policy(**{name: int(value) if value.isdecimal() else value})  # type: ignore[arg-type]
        same = plan_of("llama-2-7b", "a100-40gb", workload, choice)
        assert (other.bytes_per_token, other.capacity_tokens, other.max_concurrency, other.batch_limit) == (
            same.kv.bytes_per_token,
            same.kv.capacity_tokens,
            same.max_concurrency,
            same.batch_limit,
        )


def test_several_devices_share_a_model() -> None:
    two = replace(device_named("a100-80gb"), count=2)
    result = plan(catalog.builtin("llama-2-70b"), two, Workload(max_context_tokens=4096), NATIVE)
    # 8 KV heads: four on each of them
    assert result.kv.bytes_per_token == 327_680 // 2
    assert result.device_count == 2
    assert result.memory.device_bytes == 80 * 1024**3
    assert any("4 of 8 KV heads" in reason for reason in result.reasons)


def test_a_measured_overhead_takes_the_estimates_place() -> None:
    estimated = plan_of("llama-2-7b", "a100-40gb", Workload(max_context_tokens=2048))
    device = replace(device_named("a100-40gb"), measured_overhead_bytes=700 * 1024**2)
    measured = plan(catalog.builtin("llama-2-7b"), device, Workload(max_context_tokens=2048), NATIVE)
    assert measured.memory.overhead_bytes == 700 * 1024**2 < estimated.memory.overhead_bytes
    assert measured.overhead_measured
    assert not estimated.overhead_measured
    assert measured.kv.capacity_tokens > estimated.kv.capacity_tokens
    assert any("is measured" in warning for warning in measured.warnings)


@pytest.mark.parametrize(
    ("workload", "policy", "error", "message"),
    [
        (Workload(max_context_tokens=8193), {}, InvalidWorkload, "8193 is beyond the 8192 .* write 8192 or less"),
        (CHAT, {"block_size_tokens": 48}, InvalidWorkload, "blockSizeTokens 48: write one of 16, 32, 64, 128, 256"),
        (CHAT, {"precision": "int8"}, UnsupportedPrecision, "'int8' is no KV precision; write BF16"),
        (CHAT, {"precision": "FP8"}, UnsupportedPrecision, "FP8 KV needs .* cpu does not; write INT8"),
        (
            CHAT,
            {"precision": "FP8", "served_only": True},
            UnsupportedPrecision,
            "kvCache.precision FP8 is not served by this release; write BF16, INT8, Mixed, K8V4, INT4 or Auto",
        ),
        (
            CHAT,
            {"kv_heads": 1, "variants": (1,), "served_only": True},
            UnsupportedPolicy,
            r"kvHeads 1 is a variant, .* has 3 KV heads; write the variant's uri as model\.uri",
        ),
        (CHAT, {"kv_heads": 2}, UnsupportedPolicy, "kvHeads 2: .* 9 query heads over 3 KV heads; write one of 1, 3"),
        (CHAT, {"kv_heads": "Some"}, InvalidWorkload, "kvHeads 'Some': write Native, Auto or a number"),
        (CHAT, {"kv_heads": 0}, InvalidWorkload, "kvHeads 0: write 1 or more"),
        (CHAT, {"weights": "Q4"}, UnsupportedPrecision, "'Q4' is no precision of weights; write BF16"),
        (
            CHAT,
            {"weights": "INT4", "served_only": True},
            UnsupportedPrecision,
            r"model\.weightPrecision INT4 is not served by this release; write BF16, INT8",
        ),
        (CHAT, {"max_quality_loss_percent": -1}, InvalidWorkload, "maxQualityLossPercent -1"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_what_would_work(
    workload: Workload, policy: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan_of(workload=workload, policy=Policy(**policy))


def test_more_than_one_device_is_not_served() -> None:
    two = Device("h200", DeviceKind.GPU, 141 * 1024**3, count=2)
    with pytest.raises(UnsupportedPolicy, match=r"device\.count 2 is not served by this release; write 1"):
        plan(catalog.builtin("llama-2-7b"), two, CHAT, Policy(served_only=True))


def test_a_model_that_is_not_served_is_planned_and_says_so() -> None:
    result = plan_of("mixtral-8x7b", "h200")
    assert any("does not serve" in warning for warning in result.warnings)
    with pytest.raises(UnsupportedModel, match="mixtral-8x7b"):
        plan_of("mixtral-8x7b", "h200", policy=Policy(served_only=True))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_context_tokens": 0}, "maxContextTokens is 0; write 1 or more"),
        ({"mean_prompt_tokens": -5}, "meanPromptTokens is -5"),
        ({"target_concurrency": 0}, "targetConcurrency is 0"),
        ({"profile": Profile.CUSTOM, "mean_prompt_tokens": 5}, "Custom needs meanPromptTokens and meanOutputTokens"),
    ],
)
def test_a_workload_that_means_nothing_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidWorkload, match=message):
        Workload(**fields)  # type: ignore[arg-type]


def test_a_plan_takes_less_than_ten_milliseconds() -> None:
    def seconds() -> float:
        started = time.thread_time()  # the machine may be busy with other things
        # Its context is cut to what fits, with each precision: the longest search.
        workload = Workload(target_concurrency=500)
        plan_of("llama-3.1-70b", "mygpu:150GiB", workload, Policy(max_quality_loss_percent=5))
        return time.thread_time() - started

    assert min(seconds() for _ in range(10)) < 0.010
