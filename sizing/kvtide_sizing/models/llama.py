"""The Llama family: its parameters by formula, and the checks that its dimensions must pass."""

from __future__ import annotations

from kvtide_sizing.errors import InvalidModel
from kvtide_sizing.shape import LayerShape, ModelShape, Split, WeightGroup

ARCHITECTURE = "llama"


def llama_shape(
    name: str,
    *,
    num_layers: int,
    hidden_size: int,
    intermediate_size: int,
    query_heads: int,
    kv_heads: int,
    vocab_size: int,
    max_context_tokens: int,
    tied_embeddings: bool,
    head_dim: int | None = None,
    weights_dtype: str | None = None,
) -> ModelShape:
    """The shape of a dense Llama model; head_dim None is hidden_size / query_heads.

    Raises InvalidModel where the dimensions contradict each other.
    """
    sizes = {
        "layers": num_layers,
        "hidden size": hidden_size,
        "intermediate size": intermediate_size,
        "query heads": query_heads,
        "KV heads": kv_heads,
        "vocabulary": vocab_size,
        "context": max_context_tokens,
        "head size": 1 if head_dim is None else head_dim,
    }
    for what, size in sizes.items():
        if size < 1:
            raise InvalidModel(f"{name} contradicts itself: its {what} is {size}")
    if query_heads % kv_heads:
        raise InvalidModel(
            f"{name} contradicts itself: {query_heads} query heads cannot be shared by {kv_heads} KV heads"
        )
    if head_dim is None:
        if hidden_size % query_heads:
            raise InvalidModel(
                f"{name} contradicts itself: it gives no head size, and its hidden size {hidden_size} "
                f"is not a multiple of its {query_heads} query heads"
            )
        head_dim = hidden_size // query_heads
    query, kv = query_heads * head_dim, kv_heads * head_dim
    weights = [
        WeightGroup("embedding", vocab_size * hidden_size, Split.SHARDED),
        WeightGroup(
            "query and output", num_layers * 2 * query * hidden_size, Split.SHARDED, num_layers * (query + hidden_size)
        ),
        WeightGroup("key and value", num_layers * 2 * kv * hidden_size, Split.KV_HEADS, num_layers * 2 * kv),
        WeightGroup(
            "mlp",
            num_layers * 3 * hidden_size * intermediate_size,
            Split.SHARDED,
            num_layers * (2 * intermediate_size + hidden_size),
        ),
        WeightGroup("norms", (2 * num_layers + 1) * hidden_size, Split.COPIED),
    ]
    if not tied_embeddings:
        weights.append(WeightGroup("head", vocab_size * hidden_size, Split.SHARDED))
    return ModelShape(
        name=name,
        architecture=ARCHITECTURE,
        layers=(LayerShape(kv_heads, head_dim, head_dim),) * num_layers,
        query_heads=query_heads,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        vocab_size=vocab_size,
        max_context_tokens=max_context_tokens,
        tied_embeddings=tied_embeddings,
        weights=tuple(weights),
        weights_dtype=weights_dtype,
    )
