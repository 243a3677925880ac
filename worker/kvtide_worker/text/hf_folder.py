"""The tokenizer in a Hugging Face folder: tokenizer.json, and what stands in the small files beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from kvtide_worker.text.vocabulary import UnsupportedTokenizerError, Vocabulary

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


def read(folder: Path) -> Vocabulary:
    """Read tokenizer.json, tokenizer_config.json, generation_config.json and chat_template.jinja, where they are.

    Raises FileNotFoundError where there is no tokenizer.json.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"{folder} has no tokenizer.json; a model in the older formats gets one from "
            "transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises no type of its own
        raise UnsupportedTokenizerError(f"{file} cannot be read: {error}") from error
    backend.no_padding()
    backend.no_truncation()
    config = _json(folder / "tokenizer_config.json")
    special_tokens = {name: text for name in _SPECIAL_NAMES if (text := _text(config.get(name))) is not None}
    return Vocabulary(
        backend=backend,
        eos_token_ids=_eos_token_ids(folder, backend, special_tokens),
        chat_template=_chat_template(folder, config),
        special_tokens=special_tokens,
    )


def _eos_token_ids(folder: Path, backend: tokenizers.Tokenizer, special_tokens: dict[str, str]) -> tuple[int, ...]:
    """The tokenizer's own end token, and those that generation_config.json adds (Llama 3 has three)."""
    listed = _json(folder / "generation_config.json").get("eos_token_id", [])
    ids: list[int] = [listed] if isinstance(listed, int) else list(listed or [])
    if "eos_token" in special_tokens:
        eos = backend.token_to_id(special_tokens["eos_token"])
        if eos is not None and eos not in ids:
            ids.insert(0, eos)
    return tuple(ids)


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    """The template's own file goes before the configuration; of several named ones, `default` is meant."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if template is not None and not isinstance(template, str):
        raise UnsupportedTokenizerError(f"chat_template in {folder}/tokenizer_config.json is not text")
    return template


def _text(token: Any) -> str | None:
    """A special token is written as text, or as an object with the text in `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded
