"""SentencePiece's BPE, the kind that GGUF names `llama`: a score for each token, and bytes for what no token holds.

SentencePiece merges the neighbours whose token has the highest score, from the left where there are several. With
all ways in which two tokens make a third as merges, in the order of their scores, the other kind of BPE does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import gguf
import tokenizers
from tokenizers import decoders, models, normalizers

from kvtide_worker.text.gguf_fields import GgufFields
from kvtide_worker.text.vocabulary import UnsupportedTokenizerError

PRE_TOKENIZERS = ("default",)
_SPACE = "▁"
_PHI3 = "phi3"
# Of Phi 3's tokens, those that leave the white space behind them in the text.
_PHI3_LEAVE_SPACE = ("<unk>", "<s>", "<|endoftext|>")


def build(fields: GgufFields) -> tokenizers.Tokenizer:
    """The tokenizer without what it adds around a text.

    A space is put before every text, unless the file says not to: before the first word of one that follows a control
    token too, as llama.cpp does and the models' own tokenizer.json.

    Raises UnsupportedTokenizerError for tokens without scores or kinds, and for cuts before merging.
    """
    name = fields.get(gguf.Keys.Tokenizer.PRE) or PRE_TOKENIZERS[0]
    if name not in PRE_TOKENIZERS:
        raise UnsupportedTokenizerError(
            f"the pre-tokenizer {name!r} of this GGUF file is not known with tokens that have scores; 'default' is"
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
    # llama.cpp puts it there unless the file says not to.
    space_before = fields.get(gguf.Keys.Tokenizer.ADD_PREFIX) is not False
    mark_spaces = normalizers.Replace(" ", _SPACE)
    text_of = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if space_before:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), mark_spaces])
        backend.decoder = decoders.Sequence([*text_of, decoders.Strip(" ", 1, 0)])
    else:
        backend.normalizer = mark_spaces
        backend.decoder = decoders.Sequence(text_of)
    _add_tokens(backend, fields, space_before)
    return backend


def adds_bos(fields: GgufFields) -> bool:
    """Whether a text begins with BOS where the file does not say: llama.cpp adds it."""
    return True


def _add_tokens(backend: tokenizers.Tokenizer, fields: GgufFields, space_before: bool) -> None:
    """Tokens that are found before others are: control tokens, and those that the model's makers defined."""
    for kind in (gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN):
        backend.add_special_tokens(fields.added_tokens(kind, takes_space=_takes_space(fields)))
    # Where spaces are marked already, as SentencePiece looks for them; the file writes them with spaces. With a space
    # before every text they would begin with one, so that there they are looked for in the text as it came.
    user_defined = fields.added_tokens(
        gguf.TokenType.USER_DEFINED, normalized=not space_before, takes_space=_takes_space(fields)
    )
    backend.add_tokens(user_defined)


def _takes_space(fields: GgufFields) -> Callable[[str], bool]:
    """Which tokens take the white space behind them. No file says it: Phi 3's tokenizer.json does, and llama.cpp knows
    it by the model's name."""
    if fields.get(gguf.Keys.General.ARCHITECTURE) != _PHI3:
        return lambda token: False
    return lambda token: token not in _PHI3_LEAVE_SPACE


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
