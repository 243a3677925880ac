"""What is in memory of the cluster: the newer of two sights wins, whichever way and in whatever order they come."""

from typing import Any

import pytest

from kvtide_operator.api import names
from kvtide_operator.edge.store import Store

Json = dict[str, Any]
CHAT = ("team", "chat")
A = ("team", "a")


def thing(version: int, name: str = "a", owner: str = "chat", says: str = "") -> Json:
    labels = {names.NAME_LABEL: owner}
    return {
        "metadata": {"namespace": "team", "name": name, "resourceVersion": str(version), "labels": labels},
        "x": says,
    }


@pytest.fixture
def store() -> Store[str]:
    return Store(lambda thing: str(thing["x"]))


def test_who_is_concerned_is_told_once_for_what_is_read_and_not_for_the_rest(store: Store[str]) -> None:
    assert store.happened(thing(1, says="x")) == {CHAT}
    assert store.happened(thing(2, says="x")) == set()  # something that nobody reads
    assert store.happened(thing(3, says="y")) == {CHAT}
    assert (store.get(A), store.version(A)) == ("y", 3)


def test_an_older_event_changes_nothing_after_our_own_write(store: Store[str]) -> None:
    store.happened(thing(1, says="before"))
    store.wrote(thing(5, says="ours"))
    assert store.happened(thing(3, says="between")) == set()
    assert store.get(A) == "ours"
    assert store.happened(thing(5, says="ours")) == set()  # its own event wakes nobody


def test_what_we_made_is_there_before_its_event(store: Store[str]) -> None:
    store.happened(thing(1, name="b"))
    store.wrote(thing(2, says="made"))
    assert store.get(A) == "made"


def test_the_answer_to_a_write_that_comes_after_the_end_brings_nothing_back(store: Store[str]) -> None:
    store.happened(thing(1))
    store.happened(thing(9), gone=True)
    store.wrote(thing(8, says="written before the end"))
    assert store.get(A) is None


def test_the_end_of_an_earlier_object_does_not_end_the_one_that_we_made_after_it(store: Store[str]) -> None:
    store.happened(thing(1))
    store.wrote(thing(7, says="new"))
    assert store.happened(thing(5), gone=True) == set()
    assert store.get(A) == "new"


def test_what_is_gone_by_our_own_hand_is_gone_at_once(store: Store[str]) -> None:
    store.happened(thing(1))
    store.deleted(A)
    assert (store.get(A), list(store.owned_by(CHAT))) == (None, [])
    assert store.happened(thing(2), gone=True) == set()


def test_a_list_takes_away_what_it_does_not_have_but_nothing_that_is_newer(store: Store[str]) -> None:
    store.happened(thing(1, name="a"))
    store.happened(thing(2, name="b", owner="other"))
    store.wrote(thing(11, name="c"))
    assert store.listed(thing(1, name="a")) == set()
    assert store.relisted({A}, 10, None) == {("team", "other")}
    assert [store.get(("team", name)) is not None for name in "abc"] == [True, False, True]


def test_a_list_of_one_namespace_is_not_about_another(store: Store[str]) -> None:
    store.happened(thing(1))
    assert store.relisted(set(), 10, "elsewhere") == set()
    assert store.relisted(set(), 10, "team") == {CHAT}


def test_an_object_that_changes_hands_concerns_both(store: Store[str]) -> None:
    store.happened(thing(1, says="x"))
    assert store.happened(thing(2, owner="other", says="x")) == {CHAT, ("team", "other")}
    assert (list(store.owned_by(CHAT)), list(store.owned_by(("team", "other")))) == ([], ["x"])


def test_what_belongs_to_one_comes_by_name(store: Store[str]) -> None:
    for name in "cab":
        store.happened(thing(1, name=name, says=name))
    assert list(store.owned_by(CHAT)) == ["a", "b", "c"]
