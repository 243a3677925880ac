"""What the worker says while it starts and ends: lines for the person, or the log, in front of it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

# The kubelet shows what stands in this file in `kubectl describe pod`.
_TERMINATION_LOG_VARIABLE = "KVTIDE_TERMINATION_LOG"
_TERMINATION_LOG = "/dev/termination-log"


class Voice:
    """Lines with the seconds since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def say(self, line: str) -> None:
        """One line on standard output, at once."""
        print(f"{time.monotonic() - self._started:7.1f} s  {line}", flush=True)


def last_words(message: str) -> None:
    """Why the worker ends: one line on standard error, and in Kubernetes' termination log where there is one."""
    line = " ".join(message.split())
    print(f"kvtide serve: {line}", file=sys.stderr, flush=True)
    log = Path(os.environ.get(_TERMINATION_LOG_VARIABLE, _TERMINATION_LOG))
    if log.is_file() and os.access(log, os.W_OK):
        log.write_text(f"{line}\n", encoding="utf-8")
