"""What there is of one kind, by namespace and name: fed by lists, events and our own writes, in any order.

An object's resourceVersion says which of two sights of it is newer, so nothing older ever replaces what is newer:
numbers of one API server, which grow (https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kvtide_operator.api import names

Json = dict[str, Any]
Key = tuple[str, str]  # namespace, name
T = TypeVar("T")


@dataclass(slots=True)
class _Kept(Generic[T]):
    """owner: the LLMDeployment that the object belongs to by its label; of an LLMDeployment, itself."""

    version: int
    owner: str
    value: T


class Store(Generic[T]):
    """Keeps what `read` makes of an object: little, where little is looked at.

    told: up to which version the API server's own list and watch have told everything
    """

    def __init__(self, read: Callable[[Json], T]) -> None:
        self._read = read
        self._kept: dict[Key, _Kept[T]] = {}
        self._owned: dict[Key, set[str]] = {}
        self.told = 0

    def get(self, key: Key) -> T | None:
        """What is kept of an object, None where there is none."""
        kept = self._kept.get(key)
        return None if kept is None else kept.value

    def version(self, key: Key) -> int:
        """The version of an object, 0 where there is none."""
        kept = self._kept.get(key)
        return 0 if kept is None else kept.version

    def owned_by(self, owner: Key) -> Iterator[T]:
        """What is kept of all objects of one LLMDeployment."""
        namespace, _ = owner
        return (self._kept[namespace, name].value for name in sorted(self._owned.get(owner, ())))

    def happened(self, thing: Json, gone: bool = False) -> set[Key]:
        """An event of the watch. Gives the owners for whom something is different now."""
        self.told = max(self.told, version_of(thing))
        return self._drop(key_of(thing), version_of(thing)) if gone else self._put(thing)

    def wrote(self, thing: Json) -> None:
        """The answer to a write of our own, so that nobody acts on what was before it.

        An object that is not known, and of which the watch has told everything since, has been deleted meanwhile.
        """
        if key_of(thing) in self._kept or version_of(thing) > self.told:
            self._put(thing)

    def deleted(self, key: Key) -> None:
        """The API server has said that there is no such object any more."""
        self._drop(key, self.version(key))

    def listed(self, thing: Json) -> set[Key]:
        """One object of a list that `relisted` ends. Gives the owners for whom something is different now."""
        return self._put(thing)

    def relisted(self, keys: set[Key], version: int, namespace: str | None) -> set[Key]:
        """All of a namespace, or (None) of all, was listed as of this version: what is not among it is gone.

        Gives the owners for whom something is different now. What was written later than that stays.
        """
        self.told = max(self.told, version)
        missing = [key for key in self._kept if key not in keys and namespace in (None, key[0])]
        return {owner for key in missing for owner in self._drop(key, version)}

    def _put(self, thing: Json) -> set[Key]:
        key, version = key_of(thing), version_of(thing)
        before = self._kept.get(key)
        if before is not None and before.version >= version:
            return set()
        owner, value = owner_of(thing), self._read(thing)
        if before is not None and (before.owner, before.value) == (owner, value):
            before.version = version
            return set()
        self._kept[key] = _Kept(version, owner, value)
        concerned = {(key[0], owner)}
        if before is not None and before.owner != owner:
            concerned.add(self._disown(key, before.owner))
        self._owned.setdefault((key[0], owner), set()).add(key[1])
        return concerned

    def _drop(self, key: Key, version: int) -> set[Key]:
        kept = self._kept.get(key)
        if kept is None or kept.version > version:
            return set()
        del self._kept[key]
        return {self._disown(key, kept.owner)}

    def _disown(self, key: Key, owner: str) -> Key:
        others = self._owned[key[0], owner]
        others.discard(key[1])
        if not others:
            del self._owned[key[0], owner]
        return key[0], owner


def key_of(thing: Json) -> Key:
    """Namespace and name."""
    return thing["metadata"]["namespace"], thing["metadata"]["name"]


def version_of(thing: Json) -> int:
    """The resourceVersion as the number that it is."""
    return int(thing["metadata"]["resourceVersion"])


def owner_of(thing: Json) -> str:
    """The name of the LLMDeployment that an object is labelled with; without the label, the object's own."""
    labels = thing["metadata"].get("labels") or {}
    name: str = labels.get(names.NAME_LABEL, thing["metadata"]["name"])
    return name
