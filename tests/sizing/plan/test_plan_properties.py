"""What holds for every model, device and wish."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvtide_sizing.devices.device import Device, DeviceKind
from kvtide_sizing.errors import DoesNotFit
from kvtide_sizing.formats import RECENT_PARTS, RECENT_TOKENS, Precision, bytes_per_token, layer_formats
from kvtide_sizing.memory.budget import STEP_TOKEN_BUDGET
from kvtide_sizing.memory.key_bases import calibration_bytes, key_bases_bytes
from kvtide_sizing.memory.kv import kv_layout
from kvtide_sizing.plan import Plan, Policy, Workload, plan
from kvtide_sizing.shape import ModelShape
from tests.sizing.strategies import MIB, devices, policies, shapes, workloads


def planned(shape: ModelShape, device: Device, workload: Workload, policy: Policy) -> Plan | None:
    try:
        return plan(shape, device, workload, policy)
    except DoesNotFit:
        return None


def fitting(shape: ModelShape, kind: DeviceKind, more: int, workload: Workload, policy: Policy) -> Device:
    """A device that the plan fits, with this much more memory than it needs."""
    with pytest.raises(DoesNotFit) as refused:
        plan(shape, Device("some", kind, 1), workload, policy)
    return Device("some", kind, refused.value.needed_bytes + more)


@given(shapes(), st.sampled_from(DeviceKind), st.integers(0, 100 * 1024 * MIB), workloads, policies)
def test_a_plan_adds_up(shape: ModelShape, kind: DeviceKind, more: int, workload: Workload, policy: Policy) -> None:
    device = fitting(shape, kind, more, workload, policy)
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
    assert memory.kv_pool_bytes == kv.num_blocks * kv.bytes_per_block
    assert kv.bytes_per_block >= kv.block_size_tokens * kv.bytes_per_token
    assert result.max_concurrency >= 1
    assert result.batch_limit >= 1
    assert result.max_context_tokens <= result.longest_context_tokens + kv.block_size_tokens
    assert Plan.from_json(result.to_json()) == result


@given(shapes(), st.sampled_from(DeviceKind), st.integers(0, 100 * 1024 * MIB), workloads, policies)
def test_what_a_plan_promises_lies_in_its_pool(
    shape: ModelShape, kind: DeviceKind, more: int, workload: Workload, policy: Policy
) -> None:
    result = plan(shape, fitting(shape, kind, more, workload, policy), workload, policy)
    kv, context = result.kv, result.max_context_tokens
    blocks = kv.num_blocks * kv.block_tables
    formats = layer_formats(shape, Precision(kv.precision))
    layout = kv_layout(shape, formats, kv.block_size_tokens, STEP_TOKEN_BUDGET)
    recent = 0
    if any(name == "INT4" for run in kv.layers for name in (run.key, run.value)):
        # 32 tokens in BF16 of each table, of which a block takes a quarter of its tokens
        recent = len(layout.tables) * -(-32 // (kv.block_size_tokens // 4))
    assert kv.recent_blocks * kv.block_tables == recent
    # Counted layer by layer, as the tokens that its tables hold at the context's end, in the worst alignment.
    held = recent
    for table in layout.tables:
        first = 0 if table.window is None else max(0, context - table.window)
        held += -(-context // kv.block_size_tokens) - first // kv.block_size_tokens
    assert result.max_concurrency * held <= blocks
    expected = min(workload.mean_sequence_tokens, context)
    held_expected = recent + sum(
        -(-expected // kv.block_size_tokens)
        - (0 if table.window is None else max(0, expected - table.window) // kv.block_size_tokens)
        for table in layout.tables
    )
    assert result.batch_limit == 1 or result.batch_limit * held_expected <= blocks


@given(shapes(), devices, workloads, policies, st.integers(0, 64 * 1024 * MIB))
def test_more_memory_never_holds_fewer_tokens(
    shape: ModelShape, device: Device, workload: Workload, policy: Policy, more: int
) -> None:
    fixed = replace(policy, precision="INT8" if policy.precision == "Auto" else policy.precision)
    small = planned(shape, device, workload, fixed)
    large = planned(shape, replace(device, memory_bytes=device.memory_bytes + more), workload, fixed)
    if small is not None:
        assert large is not None
        assert large.max_context_tokens >= small.max_context_tokens
        if large.max_context_tokens == small.max_context_tokens:
            assert large.kv.capacity_tokens >= small.kv.capacity_tokens
            assert large.max_concurrency >= small.max_concurrency
            assert large.batch_limit >= small.batch_limit


@given(shapes(), devices, workloads, st.integers(0, 64 * 1024 * MIB))
def test_more_memory_never_costs_quality(shape: ModelShape, device: Device, workload: Workload, more: int) -> None:
    # Among precisions that reach what is wanted, Auto takes the best; more memory can only add to those.
    wanted = workload.target_concurrency or 1
    policy = Policy(max_quality_loss_percent=5)
    small = planned(shape, device, workload, policy)
    large = planned(shape, replace(device, memory_bytes=device.memory_bytes + more), workload, policy)
    if small is not None and workload.max_context_tokens is not None and small.max_concurrency >= wanted:
        assert large is not None
        assert large.kv.bytes_per_token >= small.kv.bytes_per_token


@given(shapes(), devices, workloads, st.integers(0, 3), st.integers(0, 3))
def test_a_smaller_format_never_holds_fewer_tokens(
    shape: ModelShape, device: Device, workload: Workload, first: int, second: int
) -> None:
    """On a device that also has what few bits take beside the pool, and the recent tokens of one sequence."""
    order = [Precision.BF16, Precision.INT8, Precision.K8V4, Precision.INT4]
    wider, narrower = (order[index] for index in sorted((first, second)))
    context = replace(workload, max_context_tokens=workload.max_context_tokens or 1024)
    formats = layer_formats(shape, narrower)
    beside = key_bases_bytes(shape, formats) + calibration_bytes(shape)
    recent = (RECENT_PARTS * RECENT_TOKENS + 2 * 256) * bytes_per_token(shape, wider)
    roomier = replace(device, memory_bytes=device.memory_bytes + 2 * (beside + recent))
    wide = planned(shape, device, context, Policy(precision=wider))
    narrow = planned(shape, roomier, context, Policy(precision=narrower))
    if wide is not None:
        assert narrow is not None
        assert narrow.kv.capacity_tokens >= wide.kv.capacity_tokens


@given(shapes(), devices, workloads, policies)
def test_a_refusal_names_the_smallest_device_that_fits(
    shape: ModelShape, device: Device, workload: Workload, policy: Policy
) -> None:
    # Without a wish the shortest context is asked for: one block of it is needed.
    asked = replace(workload, max_context_tokens=workload.max_context_tokens or 1)
    assume(planned(shape, device, asked, policy) is None)
    with pytest.raises(DoesNotFit) as refused:
        plan(shape, device, asked, policy)
    needed = refused.value.needed_bytes
    assert needed > device.memory_bytes
    assert planned(shape, replace(device, memory_bytes=needed), asked, policy) is not None
    assert planned(shape, replace(device, memory_bytes=needed - 1), asked, policy) is None


@given(shapes(), devices, workloads, st.sampled_from([1, 2, 4, 8]))
def test_what_a_device_has_of_a_shared_model_is_never_less_than_its_part(
    shape: ModelShape, device: Device, workload: Workload, count: int
) -> None:
    shared_heads = (layer.kv_heads for layer in shape.layers if not layer.is_latent)
    assume(shape.query_heads % count == 0)
    assume(all(heads % count == 0 or count % heads == 0 for heads in shared_heads))
    one = planned(shape, device, workload, Policy("INT8"))
    shared = planned(shape, replace(device, count=count), workload, Policy("INT8"))
    if one is not None and shared is not None:
        assert shared.memory.weights_bytes * count >= one.memory.weights_bytes
        assert shared.kv.bytes_per_token * count >= one.kv.bytes_per_token


@given(shapes())
def test_a_shape_survives_json(shape: ModelShape) -> None:
    assert ModelShape.from_json(shape.to_json()) == shape
