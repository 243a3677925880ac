"""Kubernetes events on a resource, de-duplicated: one object per reason and thing, whose count and message move."""

import hashlib
import logging
import uuid

from kvtide_operator.api import names
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.edge.kube import ApiError, Kube
from kvtide_operator.reconcile.actions import Event
from kvtide_operator.reconcile.pods import timestamp

logger = logging.getLogger(__name__)

MESSAGE_LIMIT = 1000
# The same words again within this time are counted, and told with the next: two who are at odds write every second.
QUIET_S = 30.0


class EventRecorder:
    """Counts what it has posted, so that a repeated event is a patch and not another object."""

    def __init__(self, kube: Kube, identity: str) -> None:
        self._kube = kube
        self._identity = identity
        # A container that restarts keeps its pod's name, and counts anew: its objects need names of their own.
        self._process = uuid.uuid4().hex
        self._counts: dict[str, int] = {}
        self._told: dict[str, tuple[str, float]] = {}

    def forget(self, uid: str) -> None:
        """Drops the counts of a resource that is gone."""
        self._counts = {key: count for key, count in self._counts.items() if not key.startswith(uid)}
        self._told = {key: told for key, told in self._told.items() if not key.startswith(uid)}

    async def post(self, resource: LLMDeployment, event: Event, now: float) -> None:
        """Posts one event. Events are news, not state: where one cannot be posted, a log line is enough."""
        key = f"{resource.uid}/{event.reason}/{event.about}"
        count = self._counts.get(key, 0) + 1
        self._counts[key] = count
        message, told_at = self._told.get(key, ("", float("-inf")))
        if event.message == message and now - told_at < QUIET_S:
            return
        self._told[key] = (event.message, now)
        digest = hashlib.sha256(f"{self._process}/{key}".encode()).hexdigest()[:16]
        name = f"{resource.name}.{digest}"
        changing = {"count": count, "lastTimestamp": timestamp(now), "message": event.message[:MESSAGE_LIMIT]}
        logger.info("%s/%s: %s: %s", resource.namespace, resource.name, event.reason, event.message)
        try:
            if count > 1:
                await self._patch_or_create(resource, event, name, changing, now)
            else:
                await self._kube.create(self._manifest(resource, event, name, changing, now))
        except ApiError as error:
            logger.warning("event %s of %s/%s: %s", event.reason, resource.namespace, resource.name, error)

    async def _patch_or_create(
        self, resource: LLMDeployment, event: Event, name: str, changing: dict[str, object], now: float
    ) -> None:
        try:
            await self._kube.merge("Event", resource.namespace, name, changing)
        except ApiError as error:
            if error.status != 404:  # the API server forgets events after an hour
                raise
            await self._kube.create(self._manifest(resource, event, name, changing, now))

    def _manifest(
        self, resource: LLMDeployment, event: Event, name: str, changing: dict[str, object], now: float
    ) -> dict[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": resource.namespace},
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": resource.name,
                "namespace": resource.namespace,
                "uid": resource.uid,
            },
            "type": event.type,
            "reason": event.reason,
            "source": {"component": names.FIELD_MANAGER},
            "reportingComponent": names.FIELD_MANAGER,
            "reportingInstance": self._identity,
            "firstTimestamp": timestamp(now),
            **changing,
        }
