"""Tools through the official client. The model is random: what must be called parses nevertheless."""

import json

import openai
import pydantic
import pytest

from tests.worker.server.harness import MODEL_NAME, Server, eventually

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "get_time"}}
ASK = [{"role": "user", "content": "How is the weather in Paris?"}]


def chat(server: Server, **options):
    fields = {"model": MODEL_NAME, "messages": ASK, "temperature": 0, "max_tokens": 200, "tools": [WEATHER, CLOCK]}
    return server.client.chat.completions.create(**{**fields, **options})


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_named_function_is_called_and_parses(tiny_server: Server, temperature: float) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    answer = chat(tiny_server, tool_choice=choice, temperature=temperature, seed=3).choices[0]
    (call,) = answer.message.tool_calls
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("celsius", "fahrenheit")
    # OpenAI's rule: what was asked for by name is an ordinary end.
    assert (answer.message.content, answer.finish_reason) == (None, "stop")


def test_some_function_is_called_where_one_must_be(tiny_server: Server) -> None:
    answer = chat(tiny_server, tool_choice="required", parallel_tool_calls=False).choices[0]
    (call,) = answer.message.tool_calls
    assert call.function.name in ("get_weather", "get_time")
    assert answer.finish_reason == "tool_calls"
    assert len(call.id) == 9
    assert call.id.isalnum()


def test_a_stream_of_a_call(tiny_server: Server) -> None:
    whole = chat(tiny_server, tool_choice="required", parallel_tool_calls=False).choices[0].message.tool_calls[0]
    with tiny_server.client.chat.completions.stream(
        model=MODEL_NAME, messages=ASK, temperature=0, max_tokens=200, tools=[WEATHER, CLOCK], tool_choice="required",
        parallel_tool_calls=False,
    ) as stream:  # fmt: skip
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    (call,) = final.message.tool_calls
    assert (call.function.name, call.function.arguments) == (whole.function.name, whole.function.arguments)
    assert not any(chunk.choices[0].delta.content for chunk in chunks)


def test_the_clients_own_functions_parse_into_their_models(tiny_server: Server) -> None:
    class Adding(pydantic.BaseModel):
        """Adds."""

        first: int = pydantic.Field(ge=0, le=99)
        second: int = pydantic.Field(ge=0, le=99)

    answer = tiny_server.client.chat.completions.parse(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": "Add 3 and 4."}],
        max_tokens=200,
        temperature=0,
        tools=[openai.pydantic_function_tool(Adding, name="add")],
        tool_choice={"type": "function", "function": {"name": "add"}},
    )
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Adding)


def test_a_conversation_with_calls_goes_on(tiny_server: Server) -> None:
    called = chat(tiny_server, tool_choice="required", parallel_tool_calls=False).choices[0].message
    turns = [
        *ASK,
        called.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "18 degrees and rain"},
    ]
    text = tiny_server.post("/tokenize", {"messages": turns, "tools": [WEATHER]}).json()["tokens"]
    prompt = tiny_server.post("/detokenize", {"tokens": text}).json()["prompt"]
    assert '"description": "The weather in a city."' in prompt
    assert "<tool_response>\n18 degrees and rain\n</tool_response>" in prompt
    assert f'{{"name": "{called.tool_calls[0].function.name}", "arguments": ' in prompt
    assert chat(tiny_server, messages=turns, max_tokens=10).choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_a_free_answer_has_no_calls_and_none_means_none(tiny_server: Server) -> None:
    hello = [{"role": "user", "content": "Say hello."}]
    free = chat(tiny_server, messages=hello, max_tokens=12).choices[0]
    assert free.message.content
    assert free.message.tool_calls is None
    none = chat(tiny_server, messages=hello, tool_choice="none", max_tokens=12)
    without = tiny_server.client.chat.completions.create(model=MODEL_NAME, messages=hello, temperature=0, max_tokens=12)
    assert none.choices[0].message.content == without.choices[0].message.content
    assert none.usage.prompt_tokens == without.usage.prompt_tokens < 40


def test_a_schema_beside_tools_leaves_either(tiny_server: Server) -> None:
    schema = {"type": "object", "properties": {"sky": {"enum": ["blue", "grey"]}}, "required": ["sky"],
              "additionalProperties": False}  # fmt: skip
    answer = chat(
        tiny_server,
        response_format={"type": "json_schema", "json_schema": {"name": "sky", "schema": schema}},
        parallel_tool_calls=False,
    ).choices[0]
    if answer.message.tool_calls:
        json.loads(answer.message.tool_calls[0].function.arguments)
    else:
        assert json.loads(answer.message.content)["sky"] in ("blue", "grey")


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice", "get_weather, get_time"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "needs 'tools'"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "same name"),
        ({"extra_body": {"guided_choice": ["a"]}}, "tools", "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "no good"}}]}, "tools.0.function.name", "pattern"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "function"),
        ({"messages": [*ASK, {"role": "tool", "content": "x"}]}, "messages", "tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]},
         "messages", "role assistant"),
        ({"messages": [*ASK, {"role": "assistant", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "[1"}}]}]},
         "messages.1.tool_calls.0.function.arguments", "JSON object"),
    ],
)  # fmt: skip
def test_refused_by_name(tiny_server: Server, options, param: str, says: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(tiny_server, **options)
    assert refused.value.param == param
    assert says in refused.value.body["message"]


def test_arguments_that_are_no_schema_are_refused_where_a_call_is_forced(tiny_server: Server) -> None:
    bad = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": 5}}}
    with pytest.raises(openai.BadRequestError, match="properties") as refused:
        chat(tiny_server, tools=[bad], tool_choice="required")
    assert refused.value.code == "invalid_grammar"
    eventually(lambda: tiny_server.state()["kv"]["liveBlocks"] == 0, 5)


def test_a_model_whose_template_knows_no_tools_says_so(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="chat template teaches none") as refused:
        chat(server)
    assert (refused.value.param, refused.value.code) == ("tools", "tools_not_supported")
