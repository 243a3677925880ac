"""Byte-level BPE, the kind that GGUF names `gpt2`: its merges are in the file."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from kvtide_worker.text.gguf_fields import GgufFields
from kvtide_worker.text.vocabulary import UnsupportedTokenizerError


@dataclass(frozen=True)
class Cut:
    """How a text is cut before merging, and what else only the name of the cut says.

    pattern:       each of its matches is a word; None for GPT-2's own
    digits_apart:  every digit is cut out first, which shows where spaces stand before one
    composed:      characters are composed first (NFC)
    whole_words:   a word that is a token is that token, whatever its merges make of it
    adds_bos:      where the file does not say
    """

    pattern: str | None = None
    digits_apart: bool = False
    composed: bool = False
    whole_words: bool = False
    adds_bos: bool = False


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES_AND_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
# Words that are cut where small letters are followed by capital ones; what has no case counts as both.
_SMALL, _CAPITAL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_ENDING_SMALL = rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITAL}*{_SMALL}+"
_ENDING_CAPITAL = rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITAL}+{_SMALL}*"
_SYMBOLS_AND_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

_LLAMA3 = "|".join([_CONTRACTIONS, _WORDS, r"\p{N}{1,3}", _SYMBOLS, _LINES_AND_SPACES])
_QWEN2 = "|".join([_CONTRACTIONS, _WORDS, r"\p{N}", _SYMBOLS, _LINES_AND_SPACES])
_TEKKEN = "|".join([_ENDING_SMALL, _ENDING_CAPITAL, r"\p{N}", _SYMBOLS_AND_PATHS, _LINES_AND_SPACES])
_GPT4O = "|".join(
    [
        rf"{_ENDING_SMALL}{_CONTRACTIONS}?",
        rf"{_ENDING_CAPITAL}{_CONTRACTIONS}?",
        r"\p{N}{1,3}",
        _SYMBOLS_AND_PATHS,
        _LINES_AND_SPACES,
    ]
)

# By the name in `tokenizer.ggml.pre`. What each means is in llama.cpp (llama-vocab.cpp) and in the models' own
# tokenizer.json: Llama 3; Phi 4; Phi 4 mini; Mistral Nemo and Small; Qwen 2, 2.5 and 3; SmolLM.
PRE_TOKENIZERS: dict[str, Cut] = {
    "gpt-2": Cut(),
    "smollm": Cut(digits_apart=True),
    "llama-bpe": Cut(_LLAMA3, whole_words=True, adds_bos=True),
    "dbrx": Cut(_LLAMA3),
    "gpt-4o": Cut(_GPT4O),
    "tekken": Cut(_TEKKEN, whole_words=True, adds_bos=True),
    "qwen2": Cut(_QWEN2, composed=True),
}


def build(fields: GgufFields) -> tokenizers.Tokenizer:
    """The tokenizer without what it adds around a text. Raises UnsupportedTokenizerError for other cuts."""
    cut = _cut(fields)
    vocab = {token: token_id for token_id, token in enumerate(fields.get(gguf.Keys.Tokenizer.LIST))}
    merges = [tuple(merge.split(" ", 1)) for merge in fields.get(gguf.Keys.Tokenizer.MERGES)]
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=cut.whole_words))
    if cut.composed:
        backend.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = []
    if cut.digits_apart:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if cut.pattern is not None:
        steps.append(pre_tokenizers.Split(tokenizers.Regex(cut.pattern), behavior="isolated"))
    add_space = bool(fields.get(gguf.Keys.Tokenizer.ADD_PREFIX))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=add_space, use_regex=cut.pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(fields.added_tokens(gguf.TokenType.CONTROL))
    backend.add_tokens(fields.added_tokens(gguf.TokenType.USER_DEFINED))
    return backend


def adds_bos(fields: GgufFields) -> bool:
    """Whether a text begins with BOS where the file does not say."""
    return _cut(fields).adds_bos


def _cut(fields: GgufFields) -> Cut:
    name = fields.get(gguf.Keys.Tokenizer.PRE)
    if name not in PRE_TOKENIZERS:
        raise UnsupportedTokenizerError(
            f"the pre-tokenizer {name!r} of this GGUF file is not known; known are "
            f"{', '.join(sorted(PRE_TOKENIZERS))}. A Hugging Face folder with tokenizer.json works with any"
        )
    return PRE_TOKENIZERS[name]
