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


_NO_TOOLS = "this server calls no tools"
_NO_LOGPROBS = "log probabilities are not given"
_NO_PENALTY = "penalties are not applied"
_FREE_TEXT = "answers are free text"

UNSUPPORTED: Mapping[str, Unsupported] = {
    "n": Unsupported("one choice is given per prompt; send the request again for another", (1,)),
    "best_of": Unsupported("one choice is given per prompt", (1,)),
    "logprobs": Unsupported(_NO_LOGPROBS, (False,)),
    "top_logprobs": Unsupported(_NO_LOGPROBS, (0,)),
    "prompt_logprobs": Unsupported(_NO_LOGPROBS),
    "echo": Unsupported("the prompt is not repeated in the answer", (False,)),
    "suffix": Unsupported("text is only generated after a prompt", ("",)),
    "logit_bias": Unsupported("token probabilities are not biased", ({},)),
    "presence_penalty": Unsupported(_NO_PENALTY, (0,)),
    "frequency_penalty": Unsupported(_NO_PENALTY, (0,)),
    "repetition_penalty": Unsupported(_NO_PENALTY, (1,)),
    "min_p": Unsupported("use top_p or top_k", (0,)),
    "min_tokens": Unsupported("use ignore_eos with max_tokens for an answer of a fixed length", (0,)),
    "tools": Unsupported(_NO_TOOLS, ([],)),
    "tool_choice": Unsupported(_NO_TOOLS, ("none", "auto")),
    "parallel_tool_calls": Unsupported(_NO_TOOLS, (True, False)),
    "functions": Unsupported(_NO_TOOLS, ([],)),
    "function_call": Unsupported(_NO_TOOLS, ("none", "auto")),
    "response_format": Unsupported(_FREE_TEXT, ({"type": "text"},)),
    "structured_outputs": Unsupported(_FREE_TEXT),
    "guided_json": Unsupported(_FREE_TEXT),
    "guided_regex": Unsupported(_FREE_TEXT),
    "guided_choice": Unsupported(_FREE_TEXT, ([],)),
    "guided_grammar": Unsupported(_FREE_TEXT),
    "modalities": Unsupported("answers are text", (["text"],)),
    "audio": Unsupported("answers are text"),
    "prediction": Unsupported("predicted outputs are not used", ()),
    "reasoning_effort": Unsupported("how a model reasons cannot be set"),
    "service_tier": Unsupported("there is one tier", ("auto", "default")),
    "store": Unsupported("nothing is stored", (False,)),
    "metadata": Unsupported("nothing is stored", ({},)),
    "verbosity": Unsupported("how long an answer is cannot be set; use max_tokens"),
    "prompt_cache_key": Unsupported("no prompt is cached"),
    "safety_identifier": Unsupported("requests are not told apart by their users"),
    "priority": Unsupported("requests are served in the order of their arrival", (0,)),
    "include_stop_str_in_output": Unsupported("stop strings are left out of the answer", (False,)),
    "skip_special_tokens": Unsupported("special tokens are left out of the answer", (True,)),
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
