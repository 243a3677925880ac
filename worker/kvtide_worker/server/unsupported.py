"""Fields of OpenAI's API, and of its best-known extensions, that this server does not honour.

A client that sends one with a value that changes nothing is served; any other value is refused by the field's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticCustomError


@dataclass(frozen=True)
class Unsupported:
    """A field that is not honoured: what to say, and the values (beside null) that ask for nothing."""

    instead: str
    neutral: tuple[Any, ...] = ()


_ONE_PROMPT = "choices are not ranked; use n"
_TOOLS = "use tools and tool_choice"

UNSUPPORTED: Mapping[str, Unsupported] = {
    "best_of": Unsupported(_ONE_PROMPT, (1,)),
    "use_beam_search": Unsupported(_ONE_PROMPT, (False,)),
    "suffix": Unsupported("text is only generated after a prompt", ("",)),
    "echo": Unsupported("the prompt is repeated by /v1/completions alone", (False,)),
    "top_logprobs": Unsupported("logprobs says how many", (0,)),
    "tools": Unsupported("only /v1/chat/completions calls tools", ([],)),
    "tool_choice": Unsupported("only /v1/chat/completions calls tools", ("none", "auto")),
    "functions": Unsupported(_TOOLS, ([],)),
    "function_call": Unsupported(_TOOLS, ("none", "auto")),
    "guided_whitespace_pattern": Unsupported("white space between the parts of JSON cannot be set"),
    "bad_words": Unsupported("use logit_bias", ([],)),
    "allowed_token_ids": Unsupported("use structured_outputs with choice"),
    "modalities": Unsupported("answers are text", (["text"],)),
    "audio": Unsupported("answers are text"),
    "prediction": Unsupported("predicted outputs are not used", ()),
    "web_search_options": Unsupported("nothing is searched"),
    "reasoning_effort": Unsupported("how a model reasons is set in chat_template_kwargs, where its template asks"),
    "store": Unsupported("nothing is stored", (False,)),
    "verbosity": Unsupported("how long an answer is cannot be set; use max_tokens"),
    "prompt_cache_retention": Unsupported("a prompt is kept as long as there is room"),
    "truncate_prompt_tokens": Unsupported("a prompt is not cut; send a shorter one"),
}


def drop_neutral(data: Any, supported: Set[str]) -> Any:
    """The body without those fields of `UNSUPPORTED` that ask for nothing.

    Raises PydanticCustomError for one that asks for something, and for a field that nobody knows.
    """
    if not isinstance(data, dict):
        return data
    kept = {}
    for name, value in data.items():
        if name in supported:
            # null is: the default.
            if value is not None:
                kept[name] = value
        elif name not in UNSUPPORTED:
            raise _refuse(name, f"'{name}' is not a field that is known here; known are {', '.join(sorted(supported))}")
        elif value is not None and not any(_same(value, neutral) for neutral in UNSUPPORTED[name].neutral):
            raise _refuse(name, f"'{name}' is not supported: {UNSUPPORTED[name].instead}")
    return kept


def _same(value: Any, neutral: Any) -> bool:
    """Equal, as JSON sees it: 0 is 0.0, but not false."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def _refuse(name: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("unsupported", "{message}", {"message": message, "param": name})
