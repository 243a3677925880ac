"""Byte-level BPE, the kind that GGUF names `gpt2`: its merges are in the file."""

from __future__ import annotations

import gguf
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from kvtide_worker.text.gguf_fields import GgufFields
from kvtide_worker.text.vocabulary import UnsupportedTokenizerError

# How a text is cut before merging, by the name in `tokenizer.ggml.pre`; llama.cpp's list of regular expressions
# (llama-vocab.cpp) is the reference. SmolLM cuts every digit out first, which shows where spaces stand before one.
PRE_TOKENIZERS: dict[str, list[pre_tokenizers.PreTokenizer]] = {
    "gpt-2": [],
    "smollm": [pre_tokenizers.Digits(individual_digits=True)],
}


def build(fields: GgufFields) -> tokenizers.Tokenizer:
    """The tokenizer without what it adds around a text. Raises UnsupportedTokenizerError for other cuts."""
    name = fields.get(gguf.Keys.Tokenizer.PRE)
    if name not in PRE_TOKENIZERS:
        raise UnsupportedTokenizerError(
            f"the pre-tokenizer {name!r} of this GGUF file is not known; known are "
            f"{', '.join(sorted(PRE_TOKENIZERS))}. A Hugging Face folder with tokenizer.json works with any"
        )
    vocab = {token: token_id for token_id, token in enumerate(fields.get(gguf.Keys.Tokenizer.LIST))}
    merges = [tuple(merge.split(" ", 1)) for merge in fields.get(gguf.Keys.Tokenizer.MERGES)]
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *PRE_TOKENIZERS[name],
            pre_tokenizers.ByteLevel(add_prefix_space=bool(fields.get(gguf.Keys.Tokenizer.ADD_PREFIX)), use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(fields.added_tokens(gguf.TokenType.CONTROL, normalized=False))
    backend.add_tokens(fields.added_tokens(gguf.TokenType.USER_DEFINED, normalized=False))
    return backend
