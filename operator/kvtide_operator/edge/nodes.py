"""The nodes, read when a plan needs them, and kept for half a minute: a large cluster's list is megabytes."""

import logging

from kvtide_operator.edge.kept import Kept
from kvtide_operator.edge.kube import ApiError, Kube
from kvtide_operator.plan.nodes import NodeDevices

logger = logging.getLogger(__name__)

KEPT_S = 30.0


class Nodes:
    """What was last read of the cluster's nodes."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._kept = Kept(self._list, KEPT_S)

    async def read(self) -> tuple[NodeDevices, ...] | None:
        """All nodes, None where the operator has no right to list them. Raises ApiError where nobody answers.

        A list that takes longer than the caller waits is there for the next one.
        """
        return await self._kept.get()

    async def _list(self) -> tuple[NodeDevices, ...] | None:
        try:
            return tuple(NodeDevices.parse(node) for node in await self._kube.list_all("Node", None))
        except ApiError as error:
            if error.status != 403:
                raise
            logger.info("nodes cannot be listed, so that device.memory must be given: %s", error)
            return None
