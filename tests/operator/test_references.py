"""Secrets and ConfigMaps that a spec names: another content rolls the workers, and a missing one is said at once."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvtide_operator.api.conditions import ConditionType
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.children.plan_config_map import plan_config_map
from kvtide_operator.plan.intent import intent_hash
from kvtide_operator.plan.record import Record
from kvtide_operator.plan.references import references_of
from kvtide_operator.reconcile.observed import Observed, Surroundings
from kvtide_operator.reconcile.reconcile import reconcile

Json = dict[str, Any]
Make = Callable[..., LLMDeployment]
See = Callable[..., Observed]
PROJECTED = {"sources": [{"secret": {"name": "a"}}, {"configMap": {"name": "b"}}]}
MODEL = {"uri": "hf://HuggingFaceTB/SmolLM2-135M-Instruct", "authSecretRef": {"name": "hf", "key": "token"}}


def secret(data: Json, uid: str = "s-1", **metadata: Any) -> Json:
    return {"kind": "Secret", "metadata": {"name": "hf", "uid": uid, **metadata}, "data": data}


def env(**source: Json) -> Json:
    return {"env": [{"name": "X", "valueFrom": source}]}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({}, []),
        ({"model": MODEL}, ["Secret hf with the key token"]),
        ({"worker": env(secretKeyRef={"name": "a", "key": "k"})}, ["Secret a with the key k"]),
        ({"worker": env(configMapKeyRef={"name": "a", "key": "k"})}, ["ConfigMap a with the key k"]),
        ({"worker": env(fieldRef={"fieldPath": "metadata.name"})}, []),
        ({"worker": {"volumes": [{"name": "v", "secret": {"secretName": "a"}}]}}, ["Secret a"]),
        ({"worker": {"volumes": [{"name": "v", "configMap": {"name": "a"}}]}}, ["ConfigMap a"]),
        ({"worker": {"volumes": [{"name": "v", "projected": PROJECTED}]}}, ["ConfigMap b", "Secret a"]),
        ({"worker": {"volumes": [{"name": "v", "emptyDir": {}}]}}, []),
    ],
)  # fmt: skip
def test_what_a_spec_names(make_resource: Make, spec: Json, named: list[str]) -> None:
    assert [str(reference) for reference in references_of(make_resource(**spec).spec)] == named


def test_another_content_is_another_intent_and_nothing_else_is(make_resource: Make) -> None:
    resource = make_resource(model=MODEL)
    (reference,) = references_of(resource.spec)

    def intent(live: Json) -> str:
        return intent_hash(resource, {reference: reference.content_of(live)})

    before = intent(secret({"token": "b25l", "other": "MQ=="}))
    assert intent(secret({"token": "b25l", "other": "Mg=="})) == before  # a key that no worker gets
    assert intent(secret({"token": "b25l"}, resourceVersion="9", labels={"a": "b"})) == before
    assert intent(secret({"token": "dHdv"})) != before
    # The same words in another object give another hash: who reads the pod's label can guess nothing by it.
    assert intent(secret({"token": "b25l"}, uid="s-2")) != before


def test_where_nothing_is_named_the_hash_is_what_it_was(make_resource: Make) -> None:
    assert intent_hash(make_resource(), {}) == intent_hash(make_resource()) == "2efe712f1e48"


def planned(seen: Observed, surroundings: Surroundings, now: float) -> tuple[str, str, str]:
    conditions = reconcile(seen, surroundings, now).status.conditions or []
    found = next(condition for condition in conditions if condition.type is ConditionType.PLANNED)
    return found.status, found.reason, found.message


def test_a_missing_one_is_said_before_anything_starts(
    make_resource: Make, observe: See, surroundings: Surroundings, now: float
) -> None:
    resource = make_resource(model=MODEL)
    (reference,) = references_of(resource.spec)
    for live in (None, secret({"another": "b25l"})):
        seen = observe(resource, references={reference: reference.content_of(live)})
        status, reason, message = planned(seen, surroundings, now)
        assert (status, reason) == ("False", "ReferenceMissing")
        assert "model.authSecretRef names the Secret hf with the key token" in message
        assert reconcile(seen, surroundings, now).apply == ()


def test_what_cannot_fit_is_said_first(
    make_resource: Make, observe: See, surroundings: Surroundings, now: float
) -> None:
    resource = make_resource(model=MODEL, device={"memory": "300Mi"})
    (reference,) = references_of(resource.spec)
    assert planned(observe(resource, references={reference: None}), surroundings, now)[:2] == ("False", "DoesNotFit")


def test_an_optional_one_may_be_missing(
    make_resource: Make, observe: See, surroundings: Surroundings, now: float
) -> None:
    resource = make_resource(worker=env(secretKeyRef={"name": "a", "key": "k", "optional": True}))
    (reference,) = references_of(resource.spec)
    assert planned(observe(resource, references={reference: None}), surroundings, now)[0] == "True"


def test_a_change_rolls_the_workers_and_a_deletion_leaves_them_alone(
    make_resource: Make, make_pod: Callable[..., Json], observe: See, surroundings: Surroundings, now: float
) -> None:
    resource = make_resource(model=MODEL)
    (reference,) = references_of(resource.spec)

    def seen(live: Json | None, children: list[Json], pods: list[Json]) -> Observed:
        return observe(resource, children, pods, references={reference: reference.content_of(live)})

    one, two = secret({"token": "b25l"}), secret({"token": "dHdv"})
    children = list(reconcile(seen(one, [], []), surroundings, now).apply)
    intent = children[-1]["spec"]["template"]["metadata"]["labels"]["serving.kvtide.dev/intent"]
    pods = [make_pod(intent=intent)]
    assert reconcile(seen(one, children, pods), surroundings, now).apply == ()
    rolled = reconcile(seen(two, children, pods), surroundings, now).apply
    assert [child["kind"] for child in rolled] == ["ConfigMap", "Deployment"]
    assert rolled[-1]["spec"]["template"]["metadata"]["labels"]["serving.kvtide.dev/intent"] != intent

    gone = seen(None, children, pods)
    assert reconcile(gone, surroundings, now).apply == ()
    assert planned(gone, surroundings, now)[:2] == ("False", "ReferenceMissing")


def running(children: list[Json]) -> str:
    intent: str = children[-1]["spec"]["template"]["metadata"]["labels"]["serving.kvtide.dev/intent"]
    return intent


def test_an_upgrade_from_a_version_that_knew_no_references_restarts_nobody(
    make_resource: Make, make_pod: Callable[..., Json], observe: See, surroundings: Surroundings, now: float
) -> None:
    """Its intent was the hash of the spec alone. What the Secret holds at the upgrade is taken for what it held."""
    resource = make_resource(model=MODEL)
    (reference,) = references_of(resource.spec)
    one, two = (secret({"token": token}) for token in ("b25l", "dHdv"))
    before = list(reconcile(observe(resource), surroundings, now).apply)
    assert running(before) == intent_hash(resource)
    record = Record.from_config_map(before[0])
    planned = {intent: replace(plan, basis=None) for intent, plan in record.planned.items()}
    before[0] = plan_config_map(resource, replace(record, planned=planned))
    pods = [make_pod(intent=running(before))]

    def after(live: Json | None, children: list[Json]) -> list[Json]:
        seen = observe(resource, children, pods, references={reference: reference.content_of(live)})
        return list(reconcile(seen, surroundings, now).apply)

    assert after(None, before) == []  # not there at all: workers go on
    adopted = after(one, before)
    assert [child["kind"] for child in adopted] == ["ConfigMap"]
    children = [*adopted, *before[1:]]
    assert after(one, children) == []
    assert running(after(two, children)) != running(before)


def test_one_that_may_not_be_read_changes_no_intent_and_is_said(
    make_resource: Make, make_pod: Callable[..., Json], observe: See, surroundings: Surroundings, now: float
) -> None:
    resource = make_resource(model=MODEL)
    (reference,) = references_of(resource.spec)
    one, two = (secret({"token": token}) for token in ("b25l", "dHdv"))

    def seen(references: Json, children: list[Json], of: LLMDeployment = resource) -> Observed:
        return observe(of, children, [make_pod(intent="i")], references=references)

    children = list(reconcile(seen({reference: reference.content_of(one)}, []), surroundings, now).apply)
    forbidden = reconcile(seen({}, children), surroundings, now)
    assert forbidden.apply == ()
    (degraded,) = [each for each in forbidden.status.conditions or [] if each.type is ConditionType.DEGRADED]
    assert (degraded.status, degraded.reason) == ("True", "ReferenceUnreadable")
    assert degraded.message.startswith("model.authSecretRef names the Secret hf with the key token, which the operator")
    assert "grant get on secrets" in degraded.message
    # Read again, the same is the same, and another content is another intent.
    assert reconcile(seen({reference: reference.content_of(one)}, children), surroundings, now).apply == ()
    rolled = list(reconcile(seen({reference: reference.content_of(two)}, children), surroundings, now).apply)
    assert running(rolled) != running(children)
    # Another spec is another intent all the same, and what is then read for the first time rolls nobody.
    changed = make_resource(model=MODEL, drain={"timeoutSeconds": 60})
    blind = list(reconcile(seen({}, children, changed), surroundings, now).apply)
    assert running(blind) not in (running(children), running(rolled))
    children = [*blind, *children[1:-1]]
    later = reconcile(seen({reference: reference.content_of(two)}, children, changed), surroundings, now)
    assert [child["kind"] for child in later.apply] == ["ConfigMap"]
