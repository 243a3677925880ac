"""Answers that match a schema, and what is said of schemas that are none."""

import json
import time

import jsonschema
import openai
import pydantic
import pytest

from tests.worker.server.harness import MODEL_NAME, Background, Server, eventually
from tests.worker.server.test_disconnect import AT_ONCE_S, raw_request

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "population": {"type": "integer", "minimum": 0, "maximum": 99999999},
        "tags": {"type": "array", "items": {"enum": ["big", "old"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["city", "population", "tags"],
    "additionalProperties": False,
}
ASK = [{"role": "user", "content": "Tell me about Paris in JSON."}]


def chat(server: Server, **options):
    fields = {"model": MODEL_NAME, "messages": ASK, "temperature": 0, "max_tokens": 1000, **options}
    return server.client.chat.completions.create(**fields)


def by_schema(schema: dict) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


@pytest.mark.parametrize("temperature", [0, 1.8])
def test_an_answer_matches_its_schema(tiny_server: Server, temperature: float) -> None:
    answer = chat(tiny_server, response_format=by_schema(SCHEMA), temperature=temperature, seed=11).choices[0]
    jsonschema.validate(json.loads(answer.message.content), SCHEMA)
    assert answer.finish_reason == "stop"


def test_a_stream_matches_too(tiny_server: Server) -> None:
    chunks = list(chat(tiny_server, response_format=by_schema(SCHEMA), stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    jsonschema.validate(json.loads(text), SCHEMA)
    assert text == chat(tiny_server, response_format=by_schema(SCHEMA)).choices[0].message.content


def test_the_client_parses_into_its_own_model(tiny_server: Server) -> None:
    class City(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=10)
        capital: bool

    answer = tiny_server.client.chat.completions.parse(
        model=MODEL_NAME, messages=ASK, temperature=0, max_tokens=1000, response_format=City
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_any_object(tiny_server: Server) -> None:
    # Kept short by a schema: what a model of 135M writes by itself need not end.
    small = {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "boolean"},
             "propertyNames": {"maxLength": 8}}  # fmt: skip
    text = chat(tiny_server, response_format={"type": "json_object"}, max_tokens=6).choices[0].message.content
    assert text.startswith("{")
    refused_or_made = tiny_server.post(
        "/v1/chat/completions",
        {"messages": ASK, "max_tokens": 60, "temperature": 0, "response_format": by_schema(small)},
    )
    # llguidance names what it does not know; it never ignores it.
    assert refused_or_made.status_code in (200, 400)
    if refused_or_made.status_code == 400:
        assert "Unimplemented keys" in refused_or_made.json()["error"]["message"]


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ({"guided_choice": ["yes", "no (really)"]}, ["yes", "no (really)"]),
        ({"structured_outputs": {"choice": ["a\nb", "ç"]}}, ["a\nb", "ç"]),
        ({"guided_regex": "[0-9]{3}-x"}, None),
        ({"structured_outputs": {"regex": "[0-9]{3}-x"}}, None),
        ({"guided_grammar": 'start: "12" | "34" "5"'}, ["12", "345"]),
        ({"guided_json": {"type": "integer", "minimum": 3, "maximum": 5}}, ["3", "4", "5"]),
        ({"guided_json": json.dumps({"enum": [1, "z"]})}, ["1", '"z"']),
        ({"structured_outputs": {"json": {"const": True}}}, ["true"]),
    ],
)
def test_vllms_words(tiny_server: Server, asked: dict, allowed: list[str] | None) -> None:
    answer = tiny_server.client.completions.create(
        model=MODEL_NAME, prompt="Well,", temperature=1, max_tokens=20, extra_body=asked
    ).choices[0]
    assert answer.finish_reason == "stop"
    if allowed is None:
        assert answer.text[:3].isdigit()
        assert answer.text[3:] == "-x"
    else:
        assert answer.text in allowed


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"response_format": by_schema({"type": "strng"})}, "response_format", "Invalid type: strng"),
        ({"response_format": by_schema({"$ref": "#/$defs/none"})}, "response_format", "does not exist"),
        ({"response_format": by_schema({"type": "string", "pattern": "("})}, "response_format", "unclosed group"),
        ({"response_format": by_schema({"type": "array", "uniqueItems": True})}, "response_format", "uniqueItems"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "goes with"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
        ({"extra_body": {"guided_regex": "[a"}}, "guided_json", "regex"),
        ({"extra_body": {"guided_json": "[1]"}}, "guided_json", "JSON object"),
        ({"extra_body": {"guided_json": "{"}}, "guided_json", "guided_json"),
        ({"extra_body": {"guided_json": {}, "guided_choice": ["a"]}}, "guided_choice", "send one of"),
        ({"extra_body": {"structured_outputs": {}}}, "structured_outputs", "takes one of"),
        ({"response_format": by_schema({}), "extra_body": {"min_tokens": 4}}, "min_tokens", "response_format"),
        ({"response_format": by_schema({"description": "x" * 300_000})}, "response_format", "at most 262144"),
    ],
)
def test_what_is_no_schema_is_refused_in_milliseconds(tiny_server: Server, options, param: str, says: str) -> None:
    tiny_server.client.models.list()
    started = time.monotonic()
    with pytest.raises(openai.BadRequestError) as refused:
        chat(tiny_server, **options)
    assert time.monotonic() - started < 1
    assert refused.value.param == param
    assert says in refused.value.body["message"]


def test_a_schema_that_takes_its_time_holds_nobody_up(tiny_server: Server) -> None:
    """Thousands of patterns: its own request is answered or refused, and others get their tokens meanwhile."""
    heavy = {
        "type": "object",
        "properties": {
            f"p{i}": {"type": "string", "pattern": f"^([a-z]{{1,{i + 5}}}[0-9]*)+x{i}$"} for i in range(900)
        },
    }
    slow = Background(
        lambda: tiny_server.post(
            "/v1/chat/completions", {"messages": ASK, "max_tokens": 2, "response_format": by_schema(heavy)}
        )
    )
    started = time.monotonic()
    tiny_server.client.completions.create(model=MODEL_NAME, prompt="Hi", max_tokens=2)
    assert time.monotonic() - started < 5
    assert slow.result(60).status_code in (200, 400, 504)
    eventually(lambda: tiny_server.state()["kv"]["liveBlocks"] == 0, 5)


def test_a_client_that_goes_away_frees_a_constrained_answer(tiny_server: Server) -> None:
    body = {"prompt": "x", "n": 3, "max_tokens": 1500, "stream": True, "guided_regex": "[a-z ]{2000}"}
    connection = raw_request(tiny_server, body)
    eventually(lambda: tiny_server.state()["requests"]["running"] == 3, 20)
    connection.close()
    eventually(lambda: tiny_server.state()["kv"]["liveBlocks"] == 0, 5 * AT_ONCE_S)
    assert tiny_server.state()["requests"]["waiting"] == 0
