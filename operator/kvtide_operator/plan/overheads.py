"""What processes of a model on a device were seen to take beside weights, pool and activations, for the next plan.

One entry per model and device, in a ConfigMap of the operator's namespace. An entry is the largest amount that workers
of one image and version were seen with: what is learned can make a plan smaller or larger, but never restarts a worker.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvtide_sizing.devices.device import Device, DeviceKind

# A worker that has just become ready may still give back what loading took.
SETTLED_AFTER_S = 60.0
# Amounts go up and down by pages and arenas: only what is more than this above an entry is a write.
_NOTEWORTHY = 1.01
# What is remembered may have missed a peak: a worker reads its memory once a second. On a CPU that is the heap and the
# kernel's buffers of a burst, and going above the limit ends the process; on a GPU one allocator segment of torch is
# 20 MiB (kLargeBuffer in c10/cuda/CUDACachingAllocator.h), which a worker takes or leaves as a whole.
# By kind: percent, and bytes at least.
_MARGINS = {DeviceKind.CPU: (10, 48 << 20), DeviceKind.GPU: (5, 20 << 20)}

_NOT_IN_A_KEY = re.compile(r"[^-._a-zA-Z0-9]+")
_LONGEST_KEY = 253


@dataclass(frozen=True)
class Sighting:
    """What one settled worker says. created_at: its pod, in seconds since 1970, by the API server's clock."""

    model: str
    device: str
    overhead_bytes: int
    image: str
    version: str
    created_at: float


@dataclass(frozen=True)
class Kill:
    """A worker that the kernel ended for its memory, at this time in seconds since 1970."""

    model: str
    device: str
    image: str
    at: float


@dataclass(frozen=True)
class Overhead:
    """What is remembered of a model on a device.

    overhead_bytes:  None where a worker was killed for its memory, and none that is younger has taught anything yet
    image, version:  of the workers that it was seen on
    newest_created:  when the pod of the latest of them was created, in seconds since 1970
    killed_at:       when a worker was last killed for its memory, 0 where none was; older workers teach nothing
    at:              when the amount last changed, as a Kubernetes time
    """

    model: str
    device: str
    overhead_bytes: int | None
    image: str
    version: str
    newest_created: float
    at: str
    killed_at: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON values."""
        return {
            "model": self.model,
            "device": self.device,
            "overheadBytes": self.overhead_bytes,
            "image": self.image,
            "workerVersion": self.version,
            "newestCreated": self.newest_created,
            "at": self.at,
            "killedAt": self.killed_at,
        }

    def names(self, model: str, device: str) -> bool:
        """Whether it is of these: two names may share a key, and what was learned for one says nothing of the other."""
        return (self.model, self.device) == (model, device)


Overheads = Mapping[str, Overhead]


def overhead_key(model: str, device: str) -> str:
    """The key of a model on a device, such as smollm2-135m.cpu; what a ConfigMap's key cannot hold becomes a dash."""
    return _NOT_IN_A_KEY.sub("-", f"{model}.{device}")[-_LONGEST_KEY:]


def read_overheads(config_map: Mapping[str, Any] | None) -> dict[str, Overhead]:
    """The entries of a live ConfigMap. What cannot be read counts as absent, and is learned again."""
    found = {}
    for key, text in ((config_map or {}).get("data") or {}).items():
        try:
            data = json.loads(text)
            found[key] = Overhead(
                model=str(data["model"]),
                device=str(data["device"]),
                overhead_bytes=None if data["overheadBytes"] is None else int(data["overheadBytes"]),
                image=str(data["image"]),
                version=str(data["workerVersion"]),
                newest_created=float(data["newestCreated"]),
                at=str(data["at"]),
                killed_at=float(data["killedAt"]),
            )
        except (ValueError, KeyError, TypeError):
            continue
    return found


def planned_overhead(known: Overheads, model: str, device: Device, image: str) -> int | None:
    """What to plan for with this image: the remembered amount and a margin. None where nothing was measured."""
    entry = known.get(overhead_key(model, device.name))
    if entry is None or not entry.names(model, device.name) or entry.image != image or entry.overhead_bytes is None:
        return None
    percent, least = _MARGINS[device.kind]
    return entry.overhead_bytes + max(entry.overhead_bytes * percent // 100, least)


def learn(known: Overheads, seen: Iterable[Sighting], kills: Iterable[Kill], at: str) -> dict[str, Overhead]:
    """The entries that these workers change, by key.

    Of one version the largest amount counts. Workers of two versions may run side by side for months: the version of
    the worker that was created last counts, so that they never take turns. A kill says that what is remembered was too
    little: it is forgotten, and learned again from workers that are younger only.
    """
    changed: dict[str, Overhead] = {}
    for kill in kills:
        key = overhead_key(kill.model, kill.device)
        before = changed.get(key) or known.get(key)
        if before is None or (before.names(kill.model, kill.device) and kill.at > before.killed_at):
            changed[key] = Overhead(kill.model, kill.device, None, kill.image, "", kill.at, at, kill.at)
    for sight in sorted(seen, key=lambda sight: sight.created_at):
        key = overhead_key(sight.model, sight.device)
        before = changed.get(key) or known.get(key)
        after = _learned(before, sight, at)
        if after != before:
            changed[key] = after
    return changed


def _learned(before: Overhead | None, sight: Sighting, at: str) -> Overhead:
    first = Overhead(sight.model, sight.device, sight.overhead_bytes, sight.image, sight.version, sight.created_at, at)
    if before is None or not before.names(sight.model, sight.device):
        return first
    if sight.created_at <= before.killed_at:
        return before
    newer = sight.created_at > before.newest_created
    if (sight.image, sight.version) != (before.image, before.version) or before.overhead_bytes is None:
        return replace(first, killed_at=before.killed_at) if newer else before
    after = replace(before, newest_created=sight.created_at) if newer else before
    if sight.overhead_bytes > before.overhead_bytes * _NOTEWORTHY:
        after = replace(after, overhead_bytes=sight.overhead_bytes, at=at)
    return after
