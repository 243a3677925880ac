"""Starts everything in its order, and ends it: health first, then the Lease, then the queue and Kopf."""

import asyncio
import contextlib
import functools
import logging
import signal
import time
from dataclasses import dataclass
from typing import Any

import kopf

from kvtide_operator.admission.server import serve_admission
from kvtide_operator.api import names
from kvtide_operator.edge.canary import METADATA, Canary
from kvtide_operator.edge.cluster import Cluster
from kvtide_operator.edge.controller import Controller
from kvtide_operator.edge.handlers import Memo, kopf_settings, registry
from kvtide_operator.edge.health import Health, serve_health, serve_metrics
from kvtide_operator.edge.kube import ApiError, Kube
from kvtide_operator.edge.lease import Lease
from kvtide_operator.edge.lookout import Lookout
from kvtide_operator.edge.metrics import Metrics
from kvtide_operator.edge.queue import WorkQueue
from kvtide_operator.edge.sampler import Sampler
from kvtide_operator.edge.store import Key
from kvtide_operator.edge.worker_client import WorkerClient
from kvtide_operator.settings import OperatorSettings

logger = logging.getLogger(__name__)

# How long a watch may be silent, or owe an event: a few of the bookmarks that the API server sends each minute, so
# that a connection which was made anew has had its time too.
ECHO_S = 240.0
# What a calm worker says makes for a look a little sooner than busy resources are looked at.
CALM_SHARE = 0.75
# A look does not ask again what was answered in less time than that between two looks at a busy resource, which are
# never closer than 0.85 of the interval: so it takes what calm workers said at last, and asks busy ones.
FRESH_SHARE = 0.8
# How long a loop may be silent before the kubelet is told: far above any timeout within it.
SILENCE_S = 120.0


@dataclass(frozen=True)
class _Parts:
    """What works while the Lease is held."""

    kube: Kube
    lease: Lease
    queue: WorkQueue
    cluster: Cluster
    canary: Canary


def run_operator(settings: OperatorSettings) -> int:
    """Runs until SIGTERM (exit status 0), or until the Lease is lost or something breaks (1)."""
    with contextlib.suppress(asyncio.CancelledError):
        return asyncio.run(_run(settings))
    return 0


async def _run(settings: OperatorSettings) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    kube = await Kube.connect()
    metrics = Metrics()

    def wake(resource: Key) -> None:
        queue.request(*resource)

    workers = WorkerClient()
    cluster = Cluster(kube, settings.namespaces, wake)
    sampler = Sampler(workers, settings.resync_seconds * FRESH_SHARE)
    lookout = Lookout(sampler, settings.resync_seconds * CALM_SHARE, wake)
    controller = Controller(kube, cluster, workers, lookout, settings, metrics)
    queue = WorkQueue(controller.reconcile)
    canary = Canary(kube, settings.namespaces, cluster.resources, wake)
    lease = Lease(kube.aside(), settings.operator_namespace, settings.lease_name, settings.identity)
    health = Health({"lease": (lambda: lease.heartbeat, SILENCE_S)})
    servers = [
        await serve_health(health, settings.health_port),
        await serve_metrics(metrics.registry, settings.metrics_port),
    ]
    if settings.admission is not None:
        servers.append(await serve_admission(kube, settings, settings.admission, lambda: lease.held, metrics.registry))
    try:
        parts = _Parts(kube, lease, queue, cluster, canary)
        work = asyncio.create_task(_work(settings, parts, health, metrics, stop))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return _verdict(work)
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        return 0
    finally:
        await lease.release()
        for server in servers:
            await server.cleanup()
        await lookout.close()
        await controller.close()
        await workers.close()
        await kube.close()


def _verdict(work: "asyncio.Task[None]") -> int:
    error = work.exception()
    if error is not None:
        logger.error("stopping: %s", error, exc_info=error)
    return 0 if error is None else 1


async def _work(
    settings: OperatorSettings, parts: _Parts, health: Health, metrics: Metrics, stop: asyncio.Event
) -> None:
    lease, queue = parts.lease, parts.queue
    await _wait_for_crd(parts.kube, settings, lease)
    health.ready = True
    await lease.acquire()
    logger.info("serving LLMDeployments of %s", ", ".join(settings.namespaces) or "all namespaces")
    metrics.watched(settings.namespaces)
    async with asyncio.TaskGroup() as group:
        group.create_task(lease.keep())
        group.create_task(parts.cluster.run())
        await parts.cluster.synced()
        queue.heartbeat = time.monotonic()
        health.beats["queue"] = (lambda: queue.heartbeat, SILENCE_S)
        health.beats[f"watch of {names.KIND}s"] = (parts.canary.beat, ECHO_S)
        for kind in {reflector.kind for reflector in parts.cluster.reflectors}:
            health.beats[f"watch of {kind}s"] = (functools.partial(parts.cluster.heard_at, kind), ECHO_S)
        group.create_task(queue.run())
        group.create_task(parts.canary.run())
        group.create_task(_watch(settings, parts, stop))


async def _wait_for_crd(kube: Kube, settings: OperatorSettings, lease: Lease) -> None:
    """Kopf finds kinds at its start only, so the kind must be there by then."""
    while True:
        lease.heartbeat = time.monotonic()
        try:
            for namespace in settings.namespaces or (None,):
                async for _ in kube.lists(names.KIND, namespace, accept=METADATA):
                    break
            return
        except ApiError as error:
            logger.warning("LLMDeployments cannot be listed (is the CRD installed?): %s", error)
            await asyncio.sleep(3)


async def _watch(settings: OperatorSettings, parts: _Parts, stop: asyncio.Event) -> None:
    """Kopf, until it ends: from here on SIGTERM comes to it, and its end is ours."""
    scope = {"namespaces": settings.namespaces} if settings.namespaces else {"clusterwide": True}
    memo = Memo(queue=parts.queue, canary=parts.canary, resources=parts.cluster.resources, identities={})
    # Left to itself Kopf asks for the user's name, and the pod's user has none. Its type of identity is private.
    identity: Any = settings.identity
    await kopf.operator(registry=registry(), settings=kopf_settings(), memo=memo, identity=identity, **scope)
    stop.set()
