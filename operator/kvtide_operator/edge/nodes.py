"""The nodes with their devices, and what pods on them take: read when a decision needs them, and kept for a while.

A large cluster's lists are megabytes.
"""

import logging
from dataclasses import replace

from kvtide_operator.edge.kept import Kept
from kvtide_operator.edge.kube import ApiError, Json, Kube
from kvtide_operator.plan.dra import offered_devices
from kvtide_operator.plan.nodes import NodeDevices
from kvtide_operator.plan.room import Claim

logger = logging.getLogger(__name__)

KEPT_S = 30.0
# Of dynamic resource allocation, from Kubernetes 1.34 on and before.
SLICES = ("ResourceSlice", "ResourceSlice v1beta1")
# What is free changes by the minute: pods come and go more often than nodes.
CLAIMS_KEPT_S = 10.0


class Nodes:
    """What was last read of the cluster's nodes, and of all its pods."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._kept = Kept(self._list, KEPT_S)
        self._claims = Kept(self._list_claims, CLAIMS_KEPT_S)

    async def read(self) -> tuple[NodeDevices, ...] | None:
        """All nodes, None where the operator has no right to list them. Raises ApiError where nobody answers.

        A list that takes longer than the caller waits is there for the next one.
        """
        return await self._kept.get()

    async def claims(self) -> tuple[Claim, ...] | None:
        """What the pods of all namespaces take; as `read` has it."""
        return await self._claims.get()

    async def _list(self) -> tuple[NodeDevices, ...] | None:
        try:
            nodes = [NodeDevices.parse(node) for node in await self._kube.list_all("Node", None)]
            offered = offered_devices(await self._slices())
            return tuple(replace(node, offered=offered.get(node.name, ())) for node in nodes)
        except ApiError as error:
            if error.status != 403:
                raise
            logger.info("nodes cannot be listed, so that device.memory must be given: %s", error)
            return None

    async def _slices(self) -> list[Json]:
        """What DRA drivers offer, in the newest version that is served; none where it is not, or may not be, read."""
        for kind in SLICES:
            try:
                return await self._kube.list_all(kind, None)
            except ApiError as error:
                if error.status not in (403, 404):
                    raise
                if error.status == 403:
                    logger.info("ResourceSlices cannot be listed, so that devices of DRA are not seen: %s", error)
        return []

    async def _list_claims(self) -> tuple[Claim, ...] | None:
        found: list[Claim] = []
        try:
            async for page in self._kube.pages("Pod", None):
                found += [claim for pod in page if (claim := Claim.parse(pod)) is not None]
        except ApiError as error:
            if error.status != 403:
                raise
            logger.info("the pods of all namespaces cannot be listed, so that nobody knows what is free: %s", error)
            return None
        return tuple(found)
