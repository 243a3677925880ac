"""Everything that breaks under streams: none is lost that was not on what broke, and the status never lies."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator

import pytest

from devcluster import state as devcluster_state
from devcluster.demo.cluster import Cluster, CommandFailed, devcluster, install, wait_until
from tests.cluster.conftest import NAMESPACE, Resource, apply, condition, example, pods, service_url
from tests.cluster.faults import (
    events,
    ever,
    lost,
    ready_pods,
    restarts,
    stop,
    streams,
    wait_all_ready,
    whole,
)
from tests.cluster.test_lifecycle import left, scale_operator

NAME = "faults"
SYSTEM = "kvtide-system"
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "faults-env", "namespace": NAMESPACE}}
WORD = {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "faults-env", "key": "word"}}}
PAIR = {
    "autoscaling": {"mode": "Off"}, "replicas": 2, "drain": {"timeoutSeconds": 30}, "worker": {"env": [WORD]},
}  # fmt: skip
ROLE = ("clusterrole", "kvtide-system-kvtide-operator")
LEASE = ("lease", "kvtide-operator", "-n", SYSTEM)


@pytest.fixture(scope="module")
def url(operator: Cluster) -> Iterator[str]:
    """Two workers that every test leaves as it found them."""
    say(operator, "one")
    apply(operator, example(NAME, PAIR))
    wait_all_ready(operator, NAME, 2, timeout_s=300)
    yield service_url(operator, NAME)
    operator.kubectl("delete", "llmd", NAME, "-n", NAMESPACE, "--ignore-not-found", "--wait")
    operator.kubectl("delete", "secret", "faults-env", "-n", NAMESPACE)


@pytest.fixture
def pair(operator: Cluster, url: str) -> Cluster:
    wait_all_ready(operator, NAME, 2)
    return operator


def say(cluster: Cluster, word: str) -> None:
    """Another content of the Secret that the workers' spec names."""
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(SECRET | {"stringData": {"word": word}}))


def uids(cluster: Cluster) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods(cluster, NAME)}


def holder(cluster: Cluster) -> str:
    return str(cluster.get(*LEASE)["spec"].get("holderIdentity", ""))


def template_generation(cluster: Cluster) -> int:
    return int(cluster.get("deployment", NAME, "-n", NAMESPACE)["metadata"]["generation"])


async def test_two_operators_one_of_which_dies(pair: Cluster, url: str) -> None:
    scale_operator(pair, 2)
    try:
        async with streams(pair, url, NAME, desired=2) as (results, witness):
            first, written = holder(pair), template_generation(pair)
            await asyncio.sleep(6)
            assert holder(pair) == first  # the one that came later waits
            assert template_generation(pair) == written  # and nobody writes what is as it should be
            pair.kubectl("delete", "pod", first, "-n", SYSTEM, "--force", "--grace-period=0", "--wait=false")
            await asyncio.to_thread(wait_until, "another holder", lambda: holder(pair) not in ("", first), timeout_s=40)
            pair.kubectl("label", "service", NAME, "-n", NAMESPACE, "app.kubernetes.io/part-of=somebody", "--overwrite")
            await asyncio.to_thread(
                wait_until, "the new holder to work", lambda: "ChildReverted" in events(pair, NAME), timeout_s=30
            )
    finally:
        scale_operator(pair, 1)
    assert (lost(results), witness.lies) == ([], [])
    assert witness.seen == {("True", "WorkersReady")}


async def test_the_api_server_is_killed(pair: Cluster, url: str) -> None:
    async with streams(pair, url, NAME, desired=2) as (results, witness):
        devcluster_state.required().processes["kube-apiserver"].signal(signal.SIGKILL)
        before = len(results)
        await asyncio.sleep(4)
        await asyncio.to_thread(devcluster, "up")
        assert len(results) > before, "no stream ended while there was no API server: the test proves nothing"
        # Only an operator that is there again makes another. (Another Service would have another address.)
        pair.kubectl("delete", "pdb", NAME, "-n", NAMESPACE)
        await asyncio.to_thread(
            wait_until, "the budget again", lambda: pair.get("pdb", NAME, "-n", NAMESPACE), timeout_s=90
        )
    assert (lost(results), witness.lies) == ([], [])
    await asyncio.to_thread(wait_all_ready, pair, NAME, 2)


