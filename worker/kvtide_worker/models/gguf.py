"""Weights from a GGUF file; quantised tensors are dequantised as they are read."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import gguf
import numpy as np
import torch

from kvtide_sizing.errors import UnsupportedModel
from kvtide_worker.models.chunks import row_chunks
from kvtide_worker.models.config import Family, ModelConfig
from kvtide_worker.models.gguf_config import read_config
from kvtide_worker.models.gguf_metadata import GgufMetadata

_MODEL_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_FAMILY_NAMES: dict[Family, dict[str, str]] = {
    "llama": {"post_attention_layernorm": "ffn_norm"},
    "qwen2": {"post_attention_layernorm": "ffn_norm"},
    "qwen3": {"post_attention_layernorm": "ffn_norm", **_HEAD_NORMS},
    # What is fused in Hugging Face's files is so here, in the same order.
    "phi3": {
        "post_attention_layernorm": "ffn_norm",
        "self_attn.qkv_proj": "attn_qkv",
        "mlp.gate_up_proj": "ffn_up",
    },
    "gemma3": {
        **_HEAD_NORMS,
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
}


class GgufCheckpoint:
    """A model in a GGUF file. Raises UnsupportedModel for architectures, options and quantisations that are not run."""

    def __init__(self, path: Path) -> None:
        self._file = GgufMetadata(path)
        self.config: ModelConfig = read_config(self._file)
        for tensor in self._file.tensors.values():
            if not _is_read(tensor.tensor_type):
                raise UnsupportedModel(
                    f"{path} stores {tensor.name} as {tensor.tensor_type.name}, which is not read; "
                    f"Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, the K-quants Q2_K to Q6_K, F16, BF16 and F32 are"
                )

    def shape(self, name: str) -> tuple[int, ...]:
        """As `Checkpoint.shape`."""
        # GGUF counts dimensions from the innermost one.
        return tuple(int(size) for size in reversed(self._stored(name).shape))

    def read(self, name: str, out: torch.Tensor) -> None:
        """As `Checkpoint.read`. A chunk is dequantised to float32, whatever out's dtype."""
        stored = self._stored(name)
        interleaved = self.config.family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight"))
        head_dim = self.config.head_dim
        shift = 1.0 if self.config.family == "gemma3" and name.endswith("norm.weight") else 0.0
        for rows in row_chunks(self.shape(name), together=head_dim if interleaved else 1):
            # torch.tensor copies: float tensors come through dequantize() as views of the file's pages.
            chunk = torch.tensor(gguf.dequantize(stored.data[rows], stored.tensor_type))
            if interleaved:
                chunk = _undo_interleave(chunk, chunk.shape[0] // head_dim)
            # Gemma's norms scale by 1 + weight, which the file has as one number.
            out[rows] = chunk - shift if shift else chunk

    def _stored(self, name: str) -> gguf.ReaderTensor:
        stored = self._file.tensors.get(self._gguf_name(name))
        if stored is None:
            raise KeyError(
                f"{self._file.path} has no tensor {self._gguf_name(name)}, which {self.config.family} models need "
                f"as {name}"
            )
        return stored

    def _gguf_name(self, name: str) -> str:
        name, _, kind = name.rpartition(".")
        if name in _MODEL_NAMES:
            return f"{_MODEL_NAMES[name]}.{kind}"
        _, _, layer, part = name.split(".", 3)
        return f"blk.{layer}.{(_LAYER_NAMES | _FAMILY_NAMES[self.config.family])[part]}.{kind}"


@cache
def _is_read(kind: gguf.GGMLQuantizationType) -> bool:
    """Whether the package dequantises blocks of this kind, which it says only when it is asked to."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    try:
        gguf.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _undo_interleave(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Q and K rows in Hugging Face's order: Llama's GGUF puts the two coordinates that RoPE rotates side by side.

    The inverse of `LlamaModel.permute` in llama.cpp's convert_hf_to_gguf.py.
    """
    halves = rows.view(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return halves.transpose(1, 2).reshape(rows.shape)
