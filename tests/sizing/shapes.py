"""A model of which a test only cares about the layers."""

from kvtide_sizing.shape import LayerShape, ModelShape, Split, WeightGroup


def shape_of(layers: tuple[LayerShape, ...], max_context_tokens: int = 131072) -> ModelShape:
    """64 query heads over whatever the layers have."""
    return ModelShape(
        name="m" * 128,
        architecture="llama",
        layers=layers,
        query_heads=64,
        hidden_size=8192,
        intermediate_size=28672,
        vocab_size=128256,
        max_context_tokens=max_context_tokens,
        tied_embeddings=False,
        weights=(
            WeightGroup("embedding", 128256 * 8192, Split.SHARDED),
            WeightGroup("query and output", 80 * 2 * 8192 * 8192, Split.SHARDED, channels=80 * 2 * 8192),
            WeightGroup("key and value", 80 * 2 * 8192 * 1024, Split.KV_HEADS, channels=80 * 2 * 1024),
            WeightGroup("norms", 161 * 8192, Split.COPIED),
        ),
        weights_dtype="BF16",
    )
