"""A small random Llama that is measured, its files made by transformers and tokenizers."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM

from kvtide_worker.quality.measured_model import MeasuredModel
from tests.worker.models.tiny import save_tiny_llama

# Elements of each key that are made large for every token, as keys of real models have some: a pair of RoPE.
OUTLIERS = (3, 35)


def save_model(folder: Path, *, outliers: bool = False) -> LlamaForCausalLM:
    """A model with heads of 64, which the kernels serve, and a tokenizer of bytes; the model as transformers has it."""
    model = save_tiny_llama(folder, head_dim=64, initializer_range=0.2)
    if outliers:
        with torch.no_grad():
            for layer in model.model.layers:
                for row in OUTLIERS:
                    # Scores are what they were: queries are as much smaller as keys are larger.
                    layer.self_attn.k_proj.weight.view(2, 64, -1)[:, row] *= 30
                    layer.self_attn.q_proj.weight.view(4, 64, -1)[:, row] /= 30
        model.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate(["<unk>", "<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return model


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> MeasuredModel:
    """The model as it is measured."""
    return MeasuredModel.load(str(folder), dtype=dtype, device=torch.device("cpu"))


def random_tokens(count: int, seed: int = 0) -> list[int]:
    """Tokens of the model's vocabulary."""
    return torch.randint(3, 250, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
