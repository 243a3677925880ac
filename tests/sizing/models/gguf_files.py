"""GGUF files by the reference writer of the format."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.sizing.models.tiny import built

HIDDEN, INTERMEDIATE, VOCABULARY = 32, 64, 40


def write_model(
    file: Path,
    *,
    architecture: str = "llama",
    untied: bool = False,
    tokenizer: tuple[str, str | None] | None = None,
    **changes: Any,
) -> Path:
    """A Llama of one layer, two query heads and one KV head, by the reference writer of the format."""
    writer = gguf.GGUFWriter(file, architecture)
    if tokenizer is not None:
        writer.add_tokenizer_model(tokenizer[0])
        if tokenizer[1] is not None:
            writer.add_tokenizer_pre(tokenizer[1])
    values = {
        "block_count": 1,
        "context_length": 512,
        "embedding_length": HIDDEN,
        "feed_forward_length": INTERMEDIATE,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
    } | changes
    for key, value in values.items():
        if isinstance(value, str):
            writer.add_string(f"{architecture}.{key}", value)
        elif isinstance(value, list):
            writer.add_array(f"{architecture}.{key}", value)
        else:
            writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_token_list(["a", "bc"])
    writer.add_token_scores([0.0, 0.0])
    writer.add_array("some.numbers", [1, 2, 3])
    writer.add_array("some.flags", [True, False])
    writer.add_array("some.texts", ["a", "bc"])
    writer.add_bool("some.flag", True)
    writer.add_float64("some.float", 0.5)
    kv_width = HIDDEN // 2
    shapes = {
        "token_embd": (VOCABULARY, HIDDEN),
        "output_norm": (HIDDEN,),
        "rope_freqs": (8,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (kv_width, HIDDEN),
        "blk.0.attn_v": (kv_width, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.ffn_gate": (INTERMEDIATE, HIDDEN),
        "blk.0.ffn_up": (INTERMEDIATE, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, INTERMEDIATE),
    } | ({"output": (VOCABULARY, HIDDEN)} if untied else {})
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32 if len(shape) == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


# Tensors that the converter makes of transformers' own, beyond what gguf's table of names says.
_STACKED = {
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "self_attn.sinks": "attn_sinks",
    "gate.e_score_correction_bias": "exp_probs_b.bias",
}


def write_converted(file: Path, config: dict[str, Any], architecture: gguf.MODEL_ARCH, keys: dict[str, Any]) -> Path:
    """A model of zeros, its tensors as transformers builds them of the configuration and named as gguf's table says.

    keys: what the converter writes for it, by the writer's methods: {"block_count": 4} is add_block_count(4)
    """
    model = built(config, "meta")
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[architecture])
    for key, value in keys.items():
        getattr(writer, f"add_{key}")(value)
    names = gguf.get_tensor_name_map(architecture, keys["block_count"])
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    for tensor_name, tensor in model.state_dict().items():
        if tensor_name in tied:
            continue
        known = names.get_name(tensor_name, (".weight", ".bias"))
        for part, stacked in _STACKED.items():
            if tensor_name.endswith(part):
                known = f"blk.{tensor_name.split('.')[2]}.{stacked}"
        writer.add_tensor(known or tensor_name, np.zeros(tuple(tensor.shape), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
