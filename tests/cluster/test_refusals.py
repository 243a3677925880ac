"""What cannot work is refused at the earliest place, with words that help, and the others go on."""

import pytest

from devcluster.demo.cluster import Cluster, CommandFailed
from tests.cluster.conftest import NAMESPACE, apply, condition, example, pods, wait_condition


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kvCache": {"presicion": "BF16"}}, "presicion"),
        ({"kvCache": {"precision": "FP7"}}, 'Unsupported value: "FP7"'),
        ({"kvCache": {"blockSizeTokens": 48}}, "blockSizeTokens"),
        ({"model": {"uri": "s3://bucket/model"}}, "hf://"),
        ({"autoscaling": {"minReplicas": 5, "maxReplicas": 2}}, "maxReplicas"),
        ({"autoscaling": {"scaleUpUtilization": 0.5, "scaleDownUtilization": 0.7}}, "scaleDownUtilization"),
        ({"workload": {"maxContextTokens": -1}}, "maxContextTokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_api_server_refuses_what_the_schema_forbids(operator: Cluster, changes: dict, words: str) -> None:
    with pytest.raises(CommandFailed) as refusal:
        apply(operator, example("refused", changes))
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "changes", "reason", "words"),
    [
        ("no-model", {"model": {"uri": "pvc://models/not-there.gguf"}}, "ModelNotFound", "not-there.gguf"),
        ("too-small", {"device": {"memory": "400Mi"}}, "DoesNotFit", "but the device has"),
        # 8192 tokens of 23,040 bytes are 180 MiB: not beside weights and what processes were ever measured to take.
        ("too-long", {"device": {"memory": "900Mi"}, "workload": {"maxContextTokens": 8192}}, "DoesNotFit", "8192"),
        ("beyond-the-model", {"workload": {"maxContextTokens": 500_000}}, "InvalidSpec", "8192"),
    ],
)
def test_what_cannot_run_says_why_and_starts_no_worker(
    operator: Cluster, name: str, changes: dict, reason: str, words: str
) -> None:
    apply(operator, example(name, changes))
    try:
        planned = wait_condition(operator, name, "Planned", "False")
        assert planned["reason"] == reason
        assert words in planned["message"]
        assert condition(operator, name, "Ready")["status"] == "False"
        assert pods(operator, name) == []
    finally:
        operator.kubectl("delete", "llmd", name, "-n", NAMESPACE, "--wait")


def test_a_refused_resource_does_not_stop_the_others(operator: Cluster, deployed) -> None:
    apply(operator, example("bad-neighbour", {"device": {"memory": "400Mi"}}))
    try:
        deployed("good-neighbour")
        assert condition(operator, "bad-neighbour", "Planned")["reason"] == "DoesNotFit"
    finally:
        operator.kubectl("delete", "llmd", "bad-neighbour", "-n", NAMESPACE, "--wait")


def test_a_refused_resource_runs_once_it_is_mended(operator: Cluster, deployed) -> None:
    apply(operator, example("mended", {"device": {"memory": "400Mi"}}))
    wait_condition(operator, "mended", "Planned", "False")
    deployed("mended")
    assert condition(operator, "mended", "Planned")["status"] == "True"