async def test_a_worker_that_hangs_is_not_called_ready_and_is_restarted(pair: Cluster, url: str) -> None:
    victim = ready_pods(pair, NAME)[0]
    name = victim["metadata"]["name"]
    async with streams(pair, url, NAME, desired=2) as (results, witness):
        began = time.monotonic()
        stop(victim)
        said = await asyncio.to_thread(ever, pair, NAME, "Ready", "ProbeFailed", 45)
        assert f"{name}: no answer to a request of one token" in said["message"]
        assert "ProbeFailed" in events(pair, NAME)
        assert condition(pair, NAME, "Available")["status"] == "True"  # the other one answers
        await asyncio.to_thread(
            wait_until, "the kubelet to start it again", lambda: restarts(pair, NAME).get(name) == 1, timeout_s=120
        )
        assert time.monotonic() - began < 120
        await asyncio.to_thread(wait_all_ready, pair, NAME, 2)
    assert witness.lies == []
    # Streams of the victim hang until it is killed; all that the other one had are whole.
    others = [result for result in whole(results) if result.started > began]
    told = [(round(result.started - began), round(result.ended - began), result.error) for result in results]
    assert others, f"no stream on the other worker went on: {told}"
    assert len(lost(results)) <= 8, told


HOG = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) != os.getpid():
        try:
            open(f"/proc/{pid}/oom_score_adj", "w").write("1000")
        except OSError:
            pass
held = []
while True:
    held.append(b"x" * (16 << 20))
