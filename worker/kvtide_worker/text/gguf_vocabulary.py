"""The tokenizer in a GGUF file's metadata; the weights behind it are not read."""

from __future__ import annotations

from pathlib import Path

import gguf
import tokenizers
from tokenizers import processors

from kvtide_worker.text import byte_level_bpe, scored_bpe
from kvtide_worker.text.gguf_fields import GgufFields
from kvtide_worker.text.vocabulary import UnsupportedTokenizerError, Vocabulary

_KINDS = {"gpt2": byte_level_bpe, "llama": scored_bpe}
_SPECIAL_IDS = {
    "bos_token": gguf.Keys.Tokenizer.BOS_ID,
    "eos_token": gguf.Keys.Tokenizer.EOS_ID,
    "unk_token": gguf.Keys.Tokenizer.UNK_ID,
    "pad_token": gguf.Keys.Tokenizer.PAD_ID,
}
# They end a turn of a chat, and so an answer: of Gemma, Llama 3 (also where it calls a tool), Qwen and Phi 3. Files
# name at most one of them by its role; the models' generation_config.json has them all.
_ENDS_OF_TURN = ("<end_of_turn>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>")


def read(file: Path) -> Vocabulary:
    """Build the tokenizer that the file's metadata describes.

    Raises FileNotFoundError, and UnsupportedTokenizerError for another kind of tokenizer or pre-tokenizer.
    """
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    fields = GgufFields(file)
    kind = fields.get(gguf.Keys.Tokenizer.MODEL)
    if kind not in _KINDS:
        raise UnsupportedTokenizerError(
            f"{file.name} has a tokenizer of the kind {kind!r}; GGUF files are read with byte-level BPE ('gpt2') and "
            "SentencePiece's BPE ('llama'), other kinds from a Hugging Face folder with tokenizer.json"
        )
    special_tokens = {name: token for name, key in _SPECIAL_IDS.items() if (token := fields.token(key)) is not None}
    backend = _KINDS[kind].build(fields)
    adds_bos = fields.get(gguf.Keys.Tokenizer.ADD_BOS)
    if adds_bos is None:
        adds_bos = _KINDS[kind].adds_bos(fields)
    if adds_bos and "bos_token" in special_tokens:
        bos = special_tokens["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, backend.token_to_id(bos))]
        )
    return Vocabulary(
        backend=backend,
        eos_token_ids=_eos_token_ids(fields, backend),
        chat_template=fields.get(gguf.Keys.Tokenizer.CHAT_TEMPLATE),
        special_tokens=special_tokens,
    )


def _eos_token_ids(fields: GgufFields, backend: tokenizers.Tokenizer) -> tuple[int, ...]:
    named = [fields.get(key) for key in (gguf.Keys.Tokenizer.EOS_ID, gguf.Keys.Tokenizer.EOT_ID)]
    ids = [*named, *(backend.token_to_id(token) for token in _ENDS_OF_TURN)]
    return tuple(dict.fromkeys(int(token_id) for token_id in ids if token_id is not None))
