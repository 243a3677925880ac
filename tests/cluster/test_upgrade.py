"""`helm upgrade` from a version before, while streams run: no worker restarts, no stream is lost, and all goes on.

The version before is a commit of this repository, built from its own Dockerfiles and installed by its own chart. It
looked at no Secret that a spec names, knew no `--reencodable`, and wrote `weightsFormat` into plans.
"""

import asyncio
import json
import subprocess
from collections.abc import Iterator

import pytest

from bench.traffic import Traffic
from devcluster.demo.cluster import ROOT, Cluster, devcluster, install, wait_until
from tests.cluster.conftest import (
    NAMESPACE,
    apply,
    client,
    condition,
    example,
    get,
    pods,
    service_url,
    status,
    wait_condition,
)
from tests.cluster.faults import lost, ready_pods, restarts, streams, wait_all_ready
from tests.cluster.test_lifecycle import left

BEFORE = "5aa9cad6c42c76f805a670d3f8debc4649a71eeb"
NAME, PINNED = "upgraded", "pinned"
SYSTEM = "kvtide-system"
CRD = "llmdeployments.serving.kvtide.dev"
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "upgraded-env", "namespace": NAMESPACE}}
WORD = {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "upgraded-env", "key": "word"}}}
SPEC = {
    "kvCache": {"precision": "Auto"},
    "autoscaling": {"minReplicas": 1, "maxReplicas": 2, "scaleDownStabilizationSeconds": 20},
    "worker": {"env": [WORD]},
}


@pytest.fixture(scope="module")
def before(cluster: Cluster, images: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The images of the version before, which is installed in the place of this one, with its own CRD."""
    known = subprocess.run(
        ["git", "cat-file", "-e", f"{BEFORE}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    if known.returncode != 0:
        pytest.skip(f"this checkout has no commit {BEFORE}, the version before: `git fetch --unshallow` brings it")
    # The folder's name is that of its layers in the cache.
    source = tmp_path_factory.mktemp("before") / "kvtide-before"
    source.mkdir()
    files = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=files, check=True)
    built: dict[str, str] = json.loads(devcluster("images", "--json", "--source", str(source)))
    cluster.helm("uninstall", "kvtide", "-n", SYSTEM, "--ignore-not-found", "--wait", "--timeout", "60s")
    cluster.kubectl("delete", "crd", CRD, "--ignore-not-found", "--wait", "--timeout=60s")
    install(cluster, built, str(source / "charts" / "kvtide"))
    return built


@pytest.fixture(scope="module")
def url(cluster: Cluster, before: dict[str, str]) -> Iterator[str]:
    """One worker that the version before has made."""
    say(cluster, "one")
    apply(cluster, example(NAME, SPEC))
    wait_condition(cluster, NAME, "Ready", "True", timeout_s=240)
    yield service_url(cluster, NAME)
    cluster.kubectl("delete", "llmd", NAME, PINNED, "-n", NAMESPACE, "--ignore-not-found", "--wait")
    cluster.kubectl("delete", "secret", "upgraded-env", "-n", NAMESPACE)


def say(cluster: Cluster, word: str) -> None:
    """Another content of the Secret that the workers' spec names."""
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(SECRET | {"stringData": {"word": word}}))


def workers_images(cluster: Cluster, name: str = NAME) -> set[str]:
    return {container["image"] for pod in pods(cluster, name) for container in pod["spec"]["containers"]}


def schema(cluster: Cluster) -> str:
    return json.dumps(cluster.get("crd", CRD)["spec"])


async def test_an_upgrade_restarts_no_worker_and_loses_no_stream(
    cluster: Cluster, url: str, before: dict[str, str], images: dict[str, str]
) -> None:
    old_pods, old_schema = {pod["metadata"]["uid"] for pod in pods(cluster, NAME)}, schema(cluster)
    # Starts of the version before are its own affair.
    restarted = restarts(cluster, NAME)
    assert "weightPrecision" not in old_schema, "this is no version before"
    async with streams(cluster, url, NAME, desired=1) as (results, witness):
        served = len(results)
        await asyncio.to_thread(install, cluster, images)
        await asyncio.to_thread(wait_condition, cluster, NAME, "Ready", "True")
        await asyncio.to_thread(
            wait_until,
            "the new operator to write the status",
            lambda: status(cluster, NAME)["plan"].get("weightPrecision"),
            timeout_s=30,
        )
        await asyncio.sleep(10)
        assert len(results) > served, "no stream ended meanwhile: the test proves nothing"
    assert schema(cluster) != old_schema
    assert (lost(results), witness.lies) == ([], [])
    # The Secret that the spec names is part of an intent now; what it holds is taken for what it held.
    assert {pod["metadata"]["uid"] for pod in pods(cluster, NAME)} == old_pods
    assert restarts(cluster, NAME) == restarted
    assert workers_images(cluster) == {before["worker"]}, "a worker's image is no part of an intent"
    assert status(cluster, NAME)["plan"]["weightPrecision"] == "BF16"
    wait_all_ready(cluster, NAME, 1)


