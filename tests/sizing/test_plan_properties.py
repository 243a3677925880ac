"""What holds for every model, device and wish."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvtide_sizing.devices.device import Device, DeviceKind
from kvtide_sizing.errors import DoesNotFit, InvalidModel
from kvtide_sizing.models.config_json import shape_of_config
from kvtide_sizing.plan import Plan, Policy, Workload, plan
from kvtide_sizing.plan.workload import BLOCK_SIZES
from kvtide_sizing.shape import ModelShape

MIB = 1024**2

devices = st.builds(
    Device,
    st.just("some"),
    st.sampled_from(DeviceKind),
    st.integers(min_value=1, max_value=400 * 1024 * MIB),
)
workloads = st.builds(
    Workload,
    max_context_tokens=st.none() | st.integers(1, 4096),
    mean_prompt_tokens=st.none() | st.integers(1, 8192),
    mean_output_tokens=st.none() | st.integers(1, 8192),
    target_concurrency=st.none() | st.integers(1, 1000),
)
policies = st.builds(Policy, block_size_tokens=st.none() | st.sampled_from(BLOCK_SIZES))


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    kv_heads = draw(st.sampled_from([1, 2, 3, 5, 8, 32]))
    return shape_of_config(
        {
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": draw(st.integers(1, 100)),
            "hidden_size": draw(st.integers(1, 8192)),
            "intermediate_size": draw(st.integers(1, 30_000)),
            "num_attention_heads": kv_heads * draw(st.integers(1, 8)),
            "num_key_value_heads": kv_heads,
            "vocab_size": draw(st.integers(1, 200_000)),
            "max_position_embeddings": draw(st.integers(4096, 131_072)),
            "tie_word_embeddings": draw(st.booleans()),
            "head_dim": draw(st.sampled_from([1, 48, 64, 80, 96, 128, 256])),
        },
        "some",
    )


def planned(shape: ModelShape, device: Device, workload: Workload, policy: Policy) -> Plan | None:
    try:
        return plan(shape, device, workload, policy)
    except DoesNotFit:
        return None


@given(shapes(), st.sampled_from(DeviceKind), st.integers(0, 100 * 1024 * MIB), workloads, policies)
def test_a_plan_adds_up(shape: ModelShape, kind: DeviceKind, more: int, workload: Workload, policy: Policy) -> None:
    with pytest.raises(DoesNotFit) as refused:
        plan(shape, Device("some", kind, 1), workload, policy)
    device = Device("some", kind, refused.value.needed_bytes + more)
    result = plan(shape, device, workload, policy)
    memory, kv = result.memory, result.kv
    parts = (
        memory.weights_bytes,
        memory.activations_bytes,
        memory.overhead_bytes,
        memory.reserve_bytes,
        memory.kv_pool_bytes,
    )
    assert all(part >= 0 for part in parts)
    assert sum(parts) == memory.device_bytes == device.memory_bytes
    assert memory.kv_pool_bytes == kv.num_blocks * kv.block_size_tokens * kv.bytes_per_token
    # The pool holds what the plan promises, in whole blocks.
    blocks_of_longest = -(-result.max_context_tokens // kv.block_size_tokens)
    assert result.max_concurrency >= 1
    assert result.max_concurrency * blocks_of_longest <= kv.num_blocks
    expected = min(workload.mean_sequence_tokens, result.max_context_tokens)
    assert result.batch_limit >= 1
    assert result.batch_limit * -(-expected // kv.block_size_tokens) <= kv.num_blocks
    assert Plan.from_json(result.to_json()) == result


@given(shapes(), devices, workloads, policies, st.integers(0, 64 * 1024 * MIB))
def test_more_memory_never_holds_fewer_tokens(
    shape: ModelShape, device: Device, workload: Workload, policy: Policy, more: int
) -> None:
    small = planned(shape, device, workload, policy)
    large = planned(shape, Device(device.name, device.kind, device.memory_bytes + more), workload, policy)
    if small is not None:
        assert large is not None
        assert large.max_context_tokens >= small.max_context_tokens
        if large.max_context_tokens == small.max_context_tokens:
            assert large.kv.capacity_tokens >= small.kv.capacity_tokens


@given(shapes(), devices, workloads, policies)
def test_a_refusal_names_the_smallest_device_that_fits(
    shape: ModelShape, device: Device, workload: Workload, policy: Policy
) -> None:
    # Without a wish the shortest context is asked for: one block of it is needed.
    asked = replace(workload, max_context_tokens=workload.max_context_tokens or 1)
    assume(planned(shape, device, asked, policy) is None)
    with pytest.raises(DoesNotFit) as refused:
        plan(shape, device, workload, policy)
    needed = refused.value.needed_bytes
    assert needed > device.memory_bytes
    assert planned(shape, Device(device.name, device.kind, needed), asked, policy) is not None


@given(shapes())
def test_a_shape_survives_json(shape: ModelShape) -> None:
    assert ModelShape.from_json(shape.to_json()) == shape


@given(st.integers(-2, 8), st.integers(-2, 8))
def test_heads_that_do_not_divide_are_refused(query_heads: int, kv_heads: int) -> None:
    consistent = kv_heads > 0 and query_heads > 0 and query_heads % kv_heads == 0
    try:
        shape_of_config(
            {
                "architectures": ["LlamaForCausalLM"],
                "num_hidden_layers": 1,
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_attention_heads": query_heads,
                "num_key_value_heads": kv_heads,
                "vocab_size": 64,
                "max_position_embeddings": 64,
                "tie_word_embeddings": True,
                "head_dim": 8,
            },
            "some",
        )
    except InvalidModel:
        assert not consistent
    else:
        assert consistent
