"""Log probabilities as OpenAI's client reads them; their values are compared with transformers' in engine tests."""

import math

import openai
import pytest

from tests.worker.server.harness import MODEL_NAME, Server

PARIS = "The capital of France is"
EMOJI = "Repeat: 👍🎉你好 👍🎉你好 👍🎉你好 👍🎉你好 "


def chat(server: Server, **options):
    messages = [{"role": "user", "content": "Name the capital of France."}]
    fields = {
        "model": MODEL_NAME,
        "messages": messages,
        "temperature": 0,
        "max_tokens": 20,
        "logprobs": True,
        **options,
    }
    return server.client.chat.completions.create(**fields)


def complete(server: Server, **options):
    fields = {"model": MODEL_NAME, "prompt": PARIS, "temperature": 0, "max_tokens": 4, **options}
    return server.client.completions.create(**fields)


def test_a_chats_tokens_are_its_content(server: Server) -> None:
    choice = chat(server, top_logprobs=3).choices[0]
    tokens = choice.logprobs.content
    assert "".join(token.token for token in tokens) == choice.message.content
    assert bytes(byte for token in tokens for byte in token.bytes).decode() == choice.message.content
    for token in tokens:
        assert len(token.top_logprobs) == 3
        # The likeliest is what greedy decoding took.
        assert token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == token.logprob <= 0
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) <= 1 + 1e-6


@pytest.mark.slow
def test_a_stream_tells_the_same(server: Server) -> None:
    whole = chat(server, top_logprobs=1).choices[0].logprobs.content
    streamed = []
    for chunk in chat(server, top_logprobs=1, stream=True):
        if chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content
    assert [token.token for token in streamed] == [token.token for token in whole]
    assert [token.logprob for token in streamed] == pytest.approx([token.logprob for token in whole], abs=1e-4)


@pytest.mark.slow
def test_tokens_that_are_parts_of_a_character_have_their_bytes(server: Server) -> None:
    messages = [{"role": "user", "content": EMOJI}]
    choice = chat(server, messages=messages, max_tokens=30, extra_body={"ignore_eos": True}).choices[0]
    tokens = choice.logprobs.content
    assert any("\\x" in token.token for token in tokens)
    told = bytes(byte for token in tokens for byte in token.bytes)
    assert told.decode(errors="ignore").startswith(choice.message.content.rstrip("\N{REPLACEMENT CHARACTER}"))
    plain = complete(server, prompt=EMOJI, max_tokens=20, logprobs=0).choices[0].logprobs
    assert any(token.startswith("bytes:") for token in plain.tokens)


@pytest.mark.slow
def test_a_stop_string_leaves_its_tokens_out(server: Server) -> None:
    for stream in (False, True):
        answer = chat(server, stop=[" Paris"], stream=stream)
        choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
        content = [token.token for choice in choices if choice.logprobs for token in choice.logprobs.content]
        assert content == ["The", " capital", " of", " France", " is"]


def test_completions_have_offsets_and_the_likeliest_by_their_text(server: Server) -> None:
    choice = complete(server, logprobs=2).choices[0]
    told = choice.logprobs
    assert "".join(told.tokens) == choice.text
    assert [
        choice.text[offset : offset + len(token)] for offset, token in zip(told.text_offset, told.tokens, strict=True)
    ]
    assert all(choice.text[at:].startswith(token) for at, token in zip(told.text_offset, told.tokens, strict=True))
    for token, logprob, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert top[token] == logprob == max(top.values())
        assert len(top) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_an_echo_has_the_prompts_log_probabilities(server: Server, stream: bool, max_tokens: int) -> None:
    answer = complete(server, echo=True, logprobs=1, max_tokens=max_tokens, stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    text = "".join(choice.text for choice in choices)
    tokens = [token for choice in choices for token in choice.logprobs.tokens]
    scores = [score for choice in choices for score in choice.logprobs.token_logprobs]
    offsets = [offset for choice in choices for offset in choice.logprobs.text_offset]
    assert text.startswith(PARIS)
    assert "".join(tokens) == text
    assert scores[0] is None
    assert all(score < 0 for score in scores[1:])
    assert all(text[at:].startswith(token) for at, token in zip(offsets, tokens, strict=True))
    assert choices[-1].finish_reason == "length"
    if not stream:
        assert answer.usage.completion_tokens == max_tokens


@pytest.mark.slow
def test_what_a_prompt_scores_is_what_its_answer_scored(server: Server) -> None:
    answer = complete(server, logprobs=0, max_tokens=2).choices[0]  # " Paris" and ".", which are tokens in a prompt too
    echoed = complete(server, prompt=PARIS + answer.text, echo=True, logprobs=0, max_tokens=0).choices[0]
    count = len(answer.logprobs.tokens)
    assert echoed.logprobs.tokens[-count:] == answer.logprobs.tokens
    assert echoed.logprobs.token_logprobs[-count:] == pytest.approx(answer.logprobs.token_logprobs, abs=1e-3)


def test_prompt_logprobs_are_vllms(server: Server) -> None:
    choice = complete(server, extra_body={"prompt_logprobs": 1}).choices[0].model_dump()
    first, *others = choice["prompt_logprobs"]
    assert first is None
    ids = server.post("/tokenize", {"prompt": PARIS}).json()["tokens"]
    for token, place in zip(ids[1:], others, strict=True):
        own = place[str(token)]
        assert len(place) == (1 if own["rank"] == 1 else 2)
        assert min(entry["rank"] for entry in place.values()) == 1
        assert own["logprob"] <= max(entry["logprob"] for entry in place.values())


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"logprobs": openai.omit, "top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"stream": True, "extra_body": {"prompt_logprobs": 1}}, "prompt_logprobs"),
        ({"extra_body": {"echo": True}}, "echo"),
    ],
)
def test_refused_by_name(server: Server, options, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(server, **options)
    assert refused.value.param == param
