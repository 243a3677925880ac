"""What Kopf tells of an LLMDeployment is remembered, and asks for a pass where it is news."""

from typing import Any, cast

import pytest

from kvtide_operator.api import names
from kvtide_operator.edge.canary import Canary
from kvtide_operator.edge.cluster import compact
from kvtide_operator.edge.handlers import Memo, changed, kopf_settings, registry
from kvtide_operator.edge.kube import Kube
from kvtide_operator.edge.queue import WorkQueue
from kvtide_operator.edge.store import Key, Store
from tests.operator.api_server import ApiServer

Json = dict[str, Any]
CHAT = ("team", "chat")


class Asked(WorkQueue):
    """A queue that only notes what it was asked for."""

    def __init__(self) -> None:
        self.requests: list[Key] = []

    def request(self, namespace: str, name: str, after_s: float = 0.0) -> None:
        self.requests.append((namespace, name))


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def memo(asked: Asked) -> Memo:
    store: Store[bytes] = Store(compact)
    canary = Canary(cast(Kube, ApiServer()), (), store, lambda _: None)
    return Memo(queue=asked, canary=canary, resources=store, identities={})


def document(version: int, generation: int = 1, uid: str = "u-1", **more: Any) -> Json:
    metadata: Json = {"namespace": "team", "name": "chat", "uid": uid, "generation": generation, **more}
    metadata["resourceVersion"] = str(version)
    return {"kind": names.KIND, "metadata": metadata, "status": {"replicas": version}}


@pytest.mark.parametrize(
    ("second", "passes"),
    [
        (document(2), 1),  # only the status: our own write, or one that the next look undoes
        (document(2, generation=2), 2),
        (document(2, uid="u-2"), 2),  # deleted and made anew while nobody looked
        (document(2, deletionTimestamp="2026-01-01T00:00:00Z"), 2),
    ],
    ids=["status", "spec", "another object", "on its way out"],
)
def test_a_pass_is_asked_for_what_is_news_and_all_of_it_is_remembered(
    memo: Memo, asked: Asked, second: Json, passes: int
) -> None:
    changed(document(1), False, memo)
    changed(second, False, memo)
    assert asked.requests == [CHAT] * passes
    assert memo.resources.version(CHAT) == 2
    assert b'"replicas":2' in (memo.resources.get(CHAT) or b"")


def test_an_end_is_news_and_one_of_the_same_name_that_comes_after_it_is_too(memo: Memo, asked: Asked) -> None:
    changed(document(1), False, memo)
    changed(document(2), True, memo)
    assert (memo.resources.get(CHAT), memo.identities) == (None, {})
    changed(document(3), False, memo)
    assert asked.requests == [CHAT] * 3


def test_kopf_watches_nothing_but_the_resources_and_lists_them_in_parts() -> None:
    watched = [handler.selector for handler in registry()._watching.get_all_handlers()]
    assert [(found.group, found.any_name) for found in watched if found] == [(names.GROUP, names.PLURAL)]
    assert kopf_settings().watching.chunk_size == 100
