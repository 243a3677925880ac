"""What a person does with the official client, against real weights."""

import json

import httpx2
import openai
import pytest

from tests.worker.server.conftest import CONTEXT
from tests.worker.server.harness import MODEL_NAME, Server, eventually

QUESTION = [{"role": "user", "content": "Name the capital of France."}]


def chat(server: Server, **options):
    return server.client.chat.completions.create(
        **{"model": MODEL_NAME, "messages": QUESTION, "temperature": 0, "max_tokens": 40, **options}
    )


def complete(server: Server, prompt, **options):
    return server.client.completions.create(
        **{"model": MODEL_NAME, "prompt": prompt, "temperature": 0, "max_tokens": 6, **options}
    )


def test_a_chat_is_answered(server: Server) -> None:
    answer = chat(server)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert "<|im_end|>" not in answer.choices[0].message.content
    prompt = server.post("/tokenize", {"messages": QUESTION}).json()
    assert answer.usage.prompt_tokens == prompt["count"]
    # The answer's own tokens and the one that ended it.
    text = server.post("/tokenize", {"prompt": answer.choices[0].message.content}).json()
    assert answer.usage.completion_tokens == text["count"] + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_the_same(server: Server) -> None:
    whole = chat(server)
    chunks = list(chat(server, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[-3:-1]] == [None, "stop"]
    assert chunks[-1].choices == []
    # All counts but how much of the prompt was there already.
    told, counts = (usage.model_dump(exclude={"prompt_tokens_details"}) for usage in (chunks[-1].usage, whole.usage))
    assert told == counts
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_is_server_sent_events(server: Server) -> None:
    body = {"messages": QUESTION, "max_tokens": 3, "stream": True}
    answer = server.post("/v1/chat/completions", body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: ") for event in events[:-1])
    assert json.loads(events[0].removeprefix("data: "))["object"] == "chat.completion.chunk"


def test_a_conversation_goes_on_with_the_answer_sent_back(server: Server) -> None:
    answer = chat(server).choices[0].message
    turns = [*QUESTION, answer.model_dump(), {"role": "user", "content": "And of Italy?"}]
    assert "Rome" in chat(server, messages=turns).choices[0].message.content


def test_content_may_come_in_parts(server: Server) -> None:
    parts = [{"type": "text", "text": QUESTION[0]["content"]}]
    in_parts = chat(server, messages=[{"role": "user", "content": parts}])
    assert in_parts.choices[0].message.content == chat(server).choices[0].message.content


@pytest.mark.slow
def test_a_prompt_may_be_text_or_ids_or_several(server: Server) -> None:
    prompts = ["The capital of Italy is", "One, two, three,", "The opposite of hot is"]
    singles = [complete(server, prompt).choices[0].text for prompt in prompts]
    assert "Rome" in singles[0]
    ids = [server.post("/tokenize", {"prompt": prompt}).json()["tokens"] for prompt in prompts]
    assert complete(server, ids[0]).choices[0].text == singles[0]
    together = complete(server, prompts)
    assert [choice.text for choice in together.choices] == singles
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert together.usage.prompt_tokens == sum(map(len, ids))
    streamed = ["", "", ""]
    for chunk in complete(server, ids, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == singles


@pytest.mark.slow
def test_a_character_is_never_cut(server: Server) -> None:
    prompt = "Repeat: 👍🎉你好 👍🎉你好 👍🎉你好 👍🎉你好 "
    whole = complete(server, prompt, max_tokens=24)
    chunks = [c.choices[0].text for c in complete(server, prompt, max_tokens=24, stream=True)]
    assert "".join(chunks) == whole.choices[0].text
    assert any(ord(character) > 0xFFFF for character in whole.choices[0].text)
    assert not any("\N{REPLACEMENT CHARACTER}" in chunk for chunk in chunks[:-1])


def test_a_stop_string_ends_the_answer_and_does_not_leak(server: Server) -> None:
    whole = chat(server).choices[0].message.content
    before = whole[: whole.index("Paris")]
    stopped = chat(server, stop=["Paris"])
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == (before, "stop")
    chunks = list(chat(server, stop=["is Paris", "never"], stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole[: whole.index("is Paris")]


def test_a_stop_token_ends_the_answer_and_is_left_out(server: Server) -> None:
    token = server.post("/tokenize", {"prompt": " Paris"}).json()["tokens"][0]
    stopped = chat(server, extra_body={"stop_token_ids": [token]})
    assert stopped.choices[0].message.content == "The capital of France is"
    assert stopped.choices[0].finish_reason == "stop"


def test_an_answer_has_at_most_max_tokens(server: Server) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        answer = chat(server, **{"max_tokens": openai.omit, name: 3})
        assert answer.usage.completion_tokens == 3
        assert answer.choices[0].finish_reason == "length"


def test_ignore_eos_goes_on_past_the_end(server: Server) -> None:
    answer = chat(server, max_tokens=20, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 20


@pytest.mark.slow
def test_a_seed_makes_sampling_repeatable(server: Server) -> None:
    def draw(seed: int) -> str:
        return complete(server, "Once upon a time", temperature=1.5, seed=seed, max_tokens=6).choices[0].text

    assert draw(7) == draw(7)
    assert len({draw(seed) for seed in range(3)}) > 1


def test_without_max_tokens_there_is_what_the_context_has_room_for(server: Server) -> None:
    body = {"prompt": [1000] * 48, "ignore_eos": True, "stream": True}
    with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        assert '"text"' in next(lines)
        state = server.state()
        # What it may still generate, and what it has: prompt and answer so far.
        left, has = state["requests"]["expectedOutputTokens"], state["kv"]["liveTokens"]
        assert CONTEXT - 2 <= left + has <= CONTEXT
    eventually(lambda: server.state()["requests"]["running"] == 0, 5)


def test_the_model_is_listed(server: Server) -> None:
    (listed,) = server.client.models.list()
    assert listed.id == MODEL_NAME
    assert listed.max_model_len == CONTEXT
    assert server.client.models.retrieve(MODEL_NAME) == listed


def test_text_to_tokens_and_back(server: Server) -> None:
    answer = server.post("/tokenize", {"prompt": "Hi 42 👍", "return_token_strs": True}).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == CONTEXT
    assert server.post("/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": "Hi 42 👍"}


@pytest.mark.parametrize("path", ["/health", "/ready", "/version"])
def test_probes_answer(server: Server, path: str) -> None:
    assert server.get(path).status_code == 200
