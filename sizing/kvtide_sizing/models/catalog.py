"""Well-known models, so that planning works offline. Numbers are those of each model's config.json on its hub."""

from __future__ import annotations

from kvtide_sizing.errors import ModelNotFound
from kvtide_sizing.models.llama import llama_shape
from kvtide_sizing.models.model_uri import ModelUri
from kvtide_sizing.shape import ModelShape

#   name: layers, hidden, intermediate, query heads, KV heads, vocabulary, context, tied embeddings
_LLAMA = {
    "llama-2-7b": (32, 4096, 11008, 32, 32, 32000, 4096, False),
    "llama-2-13b": (40, 5120, 13824, 40, 40, 32000, 4096, False),
    "llama-2-70b": (80, 8192, 28672, 64, 8, 32000, 4096, False),
    "llama-3.1-8b": (32, 4096, 14336, 32, 8, 128256, 131072, False),
    "llama-3.1-70b": (80, 8192, 28672, 64, 8, 128256, 131072, False),
    "llama-3.2-1b": (16, 2048, 8192, 32, 8, 128256, 131072, True),
    "llama-3.2-3b": (28, 3072, 8192, 24, 8, 128256, 131072, True),
    "smollm2-135m": (30, 576, 1536, 9, 3, 49152, 8192, True),
    "smollm2-360m": (32, 960, 2560, 15, 5, 49152, 8192, True),
    "smollm2-1.7b": (24, 2048, 8192, 32, 32, 49152, 8192, True),
    "tinyllama-1.1b": (22, 2048, 5632, 32, 4, 32000, 2048, False),
}

# The hub's repositories with these very shapes, in lower case: the hub does not tell cases apart.
_REPOSITORIES = {
    "meta-llama/llama-2-7b-hf": "llama-2-7b",
    "meta-llama/llama-2-7b-chat-hf": "llama-2-7b",
    "meta-llama/llama-2-13b-hf": "llama-2-13b",
    "meta-llama/llama-2-13b-chat-hf": "llama-2-13b",
    "meta-llama/llama-2-70b-hf": "llama-2-70b",
    "meta-llama/llama-2-70b-chat-hf": "llama-2-70b",
    "meta-llama/llama-3.1-8b": "llama-3.1-8b",
    "meta-llama/llama-3.1-8b-instruct": "llama-3.1-8b",
    "meta-llama/meta-llama-3.1-8b": "llama-3.1-8b",
    "meta-llama/meta-llama-3.1-8b-instruct": "llama-3.1-8b",
    "meta-llama/llama-3.1-70b": "llama-3.1-70b",
    "meta-llama/llama-3.1-70b-instruct": "llama-3.1-70b",
    "meta-llama/meta-llama-3.1-70b": "llama-3.1-70b",
    "meta-llama/meta-llama-3.1-70b-instruct": "llama-3.1-70b",
    "meta-llama/llama-3.2-1b": "llama-3.2-1b",
    "meta-llama/llama-3.2-1b-instruct": "llama-3.2-1b",
    "meta-llama/llama-3.2-3b": "llama-3.2-3b",
    "meta-llama/llama-3.2-3b-instruct": "llama-3.2-3b",
    "huggingfacetb/smollm2-135m": "smollm2-135m",
    "huggingfacetb/smollm2-135m-instruct": "smollm2-135m",
    "huggingfacetb/smollm2-360m": "smollm2-360m",
    "huggingfacetb/smollm2-360m-instruct": "smollm2-360m",
    "huggingfacetb/smollm2-1.7b": "smollm2-1.7b",
    "huggingfacetb/smollm2-1.7b-instruct": "smollm2-1.7b",
    "tinyllama/tinyllama-1.1b-chat-v1.0": "tinyllama-1.1b",
}


def names() -> tuple[str, ...]:
    """The built-in models."""
    return tuple(_LLAMA)


def builtin(name: str) -> ModelShape:
    """The shape of a built-in model. Raises ModelNotFound with the names there are."""
    row = _LLAMA.get(name.lower())
    if row is None:
        raise ModelNotFound(f"no built-in model is called '{name}'; built in are {', '.join(_LLAMA)}")
    layers, hidden, intermediate, query_heads, kv_heads, vocabulary, context, tied = row
    return llama_shape(
        name.lower(),
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        query_heads=query_heads,
        kv_heads=kv_heads,
        vocab_size=vocabulary,
        max_context_tokens=context,
        tied_embeddings=tied,
    )


def builtin_for(uri: ModelUri) -> ModelShape | None:
    """The shape of a hub repository that is built in, at its main revision; None where the files must be read."""
    if uri.repo is None or uri.revision not in (None, "main"):
        return None
    name = _REPOSITORIES.get(uri.repo.lower())
    return None if name is None else builtin(name)
