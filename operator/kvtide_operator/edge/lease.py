"""The Lease that lets one operator work at a time; a second one waits for it."""

import asyncio
import datetime
import logging
import time
from dataclasses import dataclass, field
from typing import Any

from kvtide_operator.edge.kube import ApiError, Json, Kube

logger = logging.getLogger(__name__)

DURATION_S = 15
RENEW_S = 4.0
# Stops working before others may begin: they count from the last renewal that they saw.
GIVE_UP_S = 10.0
RETRY_S = 2.0


class LeaseLost(Exception):
    """Could not renew in time: another operator may hold the Lease now."""


@dataclass
class Lease:
    """One candidate for the Lease `name`.

    Clocks of other machines are not trusted: a foreign holder counts as gone when its Lease has not changed for its
    whole duration while this process watched.
    """

    kube: Kube
    namespace: str
    name: str
    identity: str
    heartbeat: float = field(default_factory=time.monotonic)
    held: bool = False
    _seen: tuple[str, float] = ("", 0.0)

    async def acquire(self) -> None:
        """Waits until this process holds the Lease."""
        told = False
        while not await self._try():
            if not told:
                logger.info("waiting for the Lease %s/%s", self.namespace, self.name)
                told = True
            await asyncio.sleep(RETRY_S)
        self.held = True
        logger.info("holding the Lease %s/%s as %s", self.namespace, self.name, self.identity)

    async def keep(self) -> None:
        """Renews until cancelled. Raises LeaseLost."""
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                # The bound holds for a request that hangs, too.
                async with asyncio.timeout(renewed + GIVE_UP_S - time.monotonic()):
                    renewed = await self._renew()
            except TimeoutError:
                self.held = False
                raise LeaseLost(f"the Lease {self.namespace}/{self.name} could not be renewed") from None

    async def _renew(self) -> float:
        """Tries until it is renewed; gives when the request that did it was sent: others count from there."""
        while True:
            asked = time.monotonic()
            if await self._try():
                return asked
            await asyncio.sleep(RETRY_S)

    async def release(self) -> None:
        """Gives the Lease back, so that the next operator need not wait for it to run out."""
        if not self.held:
            return
        self.held = False
        try:
            lease = await self.kube.get("Lease", self.namespace, self.name)
            if lease is not None and lease["spec"].get("holderIdentity") == self.identity:
                lease["spec"]["holderIdentity"] = ""
                lease["spec"]["leaseDurationSeconds"] = 1
                await self.kube.replace(lease)
        except ApiError as error:
            logger.warning("the Lease could not be given back: %s", error)

    async def _try(self) -> bool:
        """One attempt to take or renew it; a conflict or an API server that does not answer is no success."""
        self.heartbeat = time.monotonic()
        try:
            lease = await self.kube.get("Lease", self.namespace, self.name)
            if lease is None:
                await self.kube.create(self._manifest())
                return True
            if not self._free(lease):
                return False
            lease["spec"] = {**lease.get("spec", {}), **self._claim(lease)}
            await self.kube.replace(lease)
            return True
        except ApiError as error:
            log = logger.debug if error.status == 409 else logger.warning
            log("the Lease: %s", error)
            return False

    def _free(self, lease: Json) -> bool:
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity")
        if not holder or holder == self.identity:
            return True
        version = lease["metadata"]["resourceVersion"]
        if self._seen[0] != version:
            self._seen = (version, time.monotonic())
        return time.monotonic() - self._seen[1] > float(spec.get("leaseDurationSeconds") or DURATION_S)

    def _claim(self, lease: Json | None = None) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = (lease or {}).get("spec") or {}
        claim = {"holderIdentity": self.identity, "leaseDurationSeconds": DURATION_S, "renewTime": now}
        if spec.get("holderIdentity") != self.identity:
            claim["acquireTime"] = now
            claim["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (1 if lease else 0)
        return claim

    def _manifest(self) -> Json:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": self._claim(),
        }
