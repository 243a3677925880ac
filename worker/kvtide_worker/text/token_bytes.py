"""The bytes that each token stands for: what log probabilities and grammars are told in."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers

from kvtide_worker.text.byte_fallback import sentencepiece_bytes


def token_bytes(backend: tokenizers.Tokenizer) -> list[bytes]:
    """For each token id, from 0 on, its bytes; added tokens, special or not, are their own text.

    A token may be a part of a UTF-8 character. Bytes of several tokens one after another are their text.
    """
    added = {token_id: token.content.encode() for token_id, token in backend.get_added_tokens_decoder().items()}
    plain = _byte_level if _is_byte_level(backend.decoder) else sentencepiece_bytes
    return [
        added[token_id] if token_id in added else plain(backend.id_to_token(token_id) or "")
        for token_id in range(backend.get_vocab_size(with_added_tokens=True))
    ]


def readable(token: bytes) -> str:
    r"""A token's text; where its bytes are no whole characters, as OpenAI writes these: `\xf0\x9f`."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in token)


def _is_byte_level(decoder: tokenizers.decoders.Decoder | None) -> bool:
    return decoder is not None and b"ByteLevel" in decoder.__getstate__()


def _byte_level(token: str) -> bytes:
    """GPT-2's spelling: each byte is a character of its own; a token that is not spelled so is its own text."""
    try:
        return bytes(map(_BYTE_OF.__getitem__, token))
    except KeyError:
        return token.encode()


def _byte_characters(printable: Sequence[int]) -> dict[str, int]:
    """Printable bytes stand for themselves, the others for the characters from U+0100 on, in their order.

    Source: GPT-2's encoder.py.
    """
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_characters([*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)])
