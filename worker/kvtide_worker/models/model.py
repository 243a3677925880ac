"""A model that runs, whatever its family."""

from __future__ import annotations

from typing import Protocol

import torch

from kvtide_kernels.attention import AttentionStep
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_worker.models.checkpoint import Checkpoint
from kvtide_worker.models.config import Family, ModelConfig
from kvtide_worker.models.decoder import Decoder
from kvtide_worker.models.gemma3 import Gemma3Model
from kvtide_worker.models.llama import LlamaModel
from kvtide_worker.models.phi3 import Phi3Model
from kvtide_worker.models.qwen2 import Qwen2Model
from kvtide_worker.models.qwen3 import Qwen3Model


class Model(Protocol):
    """A forward pass over a flat batch of tokens."""

    @property
    def config(self) -> ModelConfig:
        """The model's dimensions."""
        ...

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights; tied ones count once."""
        ...

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionStep, logit_rows: torch.Tensor
    ) -> torch.Tensor:
        """Logits [len(logit_rows), vocab_size] in the weights' dtype, of the rows whose next token is wanted.

        token_ids, positions [tokens]: the sequences' new tokens one after another, as attention was planned.
        """
        ...


_FAMILIES: dict[Family, type[Decoder]] = {
    "llama": LlamaModel,
    "qwen2": Qwen2Model,
    "qwen3": Qwen3Model,
    "gemma3": Gemma3Model,
    "phi3": Phi3Model,
}


def load_model(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device,
    context_tokens: int | None = None,
    weight_format: WeightFormat = WeightFormat.BF16,
) -> Model:
    """Read a checkpoint's weights into the model of its family. At its peak it takes them and one chunk of
    `WeightLoader`.

    context_tokens: the longest sequence that will be served, by which Phi 3 chooses its RoPE; all of the model's
    context where it is not said
    weight_format:  of the matrices; in another than BF16 they come beside a layer's in BF16, or the head's. Raises
    UnsupportedPrecision, before weights are read, for one that nothing here multiplies with
    """
    config = checkpoint.config
    return _FAMILIES[config.family](
        checkpoint,
        context_tokens=context_tokens or config.max_position_embeddings,
        dtype=dtype,
        device=device,
        weight_format=weight_format,
    )
