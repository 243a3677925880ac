"""One pass with its reading and writing around it: what the work queue calls."""

import logging
import random
import secrets
import time

import pydantic

from kvtide_operator.api import names
from kvtide_operator.api.resource import LLMDeployment, last_status
from kvtide_operator.children.secret import token_of
from kvtide_operator.children.worker_template import admin_secret_name
from kvtide_operator.edge.apply import carry_out, write_status
from kvtide_operator.edge.cluster import Cluster
from kvtide_operator.edge.events import EventRecorder
from kvtide_operator.edge.kube import Json, Kube
from kvtide_operator.edge.lookout import Lookout
from kvtide_operator.edge.metrics import Metrics
from kvtide_operator.edge.nodes import Nodes
from kvtide_operator.edge.observe import Observer
from kvtide_operator.edge.overheads import OverheadStore
from kvtide_operator.edge.worker_client import WorkerClient
from kvtide_operator.reconcile.actions import Actions
from kvtide_operator.reconcile.broken import failed_pass, unreadable_spec
from kvtide_operator.reconcile.looks import RESTING_S
from kvtide_operator.reconcile.observed import Observed, Surroundings
from kvtide_operator.reconcile.planning import renders_for_devices
from kvtide_operator.reconcile.reconcile import reconcile
from kvtide_operator.reconcile.rollout import wants_room
from kvtide_operator.reconcile.status import with_troubles
from kvtide_operator.settings import OperatorSettings

logger = logging.getLogger(__name__)

# How long before the next look calm workers give their last word, which that look then takes.
LAST_WORD_S = 0.3


class Controller:
    """Holds the connections; remembers nothing about resources but what it has posted and exported."""

    def __init__(
        self,
        kube: Kube,
        cluster: Cluster,
        workers: WorkerClient,
        lookout: Lookout,
        settings: OperatorSettings,
        metrics: Metrics,
    ) -> None:
        self._cluster = cluster
        self._lookout = lookout
        self._settings = settings
        self._metrics = metrics
        self._workers = workers
        self._observer = Observer(kube, cluster, workers, lookout.sampler)
        self._events = EventRecorder(kube, settings.identity)
        self._nodes = Nodes(kube)
        self._overheads = OverheadStore(kube, settings.operator_namespace, settings.overheads_name)
        self._uids: dict[tuple[str, str], str] = {}

    async def close(self) -> None:
        """Ends what is still being asked."""
        await self._observer.close()

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """One pass over one resource: seconds until the next, None once it is gone.

        What goes wrong in it is that resource's: it is said in its status, counted, and raised for the queue to
        try again.
        """
        document = self._cluster.get(names.KIND, namespace, name)
        self._lookout.leave((namespace, name))
        if document is None or "deletionTimestamp" in document["metadata"]:
            self._forget(namespace, name)
            return None
        self._uids[(namespace, name)] = document["metadata"]["uid"]
        began = time.monotonic()
        try:
            return await self._pass(document)
        except Exception as error:
            self._metrics.failed(namespace, name)
            await self._tell(document, error)
            raise
        finally:
            took = time.monotonic() - began
            logger.debug("%s/%s: a pass of %.3f s", namespace, name, took)
            self._metrics.passed(namespace, name, took)

    async def _pass(self, document: Json) -> float | None:
        now = time.time()
        try:
            resource = LLMDeployment.parse(document)
        except pydantic.ValidationError as error:
            generation = document["metadata"]["generation"]
            status = unreadable_spec(last_status(document), generation, error, now)
            await write_status(self._cluster, document, status)
            return RESTING_S
        observed = await self._observer.observe(resource)
        room = wants_room(observed)
        nodes = await self._nodes.read() if room or renders_for_devices(observed) else None
        claims = await self._nodes.claims() if room and nodes is not None else None
        surroundings = Surroundings(
            worker_image=self._settings.worker_image,
            operator_namespace=self._settings.operator_namespace,
            fresh_token=secrets.token_urlsafe(32),
            resync_s=self._settings.resync_seconds,
            nodes=nodes,
            claims=claims,
            overheads=await self._overheads.read(),
        )
        actions = reconcile(observed, surroundings, now)
        strangers = await self._observer.strangers(observed, (*actions.apply, *actions.create))
        if strangers is not None:
            observed = strangers
            actions = reconcile(observed, surroundings, now)
        troubles = await carry_out(self._cluster, self._workers, observed, actions)
        status = with_troubles(actions.status, resource.status, resource.generation, troubles, now)
        wrote = await write_status(self._cluster, document, status)
        if actions.learned:
            await self._overheads.write(actions.learned)
        self._metrics.report(resource, status, actions.decision)
        for event in actions.events:
            await self._events.post(resource, event, now)
        return self._next_look(observed, actions, wrote or bool(troubles))

    def _next_look(self, observed: Observed, actions: Actions, unsettled: bool) -> float:
        """Seconds until the next pass. Between two over a calm resource, its workers are looked after."""
        if unsettled:
            return min(actions.requeue_s, self._settings.resync_seconds)
        resource = observed.resource
        token = token_of(observed.child("Secret", admin_secret_name(resource)))
        there = {pod.name: pod.ip for pod in observed.ready if pod.ip and pod.name in observed.samples}
        # Not all at once, even where all began at once.
        again_s = actions.requeue_s * random.uniform(0.85, 1.15)  # noqa: S311
        if actions.requeue_s > self._settings.resync_seconds and token is not None and there:
            key, for_s = (resource.namespace, resource.name), again_s - LAST_WORD_S
            self._lookout.watch(key, token, there, observed.samples, for_s)
        return again_s

    async def _tell(self, document: Json, error: Exception) -> None:
        """Says in the status that the pass failed. Where even that fails, the log of the first error is enough."""
        try:
            resource = LLMDeployment.parse(document)
            await write_status(self._cluster, document, failed_pass(resource, error, time.time()))
        except Exception as second:
            metadata = document["metadata"]
            logger.warning("%s/%s: no status: %s", metadata["namespace"], metadata["name"], second)

    def _forget(self, namespace: str, name: str) -> None:
        self._metrics.forget(namespace, name)
        uid = self._uids.pop((namespace, name), None)
        if uid is not None:
            self._events.forget(uid)
            self._observer.forget((namespace, name), uid)
