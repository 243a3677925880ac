"""The Llama family: its parameters by formula, and the checks that its dimensions must pass."""

from __future__ import annotations

from kvtide_sizing.errors import InvalidModel
from kvtide_sizing.shape import LayerShape, ModelShape

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
    # q, k, v, o; gate, up, down; two norms
    layer = (
        hidden_size * (2 * query_heads + 2 * kv_heads) * head_dim
        + 3 * hidden_size * intermediate_size
        + 2 * hidden_size
    )
    embeddings = vocab_size * hidden_size * (1 if tied_embeddings else 2)
    return ModelShape(
        name=name,
        architecture=ARCHITECTURE,
        layers=(LayerShape(kv_heads, head_dim),) * num_layers,
        query_heads=query_heads,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        vocab_size=vocab_size,
        max_context_tokens=max_context_tokens,
        parameters=num_layers * layer + embeddings + hidden_size,  # and the last norm
        tied_embeddings=tied_embeddings,
        weights_dtype=weights_dtype,
    )
