"""From a resource to a plan, or to the reason why there is none. In no row without a plan is a worker started."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvtide_operator.api.conditions import Reason
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.children.plan_config_map import plan_config_map
from kvtide_operator.edge.events import MESSAGE_LIMIT
from kvtide_operator.plan.intent import model_hash
from kvtide_operator.plan.nodes import NodeDevices
from kvtide_operator.plan.planner import make_plan
from kvtide_operator.plan.record import Record
from kvtide_operator.reconcile.looks import RESTING_S
from kvtide_operator.reconcile.observed import Observed, Surroundings
from kvtide_operator.reconcile.planning import plan_workers, wants_nodes
from kvtide_operator.reconcile.reconcile import reconcile
from kvtide_sizing.devices.device import device_named
from kvtide_sizing.errors import DoesNotFit
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
        "metadata": {
            "name": "chat-inspect",
            "creationTimestamp": "2025-12-31T12:00:00Z",
            "labels": {"serving.kvtide.dev/model": model},
        },
        "status": {"containerStatuses": [{"name": "inspect", "ready": False, "state": state}]},
    }


def said(reason: str) -> str:
    return json.dumps({"error": {"reason": reason, "message": "what is wrong"}})


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({}, Reason.FITS, "BF16, blocks of 64 tokens"),
        ({}, Reason.FITS, "next-best: precision INT8 would hold"),
        ({"attention": {"kvHeads": "Auto"}}, Reason.FITS, "BF16"),
        ({"kvCache": {"prefixCaching": True}}, Reason.FITS, "BF16"),
        ({"kvCache": {"precision": "INT8"}}, Reason.FITS, "INT8, blocks of 64 tokens"),
        ({"kvCache": {"precision": "Mixed"}}, Reason.FITS, "Mixed, blocks of 64 tokens"),
        # more sequences than BF16 holds: the best of what may cost 1 % in perplexity
        ({"workload": {"maxContextTokens": 8192, "targetConcurrency": 9}}, Reason.FITS, "INT8, blocks of 64 tokens"),
        # what this release's workers do not run
        ({"attention": {"kvHeads": 2}}, Reason.NOT_SUPPORTED, "write one of 1, 3"),
        ({"device": {"kind": "CPU", "memory": "2Gi", "count": 2}}, Reason.NOT_SUPPORTED, "device.count 2"),
        ({"device": {"kind": "CPU"}}, Reason.INVALID_SPEC, "write device.memory"),
        ({"device": {"kind": "GPU"}}, Reason.DEVICE_MEMORY_UNKNOWN, "no right to list nodes"),
        (
            {"model": {"uri": "hf://deepseek-ai/DeepSeek-V3"}, "device": {"kind": "GPU", "memory": "2Ti"}},
            Reason.UNSUPPORTED_MODEL,
            "deepseek-v3",
        ),
        (
            {"model": {"uri": "hf://meta-llama/Llama-2-7b-hf"}, "device": {"kind": "CPU", "memory": "8Gi"}},
            Reason.DOES_NOT_FIT,
            "it fits with model.weightPrecision INT8, or with device.memory",
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


def test_the_precision_of_weights_is_the_plans(make_resource: Callable[..., LLMDeployment]) -> None:
    """And asks nobody to look at the model's files again."""
    specs = {stored: make_resource(model={**CLAIM, "weightPrecision": stored}).spec for stored in ("BF16", "INT8")}
    plans = {
        stored: make_plan(spec, builtin("smollm2-135m"), device_named("cpu:1Gi")) for stored, spec in specs.items()
    }
    assert {stored: made.to_json()["weightPrecision"] for stored, made in plans.items()} == {
        "BF16": "BF16",
        "INT8": "INT8",
    }
    # 257 MiB, and 129 with a byte for each of the 134,479,872 elements of matrices
    assert plans["BF16"].memory.weights_bytes - plans["INT8"].memory.weights_bytes == 134_479_872 - 4 * 204_672
    assert model_hash(specs["BF16"]) == model_hash(specs["INT8"]) == model_hash(make_resource(model=CLAIM).spec)


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


