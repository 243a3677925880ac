"""Weights: their bytes in each format, and what each of several devices has of them."""

import pytest

from kvtide_sizing.errors import UnsupportedPolicy
from kvtide_sizing.memory.sharding import shard, with_kv_heads
from kvtide_sizing.memory.weights import WeightFormat, copied_bytes, native_format, weights_bytes
from kvtide_sizing.models import catalog


@pytest.mark.parametrize(
    ("model", "stored", "expected"),
    [
        ("llama-2-7b", WeightFormat.BF16, 2 * 6_738_415_616),
        # Matrices of 32 layers: (4 · 4096 · 4096 + 3 · 4096 · 11008) bytes, and for each of 4 · 4096 + 2 · 11008 + 4096
        # output channels, 4 bytes; the head of 32000 · 4096 with them; embedding and 65 norms of 4096 in BF16.
        (
            "llama-2-7b",
            WeightFormat.INT8,
            32 * (202_375_168 + 4 * 42_496) + 32_000 * (4096 + 4) + 2 * (32_000 * 4096 + 65 * 4096),
        ),
        # Embeddings that are tied to the head are in INT8 with it: 49,152 outputs, and 5184 of each of 30 layers; 61
        # norms of 576 in BF16.
        ("smollm2-135m", WeightFormat.INT8, 134_515_008 + 4 * (49_152 + 30 * 5184) + 61 * 576),
        # 4 bits, and 32 bits of scale and zero point for each 128 elements: 4.25 bits
        ("llama-2-7b", WeightFormat.INT4, 32 * (202_375_168 * 34 // 64) + 2 * (2 * 32_000 * 4096 + 65 * 4096)),
    ],
)
def test_a_models_weights(model: str, stored: WeightFormat, expected: int) -> None:
    assert weights_bytes(catalog.builtin(model), stored) == expected


@pytest.mark.parametrize(
    ("model", "gigabytes"),
    [
        ("gpt-oss-20b", 13.8),  # published: safetensors of 13.76 GB
        ("gpt-oss-120b", 65.2),  # 65.25 GB
        ("deepseek-v3", 689),  # 688.6 GB with the module for multi-token prediction, 671 B parameters + 14 B
    ],
)
def test_checkpoints_that_are_stored_quantised_are_served_so(model: str, gigabytes: float) -> None:
    shape = catalog.builtin(model)
    assert native_format(shape) is not WeightFormat.BF16
    assert weights_bytes(shape, native_format(shape)) / 1e9 == pytest.approx(gigabytes, rel=0.04)


def test_two_devices_have_half_and_their_own_norms() -> None:
    shape = catalog.builtin("llama-3.1-8b")
    norms = 65 * 4096
    half = (shape.parameters - norms) // 2
    assert weights_bytes(shape, devices=2) == 2 * (half + norms)
    assert copied_bytes(shape, WeightFormat.BF16, 2) == 2 * norms


@pytest.mark.parametrize(("devices", "kv_heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (32, 1)])
def test_kv_heads_are_split_and_then_copied(devices: int, kv_heads: int) -> None:
    shape = catalog.builtin("llama-3.1-8b")  # 32 query heads over 8 KV heads
    local = shard(shape, devices)
    assert {layer.kv_heads for layer in local.layers} == {kv_heads}
    assert local.query_heads == 32 // devices
    # k and v projections of 32 layers: 4096 · 128 elements for each head
    kv = 32 * 2 * 4096 * 128 * kv_heads
    rest = (shape.parameters - 65 * 4096 - 32 * 2 * 4096 * 1024) // devices
    assert weights_bytes(shape, devices=devices) == 2 * (kv + rest + 65 * 4096)


def test_a_latent_is_copied_to_every_device() -> None:
    shape = catalog.builtin("deepseek-v3")
    assert shard(shape, 8).layers == shape.layers


def test_query_heads_that_cannot_be_shared_are_refused_with_what_works() -> None:
    with pytest.raises(UnsupportedPolicy, match=r"device\.count 2: .* has 9 query heads.*write one of 1, 3, 9"):
        shard(catalog.builtin("smollm2-135m"), 2)


def test_fewer_kv_heads_take_their_projections_along() -> None:
    shape = with_kv_heads(catalog.builtin("llama-2-13b"), 8)
    assert {layer.kv_heads for layer in shape.layers} == {8}
    # 40 layers lose 32 of 40 heads of k and v: 2 · 5120 · 128 · 32 elements each
    assert shape.parameters == 13_015_864_320 - 40 * 2 * 5120 * 128 * 32


@pytest.mark.parametrize(
    ("model", "heads", "message"),
    [
        ("llama-2-13b", 7, "40 query heads over 40 KV heads; write one of 1, 2, 4, 5, 8, 10, 20, 40"),
        ("llama-3.1-8b", 16, "32 query heads over 8 KV heads; write one of 1, 2, 4, 8"),
        ("deepseek-v3", 4, "keeps a latent, which has no heads; write Native"),
    ],
)
def test_kv_heads_that_cannot_be_are_refused_with_what_works(model: str, heads: int, message: str) -> None:
    with pytest.raises(UnsupportedPolicy, match=message):
        with_kv_heads(catalog.builtin(model), heads)
