"""What one device of a replica holds of a model: tensor parallelism splits heads, MLPs and vocabulary."""

from __future__ import annotations

from dataclasses import replace

from kvtide_sizing.errors import UnsupportedPolicy
from kvtide_sizing.memory.weights import kv_heads_per_device
from kvtide_sizing.shape import LayerShape, ModelShape, Split


def shard(shape: ModelShape, devices: int) -> ModelShape:
    """The shape as each of so many devices computes it; weights stay whole, `weights_bytes` divides them by group.

    KV heads are split as far as they go and copied beyond that; a latent is copied; every device samples from whole
    rows of logits. Raises UnsupportedPolicy where the heads cannot be shared equally.
    """
    if devices == 1:
        return shape
    if not _shares(shape, devices):
        works = [count for count in range(1, shape.query_heads + 1) if _shares(shape, count)]
        raise UnsupportedPolicy(
            f"device.count {devices}: {shape.name} has {shape.query_heads} query heads over {shape.kv_heads} KV heads, "
            f"which so many devices cannot share equally; write one of {', '.join(map(str, works))}"
        )
    return replace(
        shape,
        layers=tuple(_shard_layer(layer, devices) for layer in shape.layers),
        query_heads=shape.query_heads // devices,
        # A token's experts may all lie on one device.
        intermediate_size=shape.intermediate_size if shape.has_experts else -(-shape.intermediate_size // devices),
    )


def _shares(shape: ModelShape, devices: int) -> bool:
    """Whether each device gets as many query heads, whose KV heads are its own or one that all of them share."""
    if shape.query_heads % devices:
        return False
    return all(
        layer.is_latent or layer.kv_heads % devices == 0 or devices % layer.kv_heads == 0 for layer in shape.layer_kinds
    )


def _shard_layer(layer: LayerShape, devices: int) -> LayerShape:
    return layer if layer.is_latent else replace(layer, kv_heads=kv_heads_per_device(layer.kv_heads, devices))


def with_kv_heads(shape: ModelShape, kv_heads: int, *, trained: bool = False) -> ModelShape:
    """The shape with another number of KV heads in every layer: a trained variant of the model, or its heads pooled.

    Raises UnsupportedPolicy where the query heads cannot be shared by so many, where heads that are pooled do not
    make so many equal groups, where the layers have different numbers already, and for latents, which have no heads.
    """
    native = {layer.kv_heads for layer in shape.layers}
    if native == {kv_heads}:
        return shape
    if any(layer.is_latent for layer in shape.layers):
        raise UnsupportedPolicy(f"kvHeads {kv_heads}: {shape.name} keeps a latent, which has no heads; write Native")
    if len(native) > 1:
        raise UnsupportedPolicy(f"kvHeads {kv_heads}: the layers of {shape.name} differ in KV heads; write Native")
    of = shape.query_heads if trained else shape.kv_heads
    if of % kv_heads or kv_heads > shape.kv_heads:
        works = [heads for heads in range(1, shape.kv_heads + 1) if of % heads == 0]
        raise UnsupportedPolicy(
            f"kvHeads {kv_heads}: {shape.name} has {shape.query_heads} query heads over {shape.kv_heads} KV heads; "
            f"write one of {', '.join(map(str, works))}"
        )
    weights = tuple(
        replace(
            group,
            elements=group.elements * kv_heads // shape.kv_heads,
            channels=group.channels * kv_heads // shape.kv_heads,
        )
        if group.split is Split.KV_HEADS
        else group
        for group in shape.weights
    )
    layers = tuple(replace(layer, kv_heads=kv_heads) for layer in shape.layers)
    pooled_from = None if trained else shape.kv_heads
    # Other heads lose something else.
    return replace(shape, layers=layers, weights=weights, stored_bytes=None, pooled_from=pooled_from, sensitivity=None)
