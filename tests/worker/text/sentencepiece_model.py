"""A GGUF file's scored tokens as a model file of SentencePiece: Google's own tokenizer is the reference then.

The file is a protobuf of three messages (sentencepiece_model.proto, in the repository google/sentencepiece); numbers
of fields and enums are from there.
"""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
from sentencepiece import SentencePieceProcessor

from kvtide_worker.text.gguf_fields import GgufFields

_BPE = 2
# Kinds of token have the same numbers in both: NORMAL 1, UNKNOWN 2, CONTROL 3, USER_DEFINED 4, UNUSED 5, BYTE 6.
_UNKNOWN = 2


def processor(file: Path) -> SentencePieceProcessor:
    """SentencePiece with the file's tokens and scores: BPE, byte fallback, spaces kept.

    A space is put before a text unless the file says not to.
    """
    fields = GgufFields(file)
    unknown_id = fields.get(gguf.Keys.Tokenizer.UNK_ID)
    tokens = fields.get(gguf.Keys.Tokenizer.LIST)
    scores = fields.get(gguf.Keys.Tokenizer.SCORES)
    kinds = fields.get(gguf.Keys.Tokenizer.TOKEN_TYPE)
    pieces = b"".join(
        _message(
            1,
            _text(1, token.replace(" ", "▁"))
            + _float(2, score)
            + _varint(3, _UNKNOWN if token_id == unknown_id else kind),
        )
        for token_id, (token, score, kind) in enumerate(zip(tokens, scores, kinds, strict=True))
    )
    ids = ((40, "UNK_ID"), (41, "BOS_ID"), (42, "EOS_ID"), (43, "PAD_ID"))
    specials = b"".join(
        _varint(number, fields.get(getattr(gguf.Keys.Tokenizer, name)))
        + _text(number + 5, str(fields.token(getattr(gguf.Keys.Tokenizer, name))))
        for number, name in ids
    )
    trainer = _message(2, _varint(3, _BPE) + _varint(4, len(tokens)) + _varint(35, 1) + specials)
    space_before = fields.get(gguf.Keys.Tokenizer.ADD_PREFIX) is not False
    normalizer = _message(3, _text(1, "identity") + _varint(3, int(space_before)) + _varint(4, 0) + _varint(5, 1))
    return SentencePieceProcessor(model_proto=pieces + trainer + normalizer)


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _varint(field: int, value: int) -> bytes:
    return _number(field << 3) + _number(value)


def _float(field: int, value: float) -> bytes:
    return _number(field << 3 | 5) + struct.pack("<f", value)


def _message(field: int, content: bytes) -> bytes:
    return _number(field << 3 | 2) + _number(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())
