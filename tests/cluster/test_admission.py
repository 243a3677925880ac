"""`kubectl apply`, and its dry run, are answered with the plan; and the cluster goes on where nobody answers."""

import json
import re
from collections.abc import Callable, Iterator

import pytest
import yaml

from devcluster.demo.cluster import ROOT, Cluster, CommandFailed, install, wait_until
from tests.cluster.conftest import NAMESPACE, Resource, apply, example, get, merge, wait_condition
from tests.cluster.test_lifecycle import scale_operator

SYSTEM = "kvtide-system"
SECRET = "kvtide-admission-tls"
CONFIGURATION = "kvtide-system-kvtide-operator"
BUILT_IN = "hf://HuggingFaceTB/SmolLM2-135M-Instruct"
TOO_SMALL = {"device": {"memory": "24Gi"}}


def llama(changes: Resource | None = None) -> Resource:
    """examples/llama-2-13b-a100.yaml, with nested changes to its spec."""
    resource: Resource = yaml.safe_load((ROOT / "examples" / "llama-2-13b-a100.yaml").read_text())
    resource["metadata"]["namespace"] = NAMESPACE
    merge(resource["spec"], changes or {})
    return resource


def dry_run(cluster: Cluster, resource: Resource, verb: str = "apply") -> tuple[int, str]:
    """`kubectl apply --dry-run=server`: its exit status, and what it says on stderr."""
    done = cluster.run("kubectl", verb, "--dry-run=server", "-f", "-", stdin=json.dumps(resource), check=False)
    return done.returncode, done.stderr


def judged(cluster: Cluster) -> bool:
    return "Warning: BF16 holds" in dry_run(cluster, llama())[1]


def configuration(cluster: Cluster) -> Resource:
    found: Resource = cluster.get("validatingwebhookconfiguration", CONFIGURATION)
    return found


def trusted(cluster: Cluster) -> str:
    return str(configuration(cluster)["webhooks"][0]["clientConfig"].get("caBundle", ""))


@pytest.fixture(scope="module")
def webhook(operator: Cluster) -> Cluster:
    """The cluster, once the webhook answers: the operator is ready before its certificates are made."""
    wait_until("the webhook to answer", lambda: judged(operator), timeout_s=60)
    return operator


@pytest.fixture
def cleared(webhook: Cluster) -> Iterator[Callable[[str], None]]:
    """Remembers names of resources, and deletes them after the test."""
    names: list[str] = []
    yield names.append
    for name in names:
        webhook.kubectl("delete", "llmd", name, "-n", NAMESPACE, "--ignore-not-found", "--wait")


def test_what_cannot_fit_is_denied_with_the_numbers(webhook: Cluster) -> None:
    status, said = dry_run(webhook, llama(TOO_SMALL))
    assert status == 1
    assert "Error from server (DoesNotFit)" in said
    # 13,015,864,320 parameters of two bytes
    assert "weights 24.2 GiB" in said
    assert "the device has 24.0 GiB, " in said
    assert "less; it fits with model.weightPrecision INT8, or with device.memory 30Gi" in said


def test_what_fits_says_what_it_will_hold(webhook: Cluster) -> None:
    status, said = dry_run(webhook, llama())
    assert status == 0
    warnings = [line for line in said.splitlines() if line.startswith("Warning: ")]
    held = re.match(r"Warning: BF16 holds (\d+) sequences of 4096 tokens on this device, INT8 would hold ", warnings[0])
    assert held
    assert 15 <= int(held[1]) <= 17  # 80 GiB without 24.2 of weights is 17.9 times 4096 · 819,200 bytes
    assert webhook.get("llmd", "llama-2-13b", "-n", NAMESPACE) is None


def test_what_is_not_supported_is_denied_by_name(webhook: Cluster) -> None:
    with pytest.raises(CommandFailed, match=r"kvHeads 2: .* write one of 1, 3"):
        # Built in, so that it is known without a look at its headers that its three heads make no two.
        apply(webhook, example("pooled", {"model": {"uri": BUILT_IN}, "attention": {"kvHeads": 2}}))


def test_a_model_that_must_be_read_first_is_judged_once_it_was(webhook: Cluster, cleared) -> None:
    """SmolLM2 lies in a claim: nobody knows its sizes before a pod has read them, and everybody does afterwards."""
    cleared("read-first")
    status, said = dry_run(webhook, example("read-first", {"device": {"memory": "200Mi"}}))
    assert (status, "headers are read first" in said) == (0, True)
    apply(webhook, example("read-first"))
    wait_condition(webhook, "read-first", "Planned", "True")
    status, said = dry_run(webhook, example("read-first", {"device": {"memory": "200Mi"}}))
    assert (status, "Error from server (DoesNotFit)" in said) == (1, True)


