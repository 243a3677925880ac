"""Precision as a lever on a real worker: its pool is re-encoded while it answers, and back when nobody presses."""

import asyncio

from bench.traffic import Traffic
from devcluster.demo.cluster import Cluster, wait_until
from tests.cluster.conftest import Resource, client, condition, pods, status
from tests.cluster.faults import events, lost, restarts, whole

NAME = "lever"
# About 8,400 tokens in BF16; two dozen streams of some 460 tokens each are more than 85 % of that.
SPEC = {
    "kvCache": {"precision": "Auto"},
    "autoscaling": {"minReplicas": 1, "maxReplicas": 1, "scaleDownStabilizationSeconds": 20},
}
STREAMS = 24


def in_force(cluster: Cluster) -> str:
    """What the only worker stores its keys and values in."""
    return str(status(cluster, NAME).get("kv", {}).get("precisionInForce"))


def lever(cluster: Cluster) -> Resource:
    found: Resource = status(cluster, NAME).get("kvPrecision") or {}
    return found


async def test_a_pool_is_re_encoded_under_load_and_back_after_it(operator: Cluster, deployed) -> None:
    url = deployed(NAME, SPEC)
    (before,) = pods(operator, NAME)
    planned = status(operator, NAME)["plan"]["kv"]
    assert planned["precision"] == "BF16"
    wait_until("the worker's account", lambda: in_force(operator) == "BF16", timeout_s=30)
    as_planned = status(operator, NAME)["kv"]["capacityTokens"]

    traffic = Traffic(url, NAME, concurrency=STREAMS, prompt_words=200, max_tokens=192)
    traffic.start()
    try:
        await asyncio.to_thread(
            wait_until, "the pool to be re-encoded", lambda: in_force(operator) == "INT8", timeout_s=150
        )
        seen, said, served = status(operator, NAME), lever(operator), len(whole(traffic.results))
        await asyncio.to_thread(
            wait_until, "streams to go on", lambda: len(whole(traffic.results)) > served + STREAMS, timeout_s=120
        )
    finally:
        results = await traffic.stop(timeout_s=240)
    assert lost(results) == []

    # A head of 64 values takes 128 bytes in BF16, and in INT8 64 with a scale or two of 2 bytes: 1.88 to 1.94 times.
    assert 1.8 < seen["kv"]["capacityTokens"] / as_planned < 2.0
    assert (said["asked"], said["reason"]) == ("INT8", "KVReencoded")
    assert said["message"].startswith("INT8 instead of BF16: ")
    assert 0 < said["kld"] <= said["kldLimit"]
    assert f"it costs at most {said['kld']:.4g} nats of {said['kldLimit']:.4g} allowed" in said["message"]
    assert seen["workers"][0]["precision"] == "INT8"
    assert seen["plan"]["kv"]["precision"] == "BF16"
    assert "KVReencoded" in events(operator, NAME)
    assert condition(operator, NAME, "Degraded")["reason"] == "AsExpected"

    await asyncio.to_thread(
        wait_until, "the planned precision again", lambda: in_force(operator) == "BF16", timeout_s=90
    )
    await asyncio.to_thread(
        wait_until, "that to be said", lambda: lever(operator).get("reason") == "KVAsPlanned", timeout_s=15
    )
    said = lever(operator)
    assert "asked" not in said
    assert said["message"] == "BF16 again, as planned"
    assert "KVAsPlanned" in events(operator, NAME)
    assert status(operator, NAME)["kv"]["capacityTokens"] == as_planned
    (after,) = pods(operator, NAME)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert set(restarts(operator, NAME).values()) == {0}
    answer = client(url).completions.create(model=NAME, prompt="The capital of France is", max_tokens=8, temperature=0)
    assert "Paris" in answer.choices[0].text
