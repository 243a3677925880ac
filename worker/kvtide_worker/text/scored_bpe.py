"""SentencePiece's BPE, the kind that GGUF names `llama`: a score for each token, and bytes for what no token holds.

SentencePiece merges the neighbours whose token has the highest score, from the left where there are several. With
all ways in which two tokens make a third as merges, in the order of their scores, the other kind of BPE does the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import gguf
import tokenizers
from tokenizers import decoders, models, normalizers

from kvtide_worker.text.gguf_fields import GgufFields
from kvtide_worker.text.vocabulary import UnsupportedTokenizerError

PRE_TOKENIZERS = ("default",)
_SPACE = "▁"


def build(fields: GgufFields) -> tokenizers.Tokenizer:
    """The tokenizer without what it adds around a text.

    Raises UnsupportedTokenizerError where a space is put before every text (Llama 2), for tokens without scores or
    kinds, and for cuts before merging.
    """
    name = fields.get(gguf.Keys.Tokenizer.PRE) or PRE_TOKENIZERS[0]
    if name not in PRE_TOKENIZERS:
        raise UnsupportedTokenizerError(
            f"the pre-tokenizer {name!r} of this GGUF file is not known with tokens that have scores; 'default' is"
        )
    # llama.cpp puts one there unless the file says not to.
    if fields.get(gguf.Keys.Tokenizer.ADD_PREFIX) in (None, True):
        raise UnsupportedTokenizerError(
            f"{fields.file.name} puts a space before every text (add_space_prefix), which is not read from a GGUF "
            f"file; from a Hugging Face folder with tokenizer.json it is"
        )
    tokens: list[str] = fields.get(gguf.Keys.Tokenizer.LIST)
    scores: list[float] = fields.get(gguf.Keys.Tokenizer.SCORES) or []
    kinds: list[int] = fields.get(gguf.Keys.Tokenizer.TOKEN_TYPE) or []
    if not len(tokens) == len(scores) == len(kinds):
        raise UnsupportedTokenizerError(
            f"{fields.file.name} has {len(tokens)} tokens, {len(scores)} scores and {len(kinds)} kinds of token; "
            f"each token needs one of each"
        )
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: token_id for token_id, token in enumerate(tokens)},
            merges=list(_merges(tokens, scores, kinds)),
            unk_token=fields.token(gguf.Keys.Tokenizer.UNK_ID),
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Replace(" ", _SPACE)
    backend.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(fields.added_tokens(gguf.TokenType.CONTROL, normalized=False))
    # They are looked for where spaces are marked already, as SentencePiece does; the file writes them with spaces.
    backend.add_tokens(fields.added_tokens(gguf.TokenType.USER_DEFINED, normalized=True))
    return backend


def _merges(tokens: list[str], scores: list[float], kinds: list[int]) -> Iterator[tuple[str, str]]:
    """All pairs of normal tokens that make a normal token, by its score, the highest first."""
    normal = [index for index, kind in enumerate(kinds) if kind == gguf.TokenType.NORMAL]
    normal.sort(key=lambda index: -scores[index])
    known = {tokens[index] for index in normal}
    for token in (tokens[index] for index in normal):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in known and right in known:
                yield left, right
