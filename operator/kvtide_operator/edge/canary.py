"""Whether events really arrive. A watch that stalls looks like a quiet cluster, so a quiet one is made to speak.

Where a kind has been silent for a while, one object of it is touched: the operator's own watch must tell of that, or
the kubelet is told that the operator is not well. Nothing is written where events come by themselves.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kvtide_operator.api import names
from kvtide_operator.edge.kube import ApiError, Kube
from kvtide_operator.reconcile.pods import timestamp

logger = logging.getLogger(__name__)

# How long a kind may be silent before one of its objects is touched, and how often that is looked at.
QUIET_S = 60.0
LOOK_S = 10.0

KINDS = (names.KIND, "Deployment", "Pod")
Touch = Callable[[str, str, str], Awaitable[None]]


@dataclass
class _Watched:
    """One kind. Times by the monotonic clock; `touched_at` is that of the first touch that was not echoed yet."""

    heard_at: float
    touched_at: float | None = None
    known: set[tuple[str, str]] = field(default_factory=set)


class Canary:
    """What was heard of each kind. `touch` writes something harmless to the object of a kind, namespace and name."""

    def __init__(self, touch: Touch) -> None:
        self._touch = touch
        self._watched = {kind: _Watched(time.monotonic()) for kind in KINDS}

    def heard(self, kind: str, namespace: str, name: str, gone: bool) -> None:
        """An event has come, whatever it says."""
        watched = self._watched[kind]
        watched.heard_at, watched.touched_at = time.monotonic(), None
        (watched.known.discard if gone else watched.known.add)((namespace, name))

    def beat(self, kind: str) -> float:
        """When it last was certain that this kind's events arrive: now, unless a touch has not come back yet."""
        touched_at = self._watched[kind].touched_at
        return time.monotonic() if touched_at is None else touched_at

    async def run(self) -> None:
        """Touches what is silent, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            for kind in KINDS:
                await self.look(kind)

    async def look(self, kind: str) -> None:
        """One look at one kind."""
        watched = self._watched[kind]
        asked_at = time.monotonic()
        if asked_at - watched.heard_at < QUIET_S or not watched.known:
            return
        namespace, name = min(watched.known)
        try:
            await self._touch(kind, namespace, name)
        except ApiError as error:
            # Gone, and nobody said so: then another object must answer. Any other error is the API server's matter.
            if error.status == 404:
                watched.known.discard((namespace, name))
            else:
                logger.warning("canary: %s %s/%s: %s", kind, namespace, name, error)
            return
        # The echo may have come while the answer was on its way.
        if watched.heard_at < asked_at and watched.touched_at is None:
            watched.touched_at = asked_at


def touch_through(kube: Kube) -> Touch:
    """Touches an object with the rights that the operator has anyway."""

    async def touch(kind: str, namespace: str, name: str) -> None:
        now = timestamp(time.time())
        if kind == names.KIND:
            await kube.merge(kind, namespace, name, {"status": {"watchedAt": now}}, "/status")
        else:
            await kube.merge(kind, namespace, name, {"metadata": {"annotations": {names.WATCHED_ANNOTATION: now}}})

    return touch
