"""What of a model decides about memory: its layers' KV heads, its sizes and its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from kvtide_sizing.errors import InvalidModel

WEIGHT_BYTES_PER_PARAMETER = 2  # the worker serves BF16, whatever the file holds


@dataclass(frozen=True)
class LayerShape:
    """What one layer keeps per token: kv_heads keys and as many values of head_dim elements each."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class ModelShape:
    """A model's sizes, layer by layer.

    parameters:     exact count as served, tied embeddings once
    weights_dtype:  what the file holds ("BF16", "Q4_1", …), None if only the configuration was read
    """

    name: str
    architecture: str
    layers: tuple[LayerShape, ...]
    query_heads: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_context_tokens: int
    parameters: int
    tied_embeddings: bool
    weights_dtype: str | None = None

    @property
    def num_layers(self) -> int:
        """Layers that attend."""
        return len(self.layers)

    @cached_property
    def kv_heads(self) -> int:
        """KV heads of the widest layer."""
        return max(layer.kv_heads for layer in self.layers)

    @cached_property
    def head_dim(self) -> int:
        """Elements of one head, of the widest layer."""
        return max(layer.head_dim for layer in self.layers)

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights as served."""
        return self.parameters * WEIGHT_BYTES_PER_PARAMETER

    @property
    def embedding_elements(self) -> int:
        """Elements of the embedding, and of the head that is tied to it or not."""
        return self.vocab_size * self.hidden_size

    @property
    def largest_projection_elements(self) -> int:
        """Elements of the largest single weight of a layer."""
        return self.hidden_size * max(self.intermediate_size, self.query_heads * self.head_dim)

    def to_json(self) -> dict[str, Any]:
        """The shape as JSON values. Equal neighbours among the layers are one entry with a count, so that a
        hundred layers fit a pod's termination message (4096 bytes)."""
        runs = [(layer, sum(1 for _ in run)) for layer, run in groupby(self.layers)]
        return {
            "name": self.name,
            "architecture": self.architecture,
            "layers": [{"count": count, "kvHeads": layer.kv_heads, "headDim": layer.head_dim} for layer, count in runs],
            "queryHeads": self.query_heads,
            "hiddenSize": self.hidden_size,
            "intermediateSize": self.intermediate_size,
            "vocabSize": self.vocab_size,
            "maxContextTokens": self.max_context_tokens,
            "parameters": self.parameters,
            "tiedEmbeddings": self.tied_embeddings,
            "weightsDtype": self.weights_dtype,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ModelShape:
        """The shape that `to_json` wrote. Raises InvalidModel where a key is missing or of another type."""
        try:
            return cls(
                name=str(data["name"]),
                architecture=str(data["architecture"]),
                layers=tuple(
                    LayerShape(int(run["kvHeads"]), int(run["headDim"]))
                    for run in data["layers"]
                    for _ in range(int(run["count"]))
                ),
                query_heads=int(data["queryHeads"]),
                hidden_size=int(data["hiddenSize"]),
                intermediate_size=int(data["intermediateSize"]),
                vocab_size=int(data["vocabSize"]),
                max_context_tokens=int(data["maxContextTokens"]),
                parameters=int(data["parameters"]),
                tied_embeddings=bool(data["tiedEmbeddings"]),
                weights_dtype=data.get("weightsDtype"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidModel(
                f"not a model shape as `kvtide inspect` writes it: {type(error).__name__} {error}"
            ) from error
