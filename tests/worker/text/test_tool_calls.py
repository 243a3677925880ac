"""Calls in the formats of three families, in texts as their models write them, however these are cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from kvtide_worker.text.tool_calls import ToolCall, ToolCallParser
from kvtide_worker.text.tool_format import HERMES, LLAMA3, MISTRAL, ToolFormat, tool_format

NAMES = ["weather", "add"]
WEATHER = ToolCall("weather", '{"city": "Paris"}')
ADD = ToolCall("add", '{"a": 1, "b": {"c": "}]"}}')

# Texts as the model cards of Qwen2.5, Mistral-7B-Instruct-v0.3 and Llama-3.1 show them.
CASES: list[tuple[ToolFormat, str, list[str | ToolCall]]] = [
    (HERMES, '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>', [WEATHER]),
    (
        HERMES,
        'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n<tool_call>\n'
        '{"name": "add", "arguments": {"a": 1, "b": {"c": "}]"}}}\n</tool_call>\n',
        ["Let me see.", WEATHER, ADD],
    ),
    (HERMES, '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}', [WEATHER]),
    (HERMES, '<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>"}}</tool_call>',
     [ToolCall("weather", '{"city": "</tool_call>"}')]),
    (HERMES, "a <tool and <tool_call", ["a <tool and <tool_call"]),
    (HERMES, "<tool_call>\n{broken}\n</tool_call>", ["<tool_call>\n{broken}\n</tool_call>"]),
    (HERMES, "two\n\nlines  ", ["two\n\nlines  "]),
    (MISTRAL, '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}}]', [WEATHER]),
    (
        MISTRAL,
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}}, '
        '{"name": "add", "arguments": {"a": 1, "b": {"c": "}]"}}}]',
        [WEATHER, ADD],
    ),
    (MISTRAL, "[TOOL] is [1]", ["[TOOL] is [1]"]),
    (MISTRAL, '[TOOL_CALLS] [{"name": ', ['[TOOL_CALLS] [{"name": ']),
    (LLAMA3, '{"name": "weather", "parameters": {"city": "Paris"}}', [WEATHER]),
    (LLAMA3, '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}', [WEATHER]),
    (
        LLAMA3,
        '{"name": "weather", "parameters": {"city": "Paris"}}; {"name": "add", "parameters": {"a": 1, "b": '
        '{"c": "}]"}}}',
        [WEATHER, ADD],
    ),
    (LLAMA3, '{"name": "nobody", "parameters": {}}', ['{"name": "nobody", "parameters": {}}']),
    (LLAMA3, '{"answer": 42} is it', ['{"answer": 42} is it']),
    (LLAMA3, 'So: {"name": "weather", "parameters": {}}', ['So: {"name": "weather", "parameters": {}}']),
    (LLAMA3, "<|python_tag|>weather.call(1)", ["<|python_tag|>weather.call(1)"]),
]  # fmt: skip


def read(form: ToolFormat, pieces: list[str]) -> list[str | ToolCall]:
    """What the parser finds, texts that follow each other put together."""
    parser, found = ToolCallParser(form, NAMES), []
    for part in [part for piece in pieces for part in parser.add(piece)] + parser.finish():
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    return found


@pytest.mark.parametrize(("form", "text", "expected"), CASES)
def test_calls_are_found(form: ToolFormat, text: str, expected: list[str | ToolCall]) -> None:
    assert read(form, [text]) == expected


@pytest.mark.parametrize(("form", "text", "expected"), CASES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_however_the_text_is_cut(
    form: ToolFormat, text: str, expected: list[str | ToolCall], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(form, pieces) == expected


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet='<tool_ca>/{}[]"TOLS:, \n;', max_size=60), form=st.sampled_from([HERMES, MISTRAL, LLAMA3]))
def test_text_without_a_call_comes_out_whole(text: str, form: ToolFormat) -> None:
    assert read(form, list(text)) in ([text], [] if not text else [text])


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% if tools %}... within <tool_call></tool_call> XML tags{% endif %}", HERMES),
        ("{% if tools %}{{ '[TOOL_CALLS] [' }}{% endif %}", MISTRAL),
        ('{% if tools %}{{- \'{"name": function name, "parameters": dictionary}\' }}{% endif %}', LLAMA3),
        ("{{ messages[0].content }}", None),
        ("{% if tools %}{{ '[TOOL_CALLS]' + name + '[ARGS]' }}{% endif %}", None),
        ("{% if tools %}something else{% endif %}", None),
    ],
)
def test_a_template_tells_its_format(template: str, form: ToolFormat | None) -> None:
    assert tool_format(template) is form


SCHEMAS = [
    ("weather", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}),
    # References are to the function's own schema.
    ("add", {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}),
]


@pytest.mark.parametrize(
    ("form", "text", "parallel"),
    [
        (HERMES, '<tool_call>\n{"name": "weather", "arguments": {"city": "x"}}\n</tool_call>', True),
        (HERMES, '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
                 '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>', True),
        (MISTRAL, '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]', True),
        (MISTRAL, '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {}}]', True),
        (LLAMA3, '{"name": "weather", "parameters": {"city": "x"}}', False),
    ],
)  # fmt: skip
def test_the_grammar_takes_calls_and_nothing_else(form: ToolFormat, text: str, parallel: bool) -> None:
    """llguidance, byte by byte, is the judge of the rules; the parser finds in them what they say."""
    grammar = LLMatcher.grammar_from_lark("start: calls\n" + form.rules(SCHEMAS, parallel=True, marker_id=None))
    assert LLMatcher.validate_grammar(grammar) == ""
    assert _taken(grammar, text) == (len(text), True)
    calls = read(form, [text])
    assert all(isinstance(call, ToolCall) for call in calls)
    assert len(calls) == text.count('"name"')
    assert _taken(grammar, text.replace('"city": "x"', '"city": 1').replace('"a": 1', '"a": "1"'))[1] is False
    alone = LLMatcher.grammar_from_lark("start: calls\n" + form.rules(SCHEMAS, parallel=False, marker_id=None))
    assert _taken(alone, text)[1] is (len(calls) == 1)


def test_a_special_marker_is_its_token() -> None:
    assert "calls: <[7]> " in MISTRAL.rules(SCHEMAS, parallel=True, marker_id=7)


def _taken(grammar: str, text: str) -> tuple[int, bool]:
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
    count = matcher.try_consume_tokens(list(text.encode()))
    return count, count == len(text) and matcher.is_accepting()


def test_arguments_stay_json() -> None:
    (call,) = read(LLAMA3, ['{"name": "add", "parameters": {"a": "né", "b": [1, null]}}'])
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == {"a": "né", "b": [1, None]}
