"""What of a model decides about memory: what each layer keeps of a token, its sizes and its weights."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

from kvtide_sizing.errors import InvalidModel


@dataclass(frozen=True)
class LayerShape:
    """What one layer keeps of a token: kv_heads keys of head_dim elements and as many values of value_dim.

    window:  tokens that a token attends to, itself included; None is all of them
    A latent layer (MLA) keeps one vector from which keys and values are both made: value_dim is 0.
    """

    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None = None

    @property
    def is_latent(self) -> bool:
        """Whether keys and values are one vector."""
        return self.value_dim == 0

    @property
    def elements_per_token(self) -> int:
        """Elements that are kept of one token."""
        return self.kv_heads * (self.head_dim + self.value_dim)

    def to_json(self) -> dict[str, int]:
        """The layer as JSON values; what is the common case is left out."""
        data = {"kvHeads": self.kv_heads, "headDim": self.head_dim}
        if self.value_dim != self.head_dim:
            data["valueDim"] = self.value_dim
        if self.window is not None:
            data["window"] = self.window
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LayerShape:
        """The layer that `to_json` wrote."""
        head_dim, window = int(data["headDim"]), data.get("window")
        return cls(
            int(data["kvHeads"]), head_dim, int(data.get("valueDim", head_dim)), None if window is None else int(window)
        )


class Split(enum.StrEnum):
    """How a weight is divided among the devices of a replica (tensor parallelism)."""

    SHARDED = "Sharded"  # by rows, columns, experts or vocabulary: each device has its part
    KV_HEADS = "KVHeads"  # by whole KV heads: with fewer heads than devices, several devices have the same one
    COPIED = "Copied"  # every device has all of it


# Names of groups that are not stored like the others: a mixture's experts, what is looked up, what makes logits.
EXPERTS, EMBEDDING, HEAD, NORMS = "experts", "embedding", "head", "norms"


@dataclass(frozen=True)
class WeightGroup:
    """Weights of one purpose over all layers.

    elements:  how many values
    channels:  output channels of the group's matrices, each of which has a scale where weights are quantised; 0 for
               what stays as it is (norms, biases, embeddings)
    """

    name: str
    elements: int
    split: Split
    channels: int = 0


@dataclass(frozen=True)
class SideSensitivity:
    """What is lost where one layer's keys or values alone are stored so, and all else in BF16.

    The mean divergence (KL) of the predictions from those in BF16, in nats a token.
    """

    int8: float
    int4: float


@dataclass(frozen=True)
class LayerSensitivity:
    """What was measured of one layer."""

    key: SideSensitivity
    value: SideSensitivity


@dataclass(frozen=True)
class ModelShape:
    """A model's sizes, layer by layer.

    layers:             those that attend
    intermediate_size:  the widest MLP that one token goes through: of a mixture, all experts that it is sent to
    weights:            all of them, in groups; tied embeddings once
    weights_dtype:      what the file holds ("BF16", "Q4_1", …), None if only the configuration was read
    stored_bytes:       what the weights take in their files, exactly; None if the files were not read
    unserved:           why this release's worker cannot run it, None where it can; it can be planned all the same
    pooled_from:        KV heads that the model has, where its heads are pooled into fewer; None where they are its own
    sensitivity:        of each layer, None where nobody has measured it; no size, so that it makes no other shape
    """

    name: str
    architecture: str
    layers: tuple[LayerShape, ...]
    query_heads: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_context_tokens: int
    tied_embeddings: bool
    weights: tuple[WeightGroup, ...]
    weights_dtype: str | None = None
    stored_bytes: int | None = None
    unserved: str | None = None
    pooled_from: int | None = None
    sensitivity: tuple[LayerSensitivity, ...] | None = field(default=None, compare=False)

    @property
    def num_layers(self) -> int:
        """Layers that attend."""
        return len(self.layers)

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return any(group.name == EXPERTS for group in self.weights)

    @property
    def parameters(self) -> int:
        """All weights' elements, tied embeddings once."""
        return sum(group.elements for group in self.weights)

    @cached_property
    def layer_kinds(self) -> tuple[LayerShape, ...]:
        """Each kind of layer once, in the order in which they come first."""
        return tuple(dict.fromkeys(self.layers))

    def window_of(self, layer: LayerShape) -> int | None:
        """The window of a layer, None where it is as long as the model's context: such a layer sees everything."""
        return layer.window if layer.window is not None and layer.window < self.max_context_tokens else None

    @cached_property
    def layers_by_window(self) -> dict[int | None, tuple[int, ...]]:
        """The numbers of the layers of each window, in order; windows in the order in which they come first."""
        found: dict[int | None, list[int]] = {}
        for index, layer in enumerate(self.layers):
            found.setdefault(self.window_of(layer), []).append(index)
        return {window: tuple(indices) for window, indices in found.items()}

    @cached_property
    def kv_heads(self) -> int:
        """KV heads of the widest layer."""
        return max(layer.kv_heads for layer in self.layer_kinds)

    @cached_property
    def head_dim(self) -> int:
        """Elements of one key, of the widest layer."""
        return max(layer.head_dim for layer in self.layer_kinds)

    def to_json(self) -> dict[str, Any]:
        """The shape's sizes as JSON values. Each kind of layer is written once, and layers name their kinds in runs
        ("0x5 1"), so that a hundred layers with alternating windows fit a pod's termination message (4096 bytes)."""
        kinds = self.layer_kinds
        return {
            "name": self.name,
            "architecture": self.architecture,
            "layerKinds": [kind.to_json() for kind in kinds],
            "layers": " ".join(_run(kinds.index(kind), len(list(run))) for kind, run in groupby(self.layers)),
            "queryHeads": self.query_heads,
            "hiddenSize": self.hidden_size,
            "intermediateSize": self.intermediate_size,
            "vocabSize": self.vocab_size,
            "maxContextTokens": self.max_context_tokens,
            "parameters": self.parameters,
            "tiedEmbeddings": self.tied_embeddings,
            "weights": [
                {"name": group.name, "elements": group.elements, "split": group.split.value, "channels": group.channels}
                for group in self.weights
            ],
            "weightsDtype": self.weights_dtype,
            "storedBytes": self.stored_bytes,
            "unserved": self.unserved,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ModelShape:
        """The shape that `to_json` wrote. Raises InvalidModel where a key is missing or of another type."""
        try:
            kinds = [LayerShape.from_json(kind) for kind in data["layerKinds"]]
            return cls(
                name=str(data["name"]),
                architecture=str(data["architecture"]),
                layers=tuple(kinds[index] for run in data["layers"].split() for index in _indices(run)),
                query_heads=int(data["queryHeads"]),
                hidden_size=int(data["hiddenSize"]),
                intermediate_size=int(data["intermediateSize"]),
                vocab_size=int(data["vocabSize"]),
                max_context_tokens=int(data["maxContextTokens"]),
                tied_embeddings=bool(data["tiedEmbeddings"]),
                weights=tuple(
                    WeightGroup(
                        str(group["name"]), int(group["elements"]), Split(group["split"]), int(group["channels"])
                    )
                    for group in data["weights"]
                ),
                weights_dtype=data.get("weightsDtype"),
                stored_bytes=data.get("storedBytes"),
                unserved=data.get("unserved"),
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise InvalidModel(
                f"not a model shape as `kvtide inspect` writes it: {type(error).__name__} {error}"
            ) from error


def _run(kind: int, count: int) -> str:
    return str(kind) if count == 1 else f"{kind}x{count}"


def _indices(run: str) -> list[int]:
    kind, _, count = run.partition("x")
    return [int(kind)] * int(count or 1)