def test_a_shape_in_an_older_form_is_read_again(
    make_resource: Callable[..., LLMDeployment],
    observe: Callable[..., Observed],
    surroundings: Surroundings,
    now: float,
) -> None:
    resource = make_resource(model=CLAIM)
    # as the first version wrote it: no layers
    old = {"name": "smol", "numLayers": 30, "kvHeads": 3, "headDim": 64}
    kept = plan_config_map(resource, Record(shapes={model_hash(resource.spec): old}))
    planning = plan_workers(observe(resource, children=[kept]), surroundings, now)
    assert planning.reason is Reason.INSPECTING_MODEL
    assert [pod["metadata"]["name"] for pod in planning.create] == ["chat-inspect"]


def test_what_does_not_fit_names_the_changes_in_condition_and_event(
    make_resource: Callable[..., LLMDeployment],
    observe: Callable[..., Observed],
    surroundings: Surroundings,
    now: float,
) -> None:
    spec = {"model": {"uri": "hf://meta-llama/Llama-2-7b-hf"}, "device": {"kind": "GPU", "memory": "8Gi"}}
    actions = reconcile(observe(make_resource(**spec)), surroundings, now)
    with pytest.raises(DoesNotFit) as refused:
        make_plan(make_resource(**spec).spec, builtin("llama-2-7b"), device_named("gpu:8Gi"))
    assert 1 <= len(refused.value.changes) <= 3
    (planned,) = [c.message for c in actions.status.conditions or [] if c.type == "Planned"]
    (warned,) = [event.message for event in actions.events if event.reason == "DoesNotFit"]
    for change in refused.value.changes:
        assert change in planned
        assert change in warned[:MESSAGE_LIMIT]
    assert "Deployment" not in [child["kind"] for child in actions.apply]


ON_NODES: Json = {"model": {"uri": "hf://meta-llama/Llama-2-7b-hf"}, "device": {"kind": "GPU"}}


def with_memory(*memory_mib: int) -> tuple[NodeDevices, ...]:
    return tuple(
        NodeDevices(f"n{mib}", {"nvidia.com/gpu.memory": str(mib)}, {"nvidia.com/gpu": "1"}) for mib in memory_mib
    )


def test_a_device_of_the_nodes_is_planned_for_the_smallest_and_says_so(
    make_resource: Callable[..., LLMDeployment],
    observe: Callable[..., Observed],
    surroundings: Surroundings,
    now: float,
) -> None:
    around = replace(surroundings, nodes=with_memory(81920, 40960))
    status = reconcile(observe(make_resource(**ON_NODES)), around, now).status
    assert status.plan is not None
    assert status.plan.memory.device_bytes == 40960 * 2**20
    assert "nvidia.com/gpu.memory: 81920" in status.plan.warnings[0]


def test_where_the_smallest_is_too_small_the_larger_ones_are_named(
    make_resource: Callable[..., LLMDeployment],
    observe: Callable[..., Observed],
    surroundings: Surroundings,
    now: float,
) -> None:
    around = replace(surroundings, nodes=with_memory(8192, 40960))  # the weights alone are 12.6 GiB
    planning = plan_workers(observe(make_resource(**ON_NODES)), around, now)
    assert planning.reason is Reason.DOES_NOT_FIT
    assert "to plan for 40.0 GiB, pin the workers with worker.nodeSelector nvidia.com/gpu.memory" in planning.message


def test_a_plan_made_from_nodes_stays_when_nodes_come_and_go(
    make_resource: Callable[..., LLMDeployment],
    observe: Callable[..., Observed],
    surroundings: Surroundings,
    now: float,
) -> None:
    resource = make_resource(**ON_NODES)
    seen = observe(resource)
    assert wants_nodes(seen)
    first = list(reconcile(seen, replace(surroundings, nodes=with_memory(40960)), now).apply)
    kept = observe(resource, children=first)
    assert not wants_nodes(kept)
    for nodes in (None, (), with_memory(24576, 40960, 81920)):
        assert reconcile(kept, replace(surroundings, nodes=nodes), now).apply == ()


def test_without_a_device_there_is_no_pod_until_one_comes(
    make_resource: Callable[..., LLMDeployment],
    observe: Callable[..., Observed],
    surroundings: Surroundings,
    now: float,
) -> None:
    seen = observe(make_resource(**ON_NODES))
    without = reconcile(seen, replace(surroundings, nodes=()), now)
    assert without.apply == ()
    assert [c.reason for c in without.status.conditions or [] if c.type == "Planned"] == ["NoDevice"]
    assert without.requeue_s == RESTING_S
    later = reconcile(seen, replace(surroundings, nodes=with_memory(40960)), now)
    assert "Deployment" in [child["kind"] for child in later.apply]
