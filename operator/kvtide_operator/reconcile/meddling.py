"""What somebody else did to children: said in an event, so that an edit is never undone without a word."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvtide_operator.api import names
from kvtide_operator.children.manifest import Manifest
from kvtide_operator.reconcile.actions import Event
from kvtide_operator.reconcile.diff import difference
from kvtide_operator.reconcile.observed import Observed

REVERTED = "ChildReverted"
REMADE = "ChildRemade"
# What comes first in a manifest says least: labels of ours, then the fields.
_FIRST = ("spec", "data", "metadata")


def meddling(observed: Observed, changed: Iterable[Manifest]) -> Iterator[Event]:
    """An event for each child that is written now because somebody else changed or deleted it.

    changed: the children that this pass writes
    """
    for manifest in changed:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        live = observed.child(kind, name)
        if live is None:
            if (kind, name) in observed.lost:
                yield Event("Warning", REMADE, f"{kind} {name} was deleted and is made again", about=f"{kind}/{name}")
        elif _applied(live) == _applied(manifest):
            # What the operator last wrote is what it wants now, so it was somebody else.
            field = _field(manifest, live)
            who = _last_writer(live)
            told = f"{kind} {name}: {field} was changed{who} and is changed back; write it in the LLMDeployment's spec"
            yield Event("Warning", REVERTED, told, about=f"{kind}/{name}/{field}")


def _applied(manifest: Mapping[str, Any]) -> str | None:
    return (manifest["metadata"].get("annotations") or {}).get(names.APPLIED_ANNOTATION)


def _field(wanted: Manifest, live: Mapping[str, Any]) -> str:
    found = (difference(wanted[part], live.get(part), part) for part in _FIRST if part in wanted)
    return next((field for field in found if field is not None), "something")


def _last_writer(live: Mapping[str, Any]) -> str:
    """Who last wrote to the object beside us, as far as its managed fields say."""
    others = [
        entry
        for entry in live["metadata"].get("managedFields") or []
        if entry.get("manager") != names.FIELD_MANAGER and not entry.get("subresource")
    ]
    last = max(others, key=lambda entry: str(entry.get("time", "")), default=None)
    return f" by {last['manager']}" if last and last.get("manager") else ""
