"""A model's weights, counted into groups by purpose and by how devices share them.

What is split and what is copied is as in Megatron's tensor parallelism (https://arxiv.org/abs/1909.08053), which vLLM
follows: columns of what goes into heads and MLPs, rows of what comes out; norms, routers and biases behind a sum of all
devices are copied.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvtide_sizing.shape import NORMS, LayerShape, Split, WeightGroup

QUERY_AND_OUTPUT, KEY_AND_VALUE, MLP = "query and output", "key and value", "mlp"


class Tally:
    """Groups of weights in the order in which they were first named."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, Split], tuple[int, int]] = {}

    def add(self, name: str, elements: int, split: Split, channels: int = 0) -> None:
        """Count more of a group: elements, and output channels of matrices that quantisation touches."""
        counted = self._groups.get((name, split), (0, 0))
        self._groups[name, split] = (counted[0] + elements, counted[1] + channels)

    def matrix(self, name: str, inputs: int, outputs: int, split: Split = Split.SHARDED) -> None:
        """Count a matrix of outputs · inputs; each output is a channel."""
        self.add(name, inputs * outputs, split, outputs)

    def norms(self, elements: int) -> None:
        """Count scales (and shifts) of normalisation."""
        self.add(NORMS, elements, Split.COPIED)

    def bias(self, split_elements: int = 0, copied_elements: int = 0) -> None:
        """Count biases: of outputs that devices share, and of outputs that all have."""
        if split_elements:
            self.add("split biases", split_elements, Split.SHARDED)
        if copied_elements:
            self.add("output biases", copied_elements, Split.COPIED)

    def attention(
        self,
        hidden_size: int,
        query_heads: int,
        layers: Iterable[LayerShape],
        *,
        qkv_bias: bool = False,
        output_bias: bool = False,
    ) -> None:
        """Count ordinary attention: query, key, value and output projections of each layer, fused or not."""
        for layer in layers:
            query, kv = query_heads * layer.head_dim, layer.kv_heads * layer.head_dim
            self.matrix(QUERY_AND_OUTPUT, hidden_size, query)
            self.matrix(QUERY_AND_OUTPUT, query, hidden_size)
            self.matrix(KEY_AND_VALUE, hidden_size, 2 * kv, Split.KV_HEADS)
            if qkv_bias:
                self.bias(split_elements=query)
                self.add("key and value biases", 2 * kv, Split.KV_HEADS)
            if output_bias:
                self.bias(copied_elements=hidden_size)

    def gated_mlp(self, hidden_size: int, width: int, *, name: str = MLP, count: int = 1, bias: bool = False) -> None:
        """Count MLPs with a gate: gate and up of width rows, down of hidden_size rows."""
        self.add(name, count * 3 * hidden_size * width, Split.SHARDED, count * (2 * width + hidden_size))
        if bias:
            self.bias(split_elements=count * 2 * width, copied_elements=count * hidden_size)

    def plain_mlp(self, hidden_size: int, width: int, *, count: int = 1, bias: bool = True) -> None:
        """Count MLPs without a gate: up and down."""
        self.add(MLP, count * 2 * hidden_size * width, Split.SHARDED, count * (width + hidden_size))
        if bias:
            self.bias(split_elements=count * width, copied_elements=count * hidden_size)

    def router(self, elements: int) -> None:
        """Count what chooses the experts; it is never quantised."""
        self.add("router", elements, Split.COPIED)

    def groups(self) -> tuple[WeightGroup, ...]:
        """All that was counted."""
        return tuple(
            WeightGroup(name, elements, split, channels)
            for (name, split), (elements, channels) in self._groups.items()
            if elements
        )