def test_without_the_webhook_everything_is_admitted_and_the_operator_says_the_same(webhook: Cluster, cleared) -> None:
    cleared("llama-2-13b")
    _, denied = dry_run(webhook, llama(TOO_SMALL))
    scale_operator(webhook, 0)
    try:
        wait_until("the operator to go", lambda: not webhook.items("pods", "-n", SYSTEM), timeout_s=30)
        apply(webhook, llama(TOO_SMALL))
    finally:
        scale_operator(webhook, 1)
    planned = wait_condition(webhook, "llama-2-13b", "Planned", "False")
    assert planned["reason"] == "DoesNotFit"
    assert planned["message"] in denied

    # What is there and does not fit can still be scaled, labelled and mended, but not be changed for the worse.
    wait_until("the webhook to answer", lambda: judged(webhook), timeout_s=60)
    webhook.kubectl("scale", "llmd", "llama-2-13b", "-n", NAMESPACE, "--replicas=0")
    webhook.kubectl("label", "llmd", "llama-2-13b", "-n", NAMESPACE, "team=a")
    with pytest.raises(CommandFailed, match="DoesNotFit"):
        apply(webhook, llama({"device": {"memory": "20Gi"}}))
    apply(webhook, llama())
    assert get(webhook, "llama-2-13b")["spec"]["device"]["memory"] == "80Gi"


def test_a_deleted_certificate_is_made_again(webhook: Cluster) -> None:
    before = trusted(webhook)
    webhook.kubectl("delete", "secret", SECRET, "-n", SYSTEM)
    wait_until("a new certificate", lambda: trusted(webhook) != before, timeout_s=30)
    assert set(webhook.get("secret", SECRET, "-n", SYSTEM)["data"]) == {"tls.crt", "tls.key", "ca.crt"}
    wait_until("the webhook to answer", lambda: judged(webhook), timeout_s=30)


# Asks this very pod, as the API server would: with the bundle that it trusts, and by the Service's name.
PROBE = """
import base64, socket, ssl, sys
trusting = ssl.create_default_context(cadata=base64.b64decode(sys.argv[1]).decode())
raw = socket.create_connection(("127.0.0.1", 9443), timeout=5)
with trusting.wrap_socket(raw, server_hostname="kvtide-admission.kvtide-system.svc") as connection:
    connection.sendall(b"POST /review HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
    print(connection.recv(100).split()[1].decode())
"""


def test_every_replica_serves_and_an_upgrade_keeps_what_is_trusted(webhook: Cluster, images: dict) -> None:
    before, generation = trusted(webhook), configuration(webhook)["metadata"]["generation"]
    install(webhook, images)
    assert trusted(webhook) == before
    assert configuration(webhook)["metadata"]["generation"] == generation  # not even for a moment was it another

    def answer(pod: str) -> str:
        probe = ("/opt/kvtide/bin/python", "-c", PROBE, before)
        return webhook.run("kubectl", "exec", "-n", SYSTEM, pod, "--", *probe, check=False).stdout.strip()

    scale_operator(webhook, 2)
    try:
        pods = [pod["metadata"]["name"] for pod in webhook.items("pods", "-n", SYSTEM)]
        assert len(pods) == 2
        # an empty review is none: 400
        wait_until("both to serve", lambda: [answer(pod) for pod in pods] == ["400", "400"], timeout_s=30)
    finally:
        scale_operator(webhook, 1)
    assert trusted(webhook) == before


def test_off_it_leaves_nothing_behind(webhook: Cluster, images: dict) -> None:
    try:
        webhook.helm(
            "upgrade", "kvtide", "charts/kvtide", "-n", SYSTEM, "--reuse-values", "--set", "admission.enabled=false",
            "--wait", "--timeout", "120s",
        )  # fmt: skip
        assert webhook.get("validatingwebhookconfiguration", CONFIGURATION) is None
        wait_until("the Secret to go", lambda: not webhook.get("secret", SECRET, "-n", SYSTEM), timeout_s=60)
        assert dry_run(webhook, llama(TOO_SMALL))[0] == 0
    finally:
        install(webhook, images)
