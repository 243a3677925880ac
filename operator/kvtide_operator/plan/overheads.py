"""What processes of a model on a device were seen to take beside weights, pool and activations, for the next plan.

One entry per model and device, in a ConfigMap of the operator's namespace. An entry is the largest amount that workers
of one version were seen with: what is learned can make a plan smaller or larger, but never restarts a worker.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

# A worker that has just become ready may still give back what loading took.
SETTLED_AFTER_S = 60.0
# Amounts go up and down by pages and arenas: only what is more than this above an entry is a write.
_NOTEWORTHY = 1.01
# What is remembered was read every few seconds and may have missed a peak; and one allocator segment of torch on a
# GPU is 20 MiB (kLargeBuffer in c10/cuda/CUDACachingAllocator.h), which a worker takes or leaves as a whole.
_MARGIN_PERCENT = 5
_MARGIN_LEAST_BYTES = 20 << 20

_NOT_IN_A_KEY = re.compile(r"[^-._a-zA-Z0-9]+")
_LONGEST_KEY = 253


@dataclass(frozen=True)
class Sighting:
    """What one settled worker says. started_at in seconds since 1970, by the worker's own clock."""

    model: str
    device: str
    overhead_bytes: int
    version: str
    started_at: float


@dataclass(frozen=True)
class Overhead:
    """What is remembered of a model on a device.

    samples:         workers that it was seen on, at least
    version:         of those workers
    newest_started:  when the latest of them started, in seconds since 1970
    at:              when the amount was last raised, as a Kubernetes time
    """

    model: str
    device: str
    overhead_bytes: int
    samples: int
    version: str
    newest_started: float
    at: str

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON values."""
        return {
            "model": self.model,
            "device": self.device,
            "overheadBytes": self.overhead_bytes,
            "samples": self.samples,
            "workerVersion": self.version,
            "newestStarted": self.newest_started,
            "at": self.at,
        }


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
                overhead_bytes=int(data["overheadBytes"]),
                samples=int(data["samples"]),
                version=str(data["workerVersion"]),
                newest_started=float(data["newestStarted"]),
                at=str(data["at"]),
            )
        except (ValueError, KeyError, TypeError):
            continue
    return found


def planned_overhead(known: Overheads, model: str, device: str) -> int | None:
    """What to plan for: the remembered amount and a margin. None where nothing was measured."""
    entry = known.get(overhead_key(model, device))
    # Two names may share a key; one that was learned for another says nothing.
    if entry is None or (entry.model, entry.device) != (model, device):
        return None
    return entry.overhead_bytes + max(entry.overhead_bytes * _MARGIN_PERCENT // 100, _MARGIN_LEAST_BYTES)


def learn(known: Overheads, seen: Iterable[Sighting], at: str) -> dict[str, Overhead]:
    """The entries that these sightings change, by key.

    Of one version the largest amount counts. Workers of two versions may run side by side for months: the version of
    the worker that started last counts, so that they never take turns.
    """
    changed: dict[str, Overhead] = {}
    for sight in sorted(seen, key=lambda sight: sight.started_at):
        key = overhead_key(sight.model, sight.device)
        before = changed.get(key) or known.get(key)
        after = _learned(before, sight, at)
        if after != before:
            changed[key] = after
    return changed


def _learned(before: Overhead | None, sight: Sighting, at: str) -> Overhead:
    first = Overhead(sight.model, sight.device, sight.overhead_bytes, 1, sight.version, sight.started_at, at)
    if before is None or (before.model, before.device) != (sight.model, sight.device):
        return first
    newer = sight.started_at > before.newest_started
    if sight.version != before.version:
        return first if newer else before
    after = before
    if newer:
        after = replace(after, samples=before.samples + 1, newest_started=sight.started_at)
    if sight.overhead_bytes > before.overhead_bytes * _NOTEWORTHY:
        after = replace(after, overhead_bytes=sight.overhead_bytes, at=at)
    return after
