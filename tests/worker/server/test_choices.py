"""Several choices, and what one may ask about how tokens are chosen."""

import pytest

from kvtide_worker.server.sampling_params import choice_seed
from tests.worker.server.harness import MODEL_NAME, Server, eventually
from tests.worker.server.test_disconnect import AT_ONCE_S, raw_request

STORY = "Once upon a time"


def complete(server: Server, **options):
    fields = {"model": MODEL_NAME, "prompt": STORY, "temperature": 0, "max_tokens": 8, **options}
    return server.client.completions.create(**fields)


def texts(answer) -> list[str]:
    return [choice.text for choice in answer.choices]


@pytest.mark.slow
def test_choices_of_one_prompt_and_the_prompt_counted_once(server: Server) -> None:
    one = complete(server, temperature=1.2, seed=5)
    three = complete(server, temperature=1.2, seed=5, n=3)
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    # Choice 0 is what there would be alone; the others have seeds of their own, and the same each time.
    assert texts(three)[0] == texts(one)[0]
    assert len(set(texts(three))) == 3
    assert texts(complete(server, temperature=1.2, seed=5, n=3)) == texts(three)
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    assert three.usage.completion_tokens == 24
    assert three.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.slow
def test_several_prompts_have_their_choices_together(server: Server) -> None:
    answer = complete(server, prompt=[STORY, "The capital of France is"], n=2, max_tokens=3)
    first, again, other, once_more = texts(answer)
    assert first == again
    assert other == once_more
    assert "Paris" in other
    streamed = ["", "", "", ""]
    for chunk in complete(server, prompt=[STORY, "The capital of France is"], n=2, max_tokens=3, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts(answer)


@pytest.mark.slow
def test_choices_of_a_chat_stream(server: Server) -> None:
    fields = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "n": 2, "seed": 3}
    whole = server.client.chat.completions.create(**fields)
    parts, ends, roles = ["", ""], [None, None], [None, None]
    for chunk in server.client.chat.completions.create(**fields, stream=True):
        (choice,) = chunk.choices
        parts[choice.index] += choice.delta.content or ""
        roles[choice.index] = choice.delta.role or roles[choice.index]
        ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert parts == [choice.message.content for choice in whole.choices]
    assert roles == ["assistant", "assistant"]
    assert ends == [choice.finish_reason for choice in whole.choices]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_all_its_choices(server: Server, stream: bool) -> None:
    connection = raw_request(
        server, {"prompt": [700] * 64, "n": 4, "max_tokens": 1500, "ignore_eos": True, "stream": stream}
    )
    eventually(lambda: server.state()["requests"]["running"] == 4, 20)
    connection.close()
    eventually(lambda: server.state()["kv"]["liveBlocks"] == 0, 5 * AT_ONCE_S)
    assert server.state()["requests"]["running"] == 0


def test_a_bias_bans_and_forces(server: Server) -> None:
    plain = complete(server, prompt="The capital of France is", max_tokens=1)
    paris, rome = (server.post("/tokenize", {"prompt": city}).json()["tokens"][0] for city in (" Paris", " Rome"))
    assert texts(plain) == [" Paris"]
    assert texts(complete(server, prompt="The capital of France is", max_tokens=1, logit_bias={str(paris): -100}))[
        0
    ] not in (" Paris", "")
    forced = complete(server, prompt="The capital of France is", max_tokens=2, logit_bias={str(rome): 100})
    assert texts(forced) == [" Rome Rome"]


@pytest.mark.slow
def test_penalties_end_a_repetition(server: Server) -> None:
    prompt, again = "yes, yes, yes, yes, yes, yes, yes, yes,", " yes, yes, yes,"
    assert texts(complete(server, prompt=prompt, max_tokens=6)) == [again]
    assert texts(complete(server, prompt=prompt, max_tokens=6, frequency_penalty=2, presence_penalty=2)) != [again]
    penalised = complete(server, prompt=prompt, max_tokens=6, extra_body={"repetition_penalty": 3.0})
    assert " yes" not in texts(penalised)[0]


@pytest.mark.slow
def test_min_p_of_one_is_greedy_whatever_the_temperature(server: Server) -> None:
    hot = complete(server, temperature=2, seed=1, extra_body={"min_p": 1.0})
    assert texts(hot) == texts(complete(server))


@pytest.mark.slow
def test_min_tokens_puts_the_end_off(server: Server) -> None:
    chat = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "Name the capital of France."}]}
    short = server.client.chat.completions.create(**chat, temperature=0, max_tokens=30)
    assert short.usage.completion_tokens < 15
    longer = server.client.chat.completions.create(**chat, temperature=0, max_tokens=30, extra_body={"min_tokens": 20})
    assert longer.usage.completion_tokens >= 20
    assert longer.choices[0].message.content.startswith(short.choices[0].message.content)


def test_a_stop_string_may_be_kept(server: Server) -> None:
    whole = texts(complete(server, prompt="The capital of France is"))[0]
    kept = complete(
        server, prompt="The capital of France is", stop=["ari"], extra_body={"include_stop_str_in_output": True}
    )
    assert texts(kept) == [whole[: whole.index("ari") + 3]]


@pytest.mark.slow
def test_special_tokens_may_be_shown(server: Server) -> None:
    chat = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "Name the capital of France."}]}
    shown = server.client.chat.completions.create(
        **chat, temperature=0, max_tokens=20, extra_body={"skip_special_tokens": False}
    )
    assert shown.choices[0].message.content.endswith(".<|im_end|>")


def test_what_was_there_of_a_prompt_is_told_and_kept_by_its_salt(tiny_server: Server) -> None:
    prompt = list(range(1000, 1600))

    def cached(salt: str, **options) -> int:
        usage = complete(tiny_server, prompt=prompt, max_tokens=1, extra_body={"cache_salt": salt}, **options).usage
        assert usage.prompt_tokens == 600
        return usage.prompt_tokens_details.cached_tokens

    assert cached("a") == 0
    again = cached("a")
    assert 300 < again < 600
    assert cached("b") == 0
    assert cached("a", n=3) == again


def test_seeds_of_choices_differ_and_stay() -> None:
    seeds = [choice_seed(42, choice) for choice in range(128)]
    assert seeds[0] == 42
    assert len(set(seeds)) == 128
    assert all(-(1 << 63) <= seed < 1 << 63 for seed in seeds)
    assert choice_seed(None, 3) is None
