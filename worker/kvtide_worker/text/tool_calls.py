"""The calls of tools in a model's text, found while it comes: nothing of a call is ever given out as text."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from kvtide_worker.text.stop import ending_that_begins
from kvtide_worker.text.tool_format import HERMES, MISTRAL, ToolFormat

_JSON = json.JSONDecoder()
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"

# Before an object that Llama 3 writes for a tool of its own making.
PYTHON_TAG = "<|python_tag|>"


@dataclass(frozen=True)
class ToolCall:
    """A call, complete. arguments: a JSON object, as text."""

    name: str
    arguments: str


class ToolCallParser:
    """Splits a growing text into text and calls. What looked like a call and is none comes out as text; white space
    before and between calls belongs to them.

    names: of the tools; where a format has no marker, an object is a call only with one of these
    """

    def __init__(self, form: ToolFormat, names: Collection[str]) -> None:
        self._form = form
        self._names = frozenset(names)
        self._held = ""
        self._begun = False
        self._plain = False

    def add(self, text: str) -> list[str | ToolCall]:
        """What can be given out now, in order."""
        self._held += text
        if self._form is HERMES:
            return self._tagged()
        if self._form is MISTRAL:
            return self._after_marker()
        return self._bare_objects()

    def finish(self) -> list[str | ToolCall]:
        """What was held back when the text ended."""
        held, self._held = self._held, ""
        if self._form is HERMES and held.lstrip().startswith(_OPEN):
            # The end may come before the closing tag.
            call = _call(_complete(held.lstrip()[len(_OPEN) :]), "arguments")
            if call is not None:
                return [call]
        return [held] if held.strip() or (held and not self._begun) else []

    def _tagged(self) -> list[str | ToolCall]:
        """<tool_call> object </tool_call>, anywhere, any number of times."""
        found: list[str | ToolCall] = []
        while True:
            opened = self._held.find(_OPEN)
            if opened < 0:
                self._give(found, len(self._held) - self._undecided(_OPEN))
                return found
            text, self._held = self._held[:opened].rstrip(), self._held[opened:]
            if text:
                found.append(text)
            # A closing tag may also stand within a text of the arguments: the first that ends an object counts.
            closed, call = self._held.find(_CLOSE), None
            while closed >= 0 and call is None:
                body = self._held[len(_OPEN) : closed]
                call, end = _call(_complete(body), "arguments"), closed + len(_CLOSE)
                closed = self._held.find(_CLOSE, end)
            if call is None:
                return found
            found.append(call)
            self._held, self._begun = self._held[end:], True

    def _after_marker(self) -> list[str | ToolCall]:
        """[TOOL_CALLS] and a list of objects."""
        found: list[str | ToolCall] = []
        marker = self._form.marker
        begins = self._held.find(marker)
        if begins < 0:
            self._give(found, len(self._held) - self._undecided(marker))
            return found
        self._give(found, begins)
        listed = _complete(self._held[len(marker) :]) if "]" in self._held[len(marker) :] else None
        calls = [_call(entry, self._form.arguments) for entry in listed] if isinstance(listed, list) else [None]
        if all(call is not None for call in calls):
            found += [call for call in calls if call is not None]
            self._held, self._begun = "", True
        return found

    def _bare_objects(self) -> list[str | ToolCall]:
        """Objects that are all of the answer, with ; between them."""
        found: list[str | ToolCall] = []
        while not self._plain:
            text = self._held.lstrip().removeprefix(PYTHON_TAG).lstrip()
            if self._begun:
                text = text.removeprefix(";").lstrip()
            if not text or PYTHON_TAG.startswith(text):
                return found
            if not text.startswith("{"):
                break
            try:
                value, end = _JSON.raw_decode(text)
            except json.JSONDecodeError:
                return found
            call = _call(value, self._form.arguments)
            if call is None or call.name not in self._names:
                break
            found.append(call)
            self._held, self._begun = text[end:], True
        self._plain = True
        self._give(found, len(self._held))
        return found

    def _give(self, found: list[str | ToolCall], count: int) -> None:
        if count > 0:
            found.append(self._held[:count])
            self._held = self._held[count:]

    def _undecided(self, marker: str) -> int:
        """How much at the end may still belong to a call: the beginning of its marker, and white space before it."""
        marked = ending_that_begins(self._held, marker)
        rest = self._held[: len(self._held) - marked]
        return marked + len(rest) - len(rest.rstrip())


def _complete(text: str) -> Any:
    """The JSON value that a text is; None where it is none, or not complete."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def _call(value: Any, arguments: str) -> ToolCall | None:
    """A call of what the model wrote: either word for the arguments counts, models mix them up."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    given = value.get(arguments, value.get("arguments", value.get("parameters", {})))
    if not isinstance(given, dict):
        return None
    return ToolCall(value["name"], json.dumps(given, ensure_ascii=False))
