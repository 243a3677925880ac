"""What somebody else does to children is undone with an event that says what and who, and not with a flood of them."""

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.edge.events import QUIET_S, EventRecorder
from kvtide_operator.edge.kube import Kube
from kvtide_operator.reconcile.actions import Event
from kvtide_operator.reconcile.observed import Observed, Surroundings
from kvtide_operator.reconcile.reconcile import reconcile

Json = dict[str, Any]
Make = Callable[..., LLMDeployment]
See = Callable[..., Observed]
# As kube-apiserver 1.34 writes them; what the kubelet and controllers write goes to subresources.
MANAGED = [
    {"manager": "kvtide-operator", "operation": "Apply", "time": "2026-01-01T00:00:00Z"},
    {"manager": "kubectl-edit", "operation": "Update", "time": "2026-01-01T00:00:30Z"},
    {
        "manager": "kube-controller-manager",
        "operation": "Update",
        "time": "2026-01-01T00:00:40Z",
        "subresource": "status",
    },
]


def told(seen: Observed, surroundings: Surroundings, now: float) -> list[tuple[str, str]]:
    events = reconcile(seen, surroundings, now).events
    return [(event.reason, event.message) for event in events if event.reason.startswith("Child")]


@pytest.mark.parametrize(
    ("kind", "path", "value", "field"),
    [
        ("Service", ("spec", "ports", 0, "port"), 81, "spec.ports[0].port"),
        ("Deployment", ("spec", "strategy", "type"), "Recreate", "spec.strategy.type"),
        ("Deployment", ("spec", "template", "spec", "containers", 0, "image"), "x", ".spec.containers[0].image"),
        ("PodDisruptionBudget", ("spec", "maxUnavailable"), 0, "spec.maxUnavailable"),
        ("ConfigMap", ("metadata", "labels", "app.kubernetes.io/part-of"), "x", "labels.app.kubernetes.io/part-of"),
    ],
)  # fmt: skip
def test_an_edit_is_reverted_and_said(
    make_resource: Make, observe: See, surroundings: Surroundings, now: float, first: list[Json],
    kind: str, path: tuple[Any, ...], value: Any, field: str,
) -> None:  # fmt: skip
    live = copy.deepcopy(first)
    child = next(child for child in live if child["kind"] == kind)
    child["metadata"]["managedFields"] = MANAGED
    target: Any = child
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    seen = observe(make_resource(), children=live)
    assert [manifest["kind"] for manifest in reconcile(seen, surroundings, now).apply] == [kind]
    ((reason, message),) = told(seen, surroundings, now)
    assert reason == "ChildReverted"
    assert message.startswith(f"{kind} {child['metadata']['name']}: ")
    assert f"{field} was changed by kubectl-edit" in message


def test_what_the_operator_itself_changes_is_no_edit(
    make_resource: Make, observe: See, surroundings: Surroundings, now: float, first: list[Json]
) -> None:
    changed = observe(make_resource(workload={"maxContextTokens": 1024}), children=first)
    assert reconcile(changed, surroundings, now).apply != ()
    assert told(changed, surroundings, now) == []
    assert told(observe(make_resource(), children=[]), surroundings, now) == []  # nor is what it makes first


def test_a_deleted_child_is_made_again_and_said(
    make_resource: Make, observe: See, surroundings: Surroundings, now: float, first: list[Json]
) -> None:
    rest = [child for child in first if child["kind"] != "Service"]
    seen = observe(make_resource(), children=rest, lost=frozenset({("Service", "chat")}))
    assert [manifest["kind"] for manifest in reconcile(seen, surroundings, now).apply] == ["Service"]
    assert told(seen, surroundings, now) == [("ChildRemade", "Service chat was deleted and is made again")]


class Posts:
    """What is posted: the count of each event, whether it is made or patched."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    async def create(self, manifest: Json) -> None:
        self.counts.append(manifest["count"])

    async def merge(self, kind: str, namespace: str, name: str, change: Json) -> None:
        self.counts.append(change["count"])


async def test_two_who_are_at_odds_every_second_are_told_now_and_then(make_resource: Make, now: float) -> None:
    posts = Posts()
    recorder = EventRecorder(cast(Kube, posts), "one")
    for second in range(65):
        event = Event("Warning", "ChildReverted", "Service chat: spec", about="Service/chat/spec")
        await recorder.post(make_resource(), event, now + second)
    assert QUIET_S == 30
    assert posts.counts == [1, 31, 61]  # at 0, 30 and 60 s, with all between counted


async def test_other_words_are_news(make_resource: Make, now: float) -> None:
    posts = Posts()
    recorder = EventRecorder(cast(Kube, posts), "one")
    for second, words in enumerate(("1 to 2", "2 to 3", "2 to 3")):
        await recorder.post(make_resource(), Event("Normal", "DemandAboveTarget", words), now + second)
    assert posts.counts == [1, 2]
