"""Through the Service, with the official client: answers, refusals, and what a closed connection leaves behind."""

import base64
import json
import time
from collections.abc import Iterator

import openai
import pytest

from devcluster.demo.cluster import Cluster, wait_until
from tests.cluster.conftest import (
    NAMESPACE,
    apply,
    client,
    example,
    pods,
    service_url,
    status,
    wait_condition,
)

NAME = "serving"


@pytest.fixture(scope="module")
def url(operator: Cluster) -> Iterator[str]:
    apply(operator, example(NAME))
    wait_condition(operator, NAME, "Ready", "True", timeout_s=120)
    yield service_url(operator, NAME)
    operator.kubectl("delete", "llmd", NAME, "-n", NAMESPACE, "--wait")


def live_blocks(cluster: Cluster) -> int | None:
    """From Prometheus: what the worker itself says is live, none before its first scrape."""
    rows = cluster.query(f'sum(kvtide_kv_blocks{{state="live",llmdeployment="{NAME}"}})')
    return int(rows[0][1]) if rows else None


def test_a_real_answer(url: str) -> None:
    answer = client(url).chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": "Name the capital of France."}],
        max_tokens=32,
        temperature=0,
    )
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens > 0


def test_streaming_gives_the_same_words(url: str) -> None:
    ask = {"model": NAME, "prompt": "The first ten prime numbers are", "max_tokens": 24, "temperature": 0}
    whole = client(url).completions.create(**ask).choices[0].text
    parts = [event.choices[0].text for event in client(url).completions.create(**ask, stream=True) if event.choices]
    assert len(parts) > 5
    assert "".join(parts) == whole


def test_a_request_that_never_fits_is_refused_at_once_with_the_numbers(url: str) -> None:
    started = time.monotonic()
    with pytest.raises(openai.BadRequestError) as refusal:
        client(url).completions.create(model=NAME, prompt="word " * 5000, max_tokens=16)
    assert time.monotonic() - started < 2
    assert "2048" in refusal.value.message


def test_an_unknown_model_is_refused_by_name(url: str) -> None:
    with pytest.raises(openai.NotFoundError, match="serving"):
        client(url).completions.create(model="gpt-4", prompt="Hello", max_tokens=4)


def test_a_closed_connection_frees_its_blocks(operator: Cluster, url: str) -> None:
    wait_until("Prometheus to know the worker", lambda: live_blocks(operator) is not None, timeout_s=30)
    stream = client(url).completions.create(
        model=NAME, prompt="Once upon a time", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    wait_until("the live blocks to be seen", lambda: live_blocks(operator), timeout_s=15)
    stream.close()
    wait_until("the blocks to be free", lambda: live_blocks(operator) == 0, timeout_s=10)


def test_what_the_status_tells(operator: Cluster, url: str) -> None:
    seen = status(operator, NAME)
    plan = seen["plan"]
    assert plan["kv"]["bytesPerToken"] == 23_040  # 2 · 30 layers · 3 KV heads · 64 · 2 bytes
    assert plan["kv"]["capacityTokens"] == plan["kv"]["numBlocks"] * plan["kv"]["blockSizeTokens"]
    assert seen["kv"]["capacityTokens"] == plan["kv"]["capacityTokens"]
    assert seen["memory"]["predicted"]["weightsBytes"] == pytest.approx(
        seen["memory"]["measured"]["weightsBytes"], rel=0.01
    )
    assert seen["observedGeneration"] == 1
    conditions = {c["type"]: c["status"] for c in seen["conditions"]}
    assert conditions.keys() == {
        "Planned", "Progressing", "Available", "Ready", "ScalingActive", "MemoryWithinPlan", "Degraded",
    }  # fmt: skip
    assert conditions["MemoryWithinPlan"] == "True"


def test_the_children_are_owned_and_nothing_else(operator: Cluster, url: str) -> None:
    uid = operator.get("llmd", NAME, "-n", NAMESPACE)["metadata"]["uid"]
    for kind, name in [
        ("deployment", NAME),
        ("service", NAME),
        ("secret", None),
        ("configmap", None),
        ("poddisruptionbudget", None),
    ]:
        owned = [
            item
            for item in operator.items(kind, "-n", NAMESPACE)
            if any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences", []))
        ]
        assert len(owned) == 1, kind
        assert name is None or owned[0]["metadata"]["name"] == name
        assert not owned[0]["metadata"].get("finalizers")


def test_printer_columns(operator: Cluster, url: str) -> None:
    header = operator.kubectl("get", "llmd", NAME, "-n", NAMESPACE).splitlines()[0].split()
    assert header == ["NAME", "MODEL", "PRECISION", "BLOCK", "READY", "DESIRED", "KV%", "AGE"]


def test_the_admin_port_is_closed_without_the_token(operator: Cluster, url: str) -> None:
    pod = pods(operator, NAME)[0]["metadata"]["name"]
    secret = next(
        item
        for item in operator.items("secret", "-n", NAMESPACE, "-l", f"serving.kvtide.dev/name={NAME}")
        if "token" in item["data"]
    )
    token = base64.b64decode(secret["data"]["token"]).decode()
    probe = (
        "import sys, urllib.request, urllib.error\n"
        "request = urllib.request.Request('http://127.0.0.1:8001/v1/state')\n"
        "if sys.argv[1]: request.add_header('Authorization', 'Bearer ' + sys.argv[1])\n"
        "try: print(urllib.request.urlopen(request).read().decode())\n"
        "except urllib.error.HTTPError as error: print(error.code)\n"
    )

    def state(with_token: str) -> str:
        return operator.kubectl(
            "exec", "-n", NAMESPACE, pod, "--", "/opt/kvtide/bin/python", "-c", probe, with_token
        ).strip()

    assert state("") == "401"
    assert state("wrong") == "401"
    assert json.loads(state(token))["kv"]["blockSizeTokens"] > 0
