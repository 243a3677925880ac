"""What is refused, with which status, and that the message names the field and what would work."""

import time

import httpx2
import openai
import pytest

from tests.worker.server.conftest import CONTEXT
from tests.worker.server.harness import MODEL_NAME, Server

HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"n": 129}, "n", "less than or equal to 128"),
        ({"logit_bias": {"1": 500}}, "logit_bias.1", "less than or equal to 100"),
        ({"logit_bias": {"one": 5}}, "logit_bias.one.[key]", "pattern"),
        ({"logit_bias": {"49152": 5}}, "logit_bias", "0 to 49151"),
        ({"presence_penalty": 2.5}, "presence_penalty", "less than or equal to 2"),
        ({"extra_body": {"repetition_penalty": 0}}, "repetition_penalty", "greater than 0"),
        ({"extra_body": {"stop_token_ids": [49152]}}, "stop_token_ids", "0 to 49151"),
        ({"extra_body": {"min_tokens": 5}, "max_tokens": 3}, "min_tokens", "more than the 3 tokens"),
        ({"functions": [{"name": "f"}]}, "functions", "use tools"),
        ({"store": True}, "store", "nothing is stored"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "chat_template_kwargs"),
        ({"modalities": ["text", "audio"]}, "modalities", "answers are text"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction", "not used"),
        ({"service_tier": "flex"}, "service_tier", "'auto' or 'default'"),
        ({"extra_body": {"best_of": 2}}, "best_of", "use n"),
        ({"extra_body": {"min_p": 1.1}}, "min_p", "less than or equal to 1"),
        ({"extra_body": {"top_kk": 5}}, "top_kk", "top_k,"),
        ({"temperature": 2.5}, "temperature", "less than or equal to 2"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens", "one of them"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stop": [""]}, "stop.0", "at least 1 character"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages.0.role", "'user'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content", "image_url"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(server: Server, options, param: str, says: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        server.client.chat.completions.create(**{"model": MODEL_NAME, "messages": HI, **options})
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"
    assert says in refused.value.body["message"]
    assert param.split(".")[0] in refused.value.body["message"]


def test_values_that_ask_for_nothing_are_accepted(server: Server) -> None:
    answer = server.client.chat.completions.create(
        model=MODEL_NAME,
        messages=HI,
        max_tokens=1,
        n=1,
        logprobs=False,
        top_logprobs=None,
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        response_format={"type": "text"},
        tools=[],
        user="somebody",
        safety_identifier="somebody",
        prompt_cache_key="k",
        service_tier="auto",
        metadata={"run": "7"},
        store=False,
        extra_body={"repetition_penalty": 1.0, "top_k": -1, "ignore_eos": None, "best_of": 1},
    )
    assert answer.usage.completion_tokens == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_tokens": 0}, "at least 1, or 0 with echo"),
        ({"suffix": "x"}, "'suffix' is not supported"),
        ({"logprobs": 21}, "less than or equal to 20"),
        ({"extra_body": {"tools": [{"type": "function"}]}}, "only /v1/chat/completions"),
        ({"n": 65, "prompt": ["a", "b"]}, "more than 128 choices"),
        ({"extra_body": {"cache_salt": ""}}, "at least 1 character"),
        ({"extra_body": {"priority": 1 << 31}}, "less than 2147483648"),
        ({"prompt": [1, "x"]}, "a list of token ids"),
        ({"prompt": []}, "at least 1"),
        ({"prompt": ""}, "no tokens"),
        ({"prompt": [49152]}, "0 to 49151"),
    ],
)
def test_completions_refuse_too(server: Server, options, says: str) -> None:
    with pytest.raises(openai.BadRequestError, match=says):
        server.client.completions.create(**{"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 1, **options})


def test_another_model_is_not_found(server: Server) -> None:
    with pytest.raises(openai.NotFoundError, match=f"'gpt-4' is not served here; this server has '{MODEL_NAME}'") as e:
        server.client.chat.completions.create(model="gpt-4", messages=HI)
    assert e.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        server.client.models.retrieve("gpt-4")


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "param", "says"),
    [
        (100, CONTEXT, "max_tokens", [f"needs {CONTEXT + 100}", "prompt 100", f"max_tokens {CONTEXT - 100} or fewer"]),
        (CONTEXT, 1, "prompt", [f"has {CONTEXT} tokens", f"limit is {CONTEXT}", f"shorten it to {CONTEXT - 1}"]),
        (CONTEXT - 1, 2, "max_tokens", ["max_tokens 1 or fewer", f"context limit is {CONTEXT}"]),
    ],
)
def test_what_never_fits_is_refused_at_once_with_the_numbers(
    server: Server, prompt_tokens: int, max_tokens: int, param: str, says: list[str]
) -> None:
    server.client.models.list()
    started = time.monotonic()
    with pytest.raises(openai.BadRequestError) as refused:
        server.client.completions.create(model=MODEL_NAME, prompt=[500] * prompt_tokens, max_tokens=max_tokens)
    assert time.monotonic() - started < 0.5
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == param
    assert all(part in refused.value.body["message"] for part in says)


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/v1/chat/completions", b"{", 400, "not JSON"),
        ("/v1/chat/completions", b"[]", 400, "valid dictionary"),
        ("/v1/chat/completions", b"{}", 400, "messages"),
        ("/v1/embeddings", b"{}", 404, "/v1/embeddings"),
        ("/tokenize", b"{}", 400, "'prompt' or 'messages'"),
        ("/detokenize", b'{"tokens": [99999]}', 400, "99999"),
        ("/v1/completions", b'{"prompt": "a\\ud800"}', 400, "not Unicode"),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "\\udc00"}]}', 400, "not Unicode"),
        ("/v1/completions", b'{"prompt": "a", "max_tokens": "3"}', 400, "max_tokens: Input should be a valid integer"),
        (
            "/v1/completions",
            b'{"prompt": "a", "temperature": true}',
            400,
            "temperature: Input should be a valid number",
        ),
        ("/v1/completions", b'{"prompt": "a", "stop_token_ids": [4294967296]}', 400, "stop_token_ids.0: "),
        ("/v1/completions", b'{"prompt": "a", "temperature": 1e999}', 400, "temperature: "),
    ],
)
def test_every_error_has_openais_shape(server: Server, path: str, body: bytes, status: int, says: str) -> None:
    answer = httpx2.post(server.url + path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert says in answer.json()["error"]["message"]


def test_a_text_that_no_sequence_can_hold_is_refused_before_it_is_tokenized(server: Server) -> None:
    started = time.monotonic()
    answer = server.post("/v1/completions", {"prompt": "word " * 400_000, "max_tokens": 1})
    assert time.monotonic() - started < 0.5
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert "2000000 characters" in answer.json()["error"]["message"]


def test_a_body_without_end_is_refused(server: Server) -> None:
    answer = server.post("/v1/completions", {"prompt": "word " * 1_000_000})
    assert answer.status_code == 413
    assert "more than 4194304 bytes" in answer.json()["error"]["message"]
