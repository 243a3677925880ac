"""Load moves the replicas and the batch limit, up and down, and no stream is lost on the way."""

import asyncio
import html
import re
import time

import httpx2

from bench.traffic import Traffic
from devcluster.demo.cluster import Cluster, wait_until
from tests.cluster.conftest import NAMESPACE, pods, service_url, status

NAME = "scaling"
SCALING = {"autoscaling": {"minReplicas": 1, "maxReplicas": 2, "scaleDownStabilizationSeconds": 20}}


def ready(cluster: Cluster) -> int:
    return int(status(cluster, NAME).get("readyReplicas", 0))


async def test_up_under_load_down_after_it_operator_killed_in_between(operator: Cluster, deployed) -> None:
    url = deployed(NAME, SCALING)
    began = time.time()
    # More than two workers hold, and most of it grows after it was let in: it is preemptions that move a batch limit.
    traffic = Traffic(url, NAME, concurrency=48, prompt_words=200, max_tokens=480, whole=True)
    traffic.start()
    await asyncio.to_thread(wait_until, "the scale-up", lambda: ready(operator) == 2, timeout_s=180)

    served_before_kill = len(traffic.results)
    operator.kubectl(
        "delete", "pod", "-n", "kvtide-system", "-l", "app.kubernetes.io/name=kvtide-operator",
        "--force", "--grace-period=0", "--wait=false",
    )  # fmt: skip
    await asyncio.to_thread(
        wait_until, "answers while the operator is gone", lambda: len(traffic.results) > served_before_kill + 8,
        timeout_s=180,
    )  # fmt: skip

    # Half of the load goes on through the scale-down, so that the worker that leaves has streams to finish.
    light = Traffic(url, NAME, concurrency=2, prompt_words=20, max_tokens=96)
    light.start()
    results = await traffic.stop(timeout_s=240)
    await asyncio.to_thread(
        wait_until, "the scale-down", lambda: ready(operator) == 1 and len(pods(operator, NAME)) == 1, timeout_s=200
    )
    results += await light.stop()

    assert [result.error for result in results if result.lost] == []
    decisions = status(operator, NAME)["autoscaling"]["decisions"]
    assert 0 < len(decisions) <= 10
    assert all(decision["reason"] for decision in decisions)

    worker = f'{{llmdeployment="{NAME}"}}'
    elapsed = int(time.time() - began)
    limits = operator.query(f"max_over_time(kvtide_batch_limit{worker}[{elapsed}s])")
    lowest = operator.query(f"min_over_time(kvtide_batch_limit{worker}[{elapsed}s])")
    assert max(value for _, value in limits) > min(value for _, value in lowest), "the batch limit never moved"
    desired = operator.query(f'max_over_time(kvtide_llmdeployment_desired_replicas{{name="{NAME}"}}[{elapsed}s])')
    assert max(value for _, value in desired) == 2
    served_by = operator.query(f"vllm:generation_tokens_total{worker} > 0")
    assert service_url(operator, NAME) == url
    assert served_by
    graphs = graphs_of_the_page(operator)
    assert len(graphs) == 6
    assert [expression for expression in graphs if not operator.query(expression)] == []


def graphs_of_the_page(cluster: Cluster) -> list[str]:
    """The expressions on the page that the demo shows."""
    asked = {"name": NAME, "namespace": NAMESPACE}
    page = httpx2.get(f"{cluster.prometheus_url}/consoles/kvtide.html", params=asked, timeout=10).raise_for_status()
    return [html.unescape(expression) for expression in re.findall(r'data-expr="([^"]*)"', page.text)]


def busiest(cluster: Cluster, name: str) -> str:
    """Of two workers the one with the most running requests, once both have some: a Service hears of the second one a
    little later than the operator."""
    running = f'vllm:num_requests_running{{llmdeployment="{name}"}} > 0'
    wait_until("running requests to be seen on both", lambda: len(cluster.query(running)) == 2, timeout_s=60)
    return max(cluster.query(running), key=lambda row: row[1])[0]["pod"]


def restarts(cluster: Cluster, name: str, pod: str) -> int:
    statuses = {item["metadata"]["name"]: item["status"]["containerStatuses"] for item in pods(cluster, name)}
    return sum(container["restartCount"] for container in statuses[pod])


async def test_a_worker_killed_under_load(operator: Cluster, deployed) -> None:
    url = deployed("killed", {"autoscaling": {"mode": "Off"}, "replicas": 2})
    await asyncio.to_thread(
        wait_until,
        "two workers",
        lambda: status(operator, "killed").get("readyReplicas") == 2,
        timeout_s=120,
    )
    traffic = Traffic(url, "killed", concurrency=10, prompt_words=20, max_tokens=256)
    traffic.start()
    busy = await asyncio.to_thread(busiest, operator, "killed")
    killed_at = time.monotonic()
    await asyncio.to_thread(
        operator.run, "kubectl", "exec", "-n", NAMESPACE, busy, "--", "/bin/sh", "-c", "kill -9 -1", check=False
    )
    await asyncio.to_thread(
        wait_until,
        "the replica to come back",
        lambda: restarts(operator, "killed", busy) == 1 and status(operator, "killed").get("readyReplicas") == 2,
        timeout_s=120,  # a start takes as long as the machine has other things to do
    )
    results = await traffic.stop()
    lost = [result for result in results if result.lost]
    others = [result for result in results if result.started < killed_at < result.ended and not result.lost]
    assert lost, "the victim served nothing: the test proves nothing"
    assert all(result.ended - killed_at < 5 for result in lost)
    assert others, "no stream on the other worker went on"