"""


async def test_a_worker_killed_for_its_memory_is_told_by_name(pair: Cluster, url: str) -> None:
    victim = ready_pods(pair, NAME)[0]["metadata"]["name"]
    async with streams(pair, url, NAME, desired=2) as (results, witness):
        killed_at = time.monotonic()
        hog = ("kubectl", "exec", "-n", NAMESPACE, victim, "--", "/opt/kvtide/bin/python", "-c", HOG)
        hogging = asyncio.create_task(asyncio.to_thread(pair.run, *hog, check=False))
        said = await asyncio.to_thread(ever, pair, NAME, "Degraded", "ContainerOOMKilled", 60)
        assert said["message"].startswith(f"{victim}: killed at its memory limit")
        await hogging
        await asyncio.to_thread(wait_all_ready, pair, NAME, 2)
    assert witness.lies == []
    # Its own streams, and what came to its address until the endpoints were without it; nothing after that.
    gone = [(round(result.started - killed_at), result.error) for result in results if result.lost]
    assert gone, "the victim served nothing: the test proves nothing"
    assert all(asked_s < 30 for asked_s, _ in gone), gone
    assert any(result.started > killed_at for result in whole(results)), "no stream on the other worker went on"
    assert condition(pair, NAME, "Degraded")["reason"] == "AsExpected"


async def test_a_node_is_drained_one_worker_at_a_time(pair: Cluster, url: str) -> None:
    node = pair.items("nodes")[0]["metadata"]["name"]
    drain = (
        "kubectl", "drain", node, "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=45s",
        f"--pod-selector=serving.kvtide.dev/name={NAME}",
    )  # fmt: skip
    try:
        async with streams(pair, url, NAME, desired=2) as (results, witness):
            done = await asyncio.to_thread(pair.run, *drain, check=False)
            # The only node takes no other worker, so the budget keeps the second one where it is.
            assert done.returncode != 0
            assert "disruption budget" in done.stderr
            assert len(ready_pods(pair, NAME)) == 1
            said = condition(pair, NAME, "Ready")
            assert (said["status"], said["reason"]) == ("False", "Unschedulable")
            pair.kubectl("uncordon", node)
            await asyncio.to_thread(wait_all_ready, pair, NAME, 2)
    finally:
        pair.kubectl("uncordon", node)
    assert (lost(results), witness.lies) == ([], [])


async def test_without_numbers_nothing_is_scaled_down(pair: Cluster, url: str) -> None:
    """The admin port is shut to the operator, by another token: what workers hold is not known, and not taken for 0.

    Until that is seen two replicas are the least: numbers that came by the old token still count.
    """
    secret = ("secret", f"{NAME}-admin", "-n", NAMESPACE)
    token = pair.get(*secret)["data"]["token"]
    scaling = {"mode": "Active", "minReplicas": 2, "maxReplicas": 2, "scaleDownStabilizationSeconds": 0}
    pair.kubectl("patch", *secret, "-p", json.dumps({"stringData": {"token": "another"}}))
    try:
        apply(pair, example(NAME, PAIR | {"autoscaling": scaling}))
        said = await asyncio.to_thread(ever, pair, NAME, "ScalingActive", "MetricsMissing", 40)
        assert said["status"] == "False"
        apply(pair, example(NAME, PAIR | {"autoscaling": scaling | {"minReplicas": 1}}))
        await asyncio.sleep(10)
        assert condition(pair, NAME, "ScalingActive")["reason"] == "MetricsMissing"
        assert condition(pair, NAME, "Ready")["status"] == "True"  # they answer all the same
        assert len(ready_pods(pair, NAME)) == 2
    finally:
        apply(pair, example(NAME, PAIR))
        pair.kubectl("patch", *secret, "-p", json.dumps({"data": {"token": token}}))


async def test_an_upgrade_of_the_operator_touches_no_worker(pair: Cluster, url: str, images: dict) -> None:
    before = uids(pair)
    async with streams(pair, url, NAME, desired=2) as (results, witness):
        upgrade = ("upgrade", "kvtide", "charts/kvtide", "-n", SYSTEM, "--reuse-values", "--wait", "--timeout", "120s")
        await asyncio.to_thread(pair.helm, *upgrade, "--set", "resyncSeconds=3", "--set", "podLabels.upgraded=yes")
        await asyncio.sleep(8)
    await asyncio.to_thread(install, pair, images)
    assert uids(pair) == before
    assert (lost(results), witness.lies) == ([], [])
    assert witness.seen == {("True", "WorkersReady")}


async def test_another_word_in_a_secret_rolls_the_workers_and_loses_no_stream(pair: Cluster, url: str) -> None:
    """There is room, so that another worker comes before the first one goes."""
    before = uids(pair)
    least = 2
    async with streams(pair, url, NAME, desired=1) as (results, witness):
        say(pair, "two")
        while before & uids(pair):
            least = min(least, len(ready_pods(pair, NAME)))
            await asyncio.sleep(1)
    rolling = pair.get("deployment", NAME, "-n", NAMESPACE)["spec"]["strategy"]["rollingUpdate"]
    assert (rolling, least) == ({"maxSurge": 1, "maxUnavailable": 0}, 2)
    assert (lost(results), witness.lies) == ([], [])


def only_secret(rules: list[Resource], name: str) -> list[Resource]:
    """A role's rules with one Secret alone that may be read by its name."""
    found = []
    for rule in rules:
        if "secrets" not in rule["resources"]:
            found.append(rule)
            continue
        others = [kind for kind in rule["resources"] if kind != "secrets"]
        more = [verb for verb in rule["verbs"] if verb != "get"]
        found.append(rule | {"resources": others})
        found.append(rule | {"resources": ["secrets"], "verbs": more})
        found.append(rule | {"resources": ["secrets"], "verbs": ["get"], "resourceNames": [name]})
    return found


