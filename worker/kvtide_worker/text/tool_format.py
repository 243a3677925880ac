"""How families of models write that a tool is to be called."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolFormat:
    """Calls in a model's text: each is a JSON object with a name and arguments.

        marker before │ opening {"name": …, "arguments": {…}} closing │ between │ opening {…} closing │ … │ after

    marker:     the text from which on it is calls, or "" where an answer that begins with an object is one
    in_template: what a chat template has that teaches this format
    """

    name: str
    marker: str
    before: str
    opening: str
    closing: str
    between: str
    after: str
    arguments: str
    in_template: str

    def rules(self, tools: Sequence[tuple[str, dict[str, Any]]], *, parallel: bool, marker_id: int | None) -> str:
        """Rules of llguidance's Lark, where `calls` is a call of one of the tools, or several one after another.

        tools:      names, and the JSON Schema of each one's arguments
        marker_id:  the marker's token where it is a special one, which text cannot spell
        """
        marker = f"<[{marker_id}]>" if marker_id is not None else _literal(self.marker)
        more = f"({_literal(self.between)} call)*" if parallel and self.between else ""
        lines = [_rule("calls", [marker, _literal(self.before), "call", more, _literal(self.after)])]
        lines.append(f"call: {' | '.join(f'call_{place}' for place in range(len(tools)))}")
        for place, (name, schema) in enumerate(tools):
            head = f'{self.opening}{{"name": {json.dumps(name)}, {json.dumps(self.arguments)}: '
            parts = [_literal(head), f"arguments_{place}", _literal("}" + self.closing)]
            lines += [_rule(f"call_{place}", parts), f"arguments_{place}: %json {json.dumps(schema)}"]
        return "\n".join(lines)


HERMES = ToolFormat(
    name="hermes",
    marker="",
    before="",
    opening="<tool_call>\n",
    closing="\n</tool_call>",
    between="\n",
    after="",
    arguments="arguments",
    in_template="<tool_call>",
)
MISTRAL = ToolFormat(
    name="mistral",
    marker="[TOOL_CALLS]",
    before="[",
    opening="",
    closing="",
    between=", ",
    after="]",
    arguments="arguments",
    in_template="[TOOL_CALLS]",
)
LLAMA3 = ToolFormat(
    name="llama3",
    marker="",
    before="",
    opening="",
    closing="",
    between="; ",
    after="",
    arguments="parameters",
    in_template='"parameters": ',
)

# A template of newer Mistral models writes a name before [ARGS]: another format, which is not known here.
_OTHERS = ("[ARGS]",)
FORMATS = (HERMES, MISTRAL, LLAMA3)


def tool_format(template: str) -> ToolFormat | None:
    """The format that a chat template teaches; None where it teaches none, or one that is not known."""
    if "tools" not in template or any(other in template for other in _OTHERS):
        return None
    return next((known for known in FORMATS if known.in_template in template), None)


def _rule(name: str, parts: Sequence[str]) -> str:
    return f"{name}: {' '.join(part for part in parts if part)}"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
