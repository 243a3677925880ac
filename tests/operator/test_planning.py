"""From a resource to a plan, or to the reason why there is none. In no row without a plan is a worker started."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from kvtide_operator.api.conditions import Reason
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.plan.intent import model_hash
from kvtide_operator.reconcile.observed import Observed, Surroundings
from kvtide_operator.reconcile.planning import plan_workers
from kvtide_operator.reconcile.reconcile import reconcile
from kvtide_sizing.models.catalog import builtin

Json = dict[str, Any]
CLAIM = {"uri": "pvc://models/smol"}
ENDED_AT = "2026-01-01T00:00:30Z"  # 30 s before NOW


def inspector(model: str, exit_code: int | None = None, message: str = "", ended_at: str = ENDED_AT) -> Json:
    """The inspect pod, running or ended."""
    state = (
        {"running": {}}
        if exit_code is None
        else {"terminated": {"exitCode": exit_code, "message": message, "finishedAt": ended_at}}
    )
    return {
        "metadata": {"name": "chat-inspect", "labels": {"serving.kvtide.dev/model": model}},
        "status": {"containerStatuses": [{"name": "inspect", "ready": False, "state": state}]},
    }


def said(reason: str) -> str:
    return json.dumps({"error": {"reason": reason, "message": "what is wrong"}})


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({}, Reason.FITS, "BF16, blocks of 64 tokens"),
        ({"kvCache": {"precision": "INT8"}}, Reason.NOT_SUPPORTED, "use BF16 or Auto"),
        (
            {"model": {"uri": "hf://meta-llama/Llama-2-7b-hf"}, "device": {"kind": "CPU", "memory": "8Gi"}},
            Reason.DOES_NOT_FIT,
            "it fits with device.memory",
        ),
        ({"workload": {"maxContextTokens": 100_000}}, Reason.INVALID_SPEC, "8192"),  # SmolLM2's own maximum
        ({"model": {"uri": "pvc://models/../x"}}, Reason.INVALID_SPEC, "'..'"),
        ({"model": CLAIM}, Reason.INSPECTING_MODEL, "pvc://models/smol"),
    ],
)
def test_without_looking(
    make_resource: Callable[..., LLMDeployment],
    observe: Callable[..., Observed],
    surroundings: Surroundings,
    now: float,
    spec: Json,
    reason: Reason,
    words: str,
) -> None:
    observed = observe(make_resource(**spec))
    planning = plan_workers(observed, surroundings, now)
    assert planning.reason is reason
    assert words in planning.message
    started = [child["kind"] for child in reconcile(observed, surroundings, now).apply]
    assert ("Deployment" in started) is (reason is Reason.FITS)


def test_the_life_of_an_inspect_pod(
    make_resource: Callable[..., LLMDeployment],
    observe: Callable[..., Observed],
    surroundings: Surroundings,
    now: float,
) -> None:
    resource = make_resource(model=CLAIM)
    model = model_hash(resource.spec)
    shape = json.dumps(builtin("smollm2-135m").to_json())

    first = reconcile(observe(resource), surroundings, now)
    (pod,) = first.create
    assert pod["metadata"]["name"] == "chat-inspect"
    assert pod["metadata"]["labels"]["serving.kvtide.dev/model"] == model
    assert (first.apply, first.requeue_s) == ((), 2.0)

    running = reconcile(observe(resource, inspector=inspector(model)), surroundings, now)
    assert (running.create, running.delete_pods, running.apply) == ((), (), ())

    ended = reconcile(observe(resource, inspector=inspector(model, 0, shape)), surroundings, now)
    kinds = [child["kind"] for child in ended.apply]
    assert kinds.index("ConfigMap") < kinds.index("Deployment")
    assert ended.delete_pods == ()  # only once what it read is kept

    kept = observe(resource, children=list(ended.apply), inspector=inspector(model, 0, shape))
    after = reconcile(kept, surroundings, now)
    assert (after.create, after.delete_pods, after.apply) == ((), ("chat-inspect",), ())


@pytest.mark.parametrize(
    ("uri", "exit_code", "message", "ended_at", "reason", "deleted"),
    [
        # `kvtide inspect` writes {"error": {"reason", "message"}} and ends with 3
        ("pvc://models/smol", 3, said("ModelNotFound"), ENDED_AT, Reason.MODEL_NOT_FOUND, False),
        ("pvc://models/smol", 3, said("ModelNotFound"), "2026-01-01T00:00:00Z", Reason.MODEL_NOT_FOUND, True),
        ("pvc://models/smol", 3, said("InvalidModel"), ENDED_AT, Reason.INVALID_MODEL, False),
        ("pvc://models/smol", 3, said("UnsupportedModel"), ENDED_AT, Reason.UNSUPPORTED_MODEL, False),
        ("hf://some/model", 3, said("ModelDownloadFailed"), ENDED_AT, Reason.MODEL_DOWNLOAD_FAILED, False),
        # it could not say anything
        ("hf://some/model", 1, "what is wrong", ENDED_AT, Reason.MODEL_DOWNLOAD_FAILED, False),
        ("pvc://models/smol", 137, "", ENDED_AT, Reason.INVALID_MODEL, False),
        ("pvc://models/smol", 0, "what is wrong", ENDED_AT, Reason.INVALID_MODEL, False),
    ],
)
def test_a_look_that_failed_says_so_and_is_repeated_after_a_minute(
    make_resource: Callable[..., LLMDeployment],
    observe: Callable[..., Observed],
    surroundings: Surroundings,
    now: float,
    uri: str,
    exit_code: int,
    message: str,
    ended_at: str,
    reason: Reason,
    deleted: bool,
) -> None:
    resource = make_resource(model={"uri": uri})
    pod = inspector(model_hash(resource.spec), exit_code, message, ended_at)
    planning = plan_workers(observe(resource, inspector=pod), surroundings, now)
    assert planning.reason is reason
    assert ("what is wrong" in planning.message) is bool(message)
    assert planning.delete_pods == (("chat-inspect",) if deleted else ())


def test_a_pod_that_looked_at_another_model_goes(
    make_resource: Callable[..., LLMDeployment],
    observe: Callable[..., Observed],
    surroundings: Surroundings,
    now: float,
) -> None:
    planning = plan_workers(
        observe(make_resource(model=CLAIM), inspector=inspector("another", 0, "{}")), surroundings, now
    )
    assert (planning.reason, planning.delete_pods) == (Reason.INSPECTING_MODEL, ("chat-inspect",))


def test_a_shape_outlives_a_plan_that_does_not_fit(
    make_resource: Callable[..., LLMDeployment],
    observe: Callable[..., Observed],
    surroundings: Surroundings,
    now: float,
) -> None:
    resource = make_resource(model=CLAIM, device={"kind": "CPU", "memory": "200Mi"})
    model = model_hash(resource.spec)
    shape = json.dumps(builtin("smollm2-135m").to_json())
    actions = reconcile(observe(resource, inspector=inspector(model, 0, shape)), surroundings, now)
    assert [child["kind"] for child in actions.apply] == ["ConfigMap"]

    larger = make_resource(model=CLAIM)
    planning = plan_workers(observe(larger, children=list(actions.apply)), surroundings, now)
    assert planning.reason is Reason.FITS
    assert planning.create == ()
