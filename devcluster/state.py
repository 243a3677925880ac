"""What is up, as one file: ports, processes, forwards, and what must be put back. And the lock around changing it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from devcluster.paths import HOME, RUN
from devcluster.process import Process

STATE_FILE = RUN / "state.json"


@dataclass(frozen=True)
class Forward:
    """A port on 127.0.0.1 and the address inside the cluster's network that it leads to."""

    port: int
    address: str
    process: Process


@dataclass
class State:
    """Everything `down` needs to know. It is saved after every step, so that a broken `up` can be taken down too."""

    boot_id: str
    created: float
    processes: dict[str, Process] = field(default_factory=dict)
    forwards: dict[str, Forward] = field(default_factory=dict)
    sysctls: dict[str, str] = field(default_factory=dict)

    @classmethod
    def new(cls) -> State:
        return cls(boot_id=boot_id(), created=time.time())

    @classmethod
    def load(cls) -> State | None:
        """The state of the cluster that is up, or None."""
        if not STATE_FILE.exists():
            return None
        raw = json.loads(STATE_FILE.read_text())
        raw["processes"] = {name: _process(entry) for name, entry in raw["processes"].items()}
        raw["forwards"] = {
            name: Forward(entry["port"], entry["address"], _process(entry["process"]))
            for name, entry in raw["forwards"].items()
        }
        return cls(**raw)

    def save(self) -> None:
        RUN.mkdir(parents=True, exist_ok=True)
        partial = STATE_FILE.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self), indent=2))
        os.replace(partial, STATE_FILE)

    @property
    def from_this_boot(self) -> bool:
        """False after a reboot: then pids, mounts and namespaces are gone, and only files are left of it."""
        return self.boot_id == boot_id()


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def required() -> State:
    """The state of the running cluster. Raises RuntimeError where there is none."""
    state = State.load()
    if state is None:
        raise RuntimeError("the cluster is not up: start it with `python -m devcluster up`")
    return state


@contextmanager
def locked(what: str = "cluster") -> Iterator[None]:
    """One command at a time changes the cluster, or the images; a second one waits here."""
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / f"{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _process(raw: dict[str, Any]) -> Process:
    return Process(raw["pid"], raw["start_ticks"], tuple(raw["command"]))