async def test_a_secret_that_may_not_be_read_is_said_and_rolls_nobody(pair: Cluster, url: str) -> None:
    before = uids(pair)
    rules = pair.get(*ROLE)["rules"]

    def grant(granted: list[Resource]) -> None:
        # In the name of the chart's own writer, whose fields they stay.
        patch = json.dumps([{"op": "replace", "path": "/rules", "value": granted}])
        pair.kubectl("patch", *ROLE, "--type=json", "--field-manager=helm", "-p", patch)

    grant(only_secret(rules, f"{NAME}-admin"))
    try:
        said = await asyncio.to_thread(ever, pair, NAME, "Degraded", "ReferenceUnreadable", 40)
        assert "worker.env WORD names the Secret faults-env with the key word" in said["message"]
        say(pair, "three")
        await asyncio.sleep(30)
        assert uids(pair) == before
        assert condition(pair, NAME, "Ready")["status"] == "True"
    finally:
        grant(rules)
    # What it held was remembered all the time: what it holds now is another content.
    await asyncio.to_thread(
        wait_until, "the workers to follow", lambda: not before & uids(pair) and len(ready_pods(pair, NAME)) == 2,
        timeout_s=180,
    )  # fmt: skip
    assert condition(pair, NAME, "Degraded")["reason"] == "AsExpected"


def test_a_full_quota_and_a_missing_image_are_said_and_mend_by_themselves(operator: Cluster) -> None:
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full", "namespace": NAMESPACE},
        "spec": {"hard": {"pods": str(len(operator.items("pods", "-n", NAMESPACE)))}},
    }  # fmt: skip
    # Built in, so that no pod has to read its headers first; and never run, as there is no such image.
    changes = {
        "model": {"uri": "hf://HuggingFaceTB/SmolLM2-135M-Instruct"},
        "worker": {"image": "registry.invalid/worker:1"},
    }
    operator.kubectl("apply", "-f", "-", stdin=json.dumps(quota))
    try:
        apply(operator, example("starved", changes))
        said = ever(operator, "starved", "Degraded", "ApplyRefused", 40)
        assert "exceeded quota: full" in said["message"]
        assert condition(operator, "starved", "Ready")["status"] == "False"
        operator.kubectl("delete", "resourcequota", "full", "-n", NAMESPACE)
        said = ever(operator, "starved", "Ready", "ImagePullError", 60)
        assert "registry.invalid/worker:1" in said["message"]
        assert condition(operator, "starved", "Degraded")["reason"] == "ImagePullError"
    finally:
        operator.kubectl("delete", "resourcequota", "full", "-n", NAMESPACE, "--ignore-not-found")
        operator.kubectl("delete", "llmd", "starved", "-n", NAMESPACE, "--wait", "--timeout=20s")
    wait_until("everything of it to go", lambda: not left(operator, "starved"), timeout_s=60)


async def test_deleting_under_load_answers_what_was_asked(pair: Cluster, url: str) -> None:
    async with streams(pair, url, NAME, desired=2) as (results, _):
        deleted_at = time.monotonic()
        pair.kubectl("delete", "llmd", NAME, "-n", NAMESPACE, "--wait", "--timeout=20s")
        assert time.monotonic() - deleted_at < 20
        await asyncio.to_thread(wait_until, "everything to go", lambda: not left(pair, NAME), timeout_s=90)
        gone_at = time.monotonic()
        await asyncio.sleep(3)  # the clients ask on, and hear that nobody is there
    asked_before = [result for result in results if result.started < deleted_at - 0.5]
    assert [result.error for result in asked_before if result.lost] == []
    asked_after = [result for result in results if result.started > gone_at]
    assert asked_after
    assert all(result.lost for result in asked_after)
    with pytest.raises(CommandFailed, match="NotFound"):
        pair.kubectl("get", "llmd", NAME, "-n", NAMESPACE)
