"""A byte-level vocabulary whose merges go across words: how a text is cut before merging shows in its tokens."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from tests.worker.text.texts import TEXTS

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# What cuts differ on: letters of both cases and of none, digits, contractions, spaces, line ends, symbols, marks.
PIECES = [*"aB1é語.'/-\u0301½", " ", "  ", "\n", "\r\n", "\t", "'s", "'RE", "12", "Ab", "aBc", "//"]


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by their ids, and pairs that make one, the first ones first."""

    tokens: list[str]
    merges: list[tuple[str, str]]


def trained() -> Vocabulary:
    """1,500 tokens of four characters at most, trained on pieces in no order, uncut."""
    drawn = random.Random(1)
    corpus = ["".join(drawn.choices(PIECES, k=12)) for _ in range(4000)]
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=CONTROL,
        show_progress=False,
        max_token_length=4,
    )
    backend.train_from_iterator(corpus + TEXTS, trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return Vocabulary(tokens, [(left, right) for left, right in model["merges"]])


def write(
    file: Path, vocabulary: Vocabulary, pre: str, *, architecture: str = "llama", add_bos: bool | None = None
) -> Path:
    """A GGUF file of that vocabulary, without tensors; its header has what transformers wants to see."""
    writer: Any = gguf.GGUFWriter(str(file), architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary.tokens)
    normal = len(vocabulary.tokens) - len(CONTROL)
    writer.add_token_types([gguf.TokenType.CONTROL] * len(CONTROL) + [gguf.TokenType.NORMAL] * normal)
    writer.add_token_merges([" ".join(merge) for merge in vocabulary.merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
