"""Weights and configuration from a GGUF file; quantised tensors are dequantised as they are read."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from kvtide_sizing.errors import UnsupportedModel
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.rope import FactorScaling, LinearScaling, NoScaling, Rope, RopeScaling

_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_MODEL_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_ARRAY_HEADER = struct.Struct("<IQ")  # type of the items, number of items
_STRING_LENGTH = struct.Struct("<Q")


class _Reader(gguf.GGUFReader):
    """The package's reader without the arrays: the tokenizer's are nearly all of its time, and unused here."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type != gguf.GGUFValueType.ARRAY:
            parts: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
            return parts
        buffer = self.data.data
        item_type, length = _ARRAY_HEADER.unpack_from(buffer, orig_offs)
        end = orig_offs + _ARRAY_HEADER.size
        if item_type == gguf.GGUFValueType.STRING:
            for _ in range(length):
                end += _STRING_LENGTH.size + _STRING_LENGTH.unpack_from(buffer, end)[0]
        else:
            end += length * np.dtype(self.gguf_scalar_to_np[item_type]).itemsize
        return end - orig_offs, [], [], [gguf.GGUFValueType.ARRAY]


class GgufCheckpoint:
    """A Llama model in a GGUF file. Raises UnsupportedModel for other architectures."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = _Reader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.config = self._config()

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """As `Checkpoint.tensor`."""
        stored = self._tensors.get(_gguf_name(name))
        if stored is None:
            raise KeyError(f"{self._path} has no tensor {_gguf_name(name)}, which Llama models need as {name}")
        # torch.tensor copies: float tensors come through dequantize() as views of the file's pages.
        values = torch.tensor(gguf.dequantize(stored.data, stored.tensor_type)).to(dtype)
        if name.endswith("q_proj.weight"):
            return _undo_interleave(values, self.config.query_heads)
        if name.endswith("k_proj.weight"):
            return _undo_interleave(values, self.config.kv_heads)
        return values

    def _field(self, key: str, default: Any = None) -> Any:
        field = self._reader.get_field(key)
        if field is not None and field.types == [gguf.GGUFValueType.ARRAY]:
            raise UnsupportedModel(f"{self._path} has one {key} per layer; this worker runs equal layers")
        if field is not None:
            return field.contents()
        if default is None:
            raise UnsupportedModel(f"{self._path} has no {key}, which a Llama model in GGUF must have")
        return default

    def _config(self) -> ModelConfig:
        architecture = self._field("general.architecture")
        if architecture != "llama":
            raise UnsupportedModel(
                f"{self._path} holds a model of architecture '{architecture}'; this worker runs 'llama'"
            )
        if self._field("llama.expert_count", 0):
            raise UnsupportedModel(f"{self._path} is a mixture of experts; this worker runs dense models")
        hidden_size = self._field("llama.embedding_length")
        query_heads = self._field("llama.attention.head_count")
        head_dim = self._field("llama.attention.key_length", hidden_size // query_heads)
        if self._field("llama.attention.value_length", head_dim) != head_dim:
            raise UnsupportedModel(
                f"{self._path} has key heads longer or shorter than value heads; this worker runs equal ones"
            )
        if self._field("llama.rope.dimension_count", head_dim) != head_dim:
            raise UnsupportedModel(f"{self._path} rotates a part of each head; this worker rotates all of it")
        num_layers = self._field("llama.block_count")
        eos = (self._field(f"tokenizer.ggml.{name}_token_id", -1) for name in ("eos", "eot"))
        return ModelConfig(
            family="llama",
            num_layers=num_layers,
            hidden_size=hidden_size,
            intermediate_size=self._field("llama.feed_forward_length"),
            query_heads=query_heads,
            kv_heads=self._field("llama.attention.head_count_kv", query_heads),
            head_dim=head_dim,
            vocab_size=int(self._tensors["token_embd.weight"].shape[1]),
            max_position_embeddings=self._field("llama.context_length"),
            rms_norm_eps=self._field("llama.attention.layer_norm_rms_epsilon"),
            attention_scale=head_dim**-0.5,
            windows=(None,) * num_layers,
            rope=Rope(self._field("llama.rope.freq_base", 10_000.0), self._rope_scaling()),
            window_rope=None,
            tied_embeddings="output.weight" not in self._tensors,
            eos_token_ids=tuple(dict.fromkeys(token for token in eos if token >= 0)),
        )

    def _rope_scaling(self) -> RopeScaling:
        if "rope_freqs.weight" in self._tensors:
            return FactorScaling(tuple(self._tensors["rope_freqs.weight"].data.tolist()))
        kind = self._field("llama.rope.scaling.type", "none")
        if kind == "none":
            return NoScaling()
        if kind == "linear":
            return LinearScaling(self._field("llama.rope.scaling.factor"))
        raise UnsupportedModel(
            f"{self._path} scales RoPE by '{kind}'; this worker knows linear, and Llama 3's frequency factors"
        )


def _gguf_name(name: str) -> str:
    if name in _MODEL_NAMES:
        return _MODEL_NAMES[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{_LAYER_NAMES[part]}.weight"


def _undo_interleave(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Q and K rows in Hugging Face's order: GGUF puts the two coordinates that RoPE rotates side by side.

    The inverse of `LlamaModel.permute` in llama.cpp's convert_hf_to_gguf.py.
    """
    halves = rows.view(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return halves.transpose(1, 2).reshape(rows.shape)