async def test_workers_of_the_version_before_are_scaled(cluster: Cluster, url: str, before: dict[str, str]) -> None:
    traffic = Traffic(url, NAME, concurrency=32, prompt_words=200, max_tokens=192)
    traffic.start()
    try:
        await asyncio.to_thread(
            wait_until, "the scale-up", lambda: status(cluster, NAME).get("readyReplicas") == 2, timeout_s=180
        )
    finally:
        results = await traffic.stop(timeout_s=120)
    # The second one was made by the new operator, of the recorded template.
    assert workers_images(cluster) == {before["worker"]}
    await asyncio.to_thread(wait_until, "the scale-down", lambda: len(pods(cluster, NAME)) == 1, timeout_s=120)
    assert lost(results) == []


async def test_the_next_change_brings_the_new_workers(cluster: Cluster, url: str, images: dict[str, str]) -> None:
    wait_all_ready(cluster, NAME, 1)
    least = 1
    async with streams(cluster, url, NAME, desired=1) as (results, witness):
        say(cluster, "two")
        while workers_images(cluster) != {images["worker"]}:
            least = min(least, len(ready_pods(cluster, NAME)))
            await asyncio.sleep(1)
        await asyncio.to_thread(wait_all_ready, cluster, NAME, 1)
    assert least == 1, "there is room for the new worker beside the old one"
    assert (lost(results), witness.lies) == ([], [])


def test_a_worker_whose_image_is_pinned_to_the_version_before_serves(
    cluster: Cluster, url: str, before: dict[str, str]
) -> None:
    """It is told nothing that it does not know: with precision Auto, the operator would have it look at its formats."""
    apply(cluster, example(PINNED, {"kvCache": {"precision": "Auto"}, "worker": {"image": before["worker"]}}))
    wait_condition(cluster, PINNED, "Ready", "True", timeout_s=120)
    assert workers_images(cluster, PINNED) == {before["worker"]}
    answer = client(service_url(cluster, PINNED)).completions.create(
        model=PINNED, prompt="The capital of France is", max_tokens=8, temperature=0
    )
    assert "Paris" in answer.choices[0].text


def test_going_back_restarts_no_worker_either(
    cluster: Cluster, url: str, before: dict[str, str], images: dict[str, str]
) -> None:
    """But of a resource that names Secrets: that they are part of an intent, the version before does not know."""
    (kept,) = pods(cluster, PINNED)
    cluster.helm("rollback", "kvtide", "1", "-n", SYSTEM, "--wait", "--timeout", "120s")
    try:
        wait_until("the version before", lambda: "weightPrecision" not in schema(cluster), timeout_s=30)
        wait_until("its workers again", lambda: workers_images(cluster) == {before["worker"]}, timeout_s=180)
        wait_condition(cluster, NAME, "Ready", "True", timeout_s=60)
        assert condition(cluster, PINNED, "Ready")["status"] == "True"
    finally:
        install(cluster, images)
    (still,) = pods(cluster, PINNED)
    assert still["metadata"]["uid"] == kept["metadata"]["uid"]
    wait_condition(cluster, PINNED, "Ready", "True")


def test_what_both_versions_made_goes_with_its_resource(cluster: Cluster, url: str) -> None:
    assert not get(cluster, NAME)["metadata"].get("finalizers")
    cluster.kubectl("delete", "llmd", NAME, PINNED, "-n", NAMESPACE, "--wait", "--timeout=20s")
    wait_until("everything to go", lambda: not (left(cluster, NAME) or left(cluster, PINNED)), timeout_s=120)
