"""The tokenizer in a GGUF file's metadata; the weights behind it are not read."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from kvtide_worker.text.vocabulary import UnsupportedTokenizerError, Vocabulary

# How a text is cut before merging, by the name in `tokenizer.ggml.pre`; llama.cpp's list of regular expressions
# (llama-vocab.cpp) is the reference. SmolLM cuts every digit out first, which shows where spaces stand before one.
PRE_TOKENIZERS: dict[str, list[pre_tokenizers.PreTokenizer]] = {
    "gpt-2": [],
    "smollm": [pre_tokenizers.Digits(individual_digits=True)],
}
_UINT32, _UINT64 = struct.Struct("<I"), struct.Struct("<Q")
_SPECIAL_IDS = {
    "bos_token": gguf.Keys.Tokenizer.BOS_ID,
    "eos_token": gguf.Keys.Tokenizer.EOS_ID,
    "unk_token": gguf.Keys.Tokenizer.UNK_ID,
    "pad_token": gguf.Keys.Tokenizer.PAD_ID,
}


def read(file: Path) -> Vocabulary:
    """Build the byte-level BPE tokenizer that the file's metadata describes.

    Raises FileNotFoundError, and UnsupportedTokenizerError for another kind of tokenizer or pre-tokenizer.
    """
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    metadata = _Metadata(file)
    kind = metadata.get(gguf.Keys.Tokenizer.MODEL)
    if kind != "gpt2":
        raise UnsupportedTokenizerError(
            f"{file.name} has a tokenizer of the kind {kind!r}; GGUF files are read with byte-level BPE ('gpt2'), "
            "other kinds from a Hugging Face folder with tokenizer.json"
        )
    tokens: list[str] = metadata.get(gguf.Keys.Tokenizer.LIST)
    special_tokens = {
        name: tokens[token_id] for name, key in _SPECIAL_IDS.items() if (token_id := metadata.get(key)) is not None
    }
    eos = metadata.get(gguf.Keys.Tokenizer.EOS_ID)
    template = metadata.get(gguf.Keys.Tokenizer.CHAT_TEMPLATE)
    return Vocabulary(
        backend=_byte_level_bpe(metadata, tokens, special_tokens),
        eos_token_ids=() if eos is None else (int(eos),),
        chat_template=template,
        special_tokens=special_tokens,
    )


def _byte_level_bpe(metadata: _Metadata, tokens: list[str], special_tokens: dict[str, str]) -> tokenizers.Tokenizer:
    name = metadata.get(gguf.Keys.Tokenizer.PRE)
    if name not in PRE_TOKENIZERS:
        raise UnsupportedTokenizerError(
            f"the pre-tokenizer {name!r} of this GGUF file is not known; known are "
            f"{', '.join(sorted(PRE_TOKENIZERS))}. A Hugging Face folder with tokenizer.json works with any"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get(gguf.Keys.Tokenizer.MERGES)]
    backend = tokenizers.Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *PRE_TOKENIZERS[name],
            pre_tokenizers.ByteLevel(
                add_prefix_space=bool(metadata.get(gguf.Keys.Tokenizer.ADD_PREFIX)), use_regex=True
            ),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    types = metadata.get(gguf.Keys.Tokenizer.TOKEN_TYPE) or []
    backend.add_special_tokens(_of_type(tokens, types, gguf.TokenType.CONTROL))
    backend.add_tokens(_of_type(tokens, types, gguf.TokenType.USER_DEFINED))
    if metadata.get(gguf.Keys.Tokenizer.ADD_BOS) and "bos_token" in special_tokens:
        bos = special_tokens["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, backend.token_to_id(bos))]
        )
    return backend


def _of_type(tokens: list[str], types: list[int], wanted: gguf.TokenType) -> list[tokenizers.AddedToken]:
    return [
        tokenizers.AddedToken(token, normalized=False, special=wanted is gguf.TokenType.CONTROL)
        for token, kind in zip(tokens, types, strict=False)
        if kind == wanted
    ]


class _Metadata:
    """The key-value part of a GGUF file; the file is mapped, so its tensors stay on the disk."""

    def __init__(self, file: Path) -> None:
        try:
            self._fields = _Reader(file).fields
        except ValueError as error:
            raise UnsupportedTokenizerError(f"{file} cannot be read: {error}") from error

    def get(self, key: str) -> Any:
        """The value under a key, None where there is none."""
        field = self._fields.get(key)
        if field is None:
            return None
        is_strings = field.types == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING]
        return field.parts[field.data[0]] if is_strings else field.contents()


class _Reader(gguf.GGUFReader):
    """The package's reader, with an array of strings as plain strings.

    The package makes several numpy arrays of each string: for a vocabulary of 49152 tokens 2 s and 150 MB more.
    """

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        data = self.data.data
        if raw_type != gguf.GGUFValueType.ARRAY or _UINT32.unpack_from(data, orig_offs) != (gguf.GGUFValueType.STRING,):
            parts: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
            return parts
        (count,) = _UINT64.unpack_from(data, orig_offs + _UINT32.size)
        at = orig_offs + _UINT32.size + _UINT64.size
        strings = []
        for _ in range(count):
            (length,) = _UINT64.unpack_from(data, at)
            at += _UINT64.size
            strings.append(str(data[at : at + length], encoding="utf-8"))
            at += length
        return at - orig_offs, [strings], [0], [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING]
