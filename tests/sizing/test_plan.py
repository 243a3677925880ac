"""The plan's decisions, as rows."""

import time

import pytest

from kvtide_sizing.devices.device import Device, DeviceKind, device_named
from kvtide_sizing.errors import DoesNotFit, InvalidPlan, InvalidWorkload, UnsupportedPolicy, UnsupportedPrecision
from kvtide_sizing.memory.budget import MAX_BATCH, STEP_TOKEN_BUDGET
from kvtide_sizing.models import catalog
from kvtide_sizing.plan import Plan, Policy, Profile, Workload, plan

CHAT = Workload()
NATIVE = Policy()


def plan_of(
    model: str = "smollm2-135m",
    device: str = "cpu:1280Mi",
    workload: Workload = CHAT,
    policy: Policy = NATIVE,
) -> Plan:
    return plan(catalog.builtin(model), device_named(device), workload, policy)


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
        (Profile.CHAT, 2000, 560, 256),  # 2560 tokens: 128, just
    ],
)
def test_the_block_size_follows_the_expected_sequence(
    profile: Profile, prompt: int | None, output: int | None, block_size: int
) -> None:
    workload = Workload(profile, mean_prompt_tokens=prompt, mean_output_tokens=output)
    assert plan_of(device="cpu:4Gi", workload=workload).kv.block_size_tokens == block_size


def test_what_was_asked_is_kept() -> None:
    policy = Policy(precision="BF16", block_size_tokens=128, kv_heads=3)
    result = plan_of(workload=Workload(max_context_tokens=1000), policy=policy)
    assert (result.kv.block_size_tokens, result.kv.precision, result.max_context_tokens) == (128, "BF16", 1000)
    assert result.max_concurrency == result.kv.num_blocks // 8  # 1000 tokens reach into the eighth block of 128
    assert not any("blockSizeTokens" in reason or "maxContextTokens" in reason for reason in result.reasons)


@pytest.mark.parametrize(
    ("device", "whole"),
    [("cpu:4Gi", True), ("cpu:1152Mi", False)],
)
def test_without_a_wish_the_context_is_the_models_cut_to_what_fits(device: str, whole: bool) -> None:
    result = plan_of(device=device)
    assert (result.max_context_tokens == 8192) is whole
    assert result.max_concurrency >= 1
    reason = next(reason for reason in result.reasons if reason.startswith("maxContextTokens"))
    assert "8192" in reason
    assert ("cut" in reason) is not whole


def test_a_cut_context_is_the_longest_that_fits() -> None:
    cut = plan_of(device="cpu:1152Mi")
    longer = Workload(max_context_tokens=cut.max_context_tokens + cut.kv.block_size_tokens)
    with pytest.raises(DoesNotFit):
        plan_of(device="cpu:1152Mi", workload=longer)


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
    for number in (32, 32 * 768, result.kv.capacity_tokens, result.batch_limit):
        assert str(number) in warning


def test_a_sequence_that_is_expected_longer_than_allowed_is_counted_as_allowed() -> None:
    result = plan_of(workload=Workload(max_context_tokens=256))
    assert result.batch_limit == min(64, result.kv.num_blocks // 4)  # 256 tokens are 4 blocks of 64
    assert any("768" in warning and "256" in warning for warning in result.warnings)


def test_the_other_block_sizes_are_the_alternatives() -> None:
    result = plan_of(workload=Workload(max_context_tokens=2048))
    assert [other.choice for other in result.alternatives] == [f"blockSizeTokens {size}" for size in (16, 32, 128, 256)]
    for other in result.alternatives:
        size = int(other.choice.split()[1])
        same = plan_of(workload=Workload(max_context_tokens=2048), policy=Policy(block_size_tokens=size))
        assert other.capacity_tokens == same.kv.capacity_tokens
        assert other.batch_limit == same.batch_limit
        assert other.max_concurrency == same.max_concurrency


@pytest.mark.parametrize(
    ("workload", "policy", "error", "message"),
    [
        (Workload(max_context_tokens=8193), Policy(), InvalidWorkload, "8193 is beyond the 8192 .* write 8192 or less"),
        (CHAT, Policy(block_size_tokens=48), InvalidWorkload, "blockSizeTokens 48: write one of 16, 32, 64, 128, 256"),
        (CHAT, Policy(precision="INT8"), UnsupportedPrecision, "INT8 is not served yet; write BF16"),
        (CHAT, Policy(precision="int8"), UnsupportedPrecision, "'int8' is no KV precision; write BF16"),
        (CHAT, Policy(kv_heads=1), UnsupportedPolicy, "attention.kvHeads 1 .* has 3 KV heads"),
        (CHAT, Policy(kv_heads="Auto"), UnsupportedPolicy, "attention.kvHeads Auto .* write Native"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_what_would_work(
    workload: Workload, policy: Policy, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan_of(workload=workload, policy=policy)


def test_more_than_one_device_is_refused_by_name() -> None:
    two = Device("h200", DeviceKind.GPU, 141 * 1024**3, count=2)
    with pytest.raises(UnsupportedPolicy, match=r"device\.count 2 is not served yet; write 1"):
        plan(catalog.builtin("llama-2-7b"), two, CHAT, Policy())


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


def test_a_plan_survives_json() -> None:
    result = plan_of(workload=Workload(max_context_tokens=2048, target_concurrency=32))
    assert Plan.from_json(result.to_json()) == result


def test_json_that_is_no_plan_is_refused() -> None:
    broken = plan_of().to_json()
    del broken["kv"]["numBlocks"]
    with pytest.raises(InvalidPlan, match="numBlocks"):
        Plan.from_json(broken)


def test_json_has_the_contracts_keys() -> None:
    data = plan_of().to_json()
    assert (
        list(data)
        == (
            "model device kv memory attention maxContextTokens maxConcurrency batchLimit reasons alternatives warnings"
        ).split()
    )
    assert (
        list(data["kv"])
        == ("precision blockSizeTokens bytesPerToken bytesPerBlock numBlocks capacityTokens poolBytes").split()
    )
    assert (
        list(data["memory"])
        == ("deviceBytes weightsBytes activationsBytes overheadBytes reserveBytes kvPoolBytes").split()
    )
    assert list(data["attention"]) == ["queryHeads", "kvHeads"]


def test_a_plan_takes_less_than_ten_milliseconds() -> None:
    def seconds() -> float:
        started = time.thread_time()  # the machine may be busy with other things
        plan_of("llama-3.1-70b", "mygpu:150GiB")  # its context is cut to what fits: the longest search
        return time.thread_time() - started

    assert min(seconds() for _ in range(10)) < 0.010
