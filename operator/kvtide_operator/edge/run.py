"""Starts everything in its order, and ends it: health first, then the Lease, then the queue and Kopf."""

import asyncio
import contextlib
import functools
import logging
import signal
import time
from typing import Any

import kopf

from kvtide_operator.admission.server import serve_admission
from kvtide_operator.api import names
from kvtide_operator.edge.canary import KINDS, Canary, touch_through
from kvtide_operator.edge.controller import Controller
from kvtide_operator.edge.handlers import Memo, kopf_settings, registry
from kvtide_operator.edge.health import Health, serve_health, serve_metrics
from kvtide_operator.edge.kube import ApiError, Kube
from kvtide_operator.edge.lease import Lease
from kvtide_operator.edge.metrics import Metrics
from kvtide_operator.edge.queue import WorkQueue
from kvtide_operator.settings import OperatorSettings

logger = logging.getLogger(__name__)

# A watch that stalls silently costs at most this much: everything is listed again.
RELIST_S = 60.0
# How long an object that was touched may take to come back through a watch: two of Kopf's reconnects.
ECHO_S = 150.0
# How long a loop may be silent before the kubelet is told: far above any timeout within it.
SILENCE_S = 120.0


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
    controller = Controller(kube, settings, metrics)
    queue = WorkQueue(controller.reconcile)
    lease = Lease(kube, settings.operator_namespace, settings.lease_name, settings.identity)
    health = Health({"lease": (lambda: lease.heartbeat, SILENCE_S)})
    servers = [
        await serve_health(health, settings.health_port),
        await serve_metrics(metrics.registry, settings.metrics_port),
    ]
    if settings.admission is not None:
        servers.append(await serve_admission(kube, settings, settings.admission, lambda: lease.held, metrics.registry))
    try:
        work = asyncio.create_task(_work(settings, kube, lease, queue, health, metrics, stop))
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
        await controller.close()
        await kube.close()


def _verdict(work: "asyncio.Task[None]") -> int:
    error = work.exception()
    if error is not None:
        logger.error("stopping: %s", error, exc_info=error)
    return 0 if error is None else 1


async def _work(
    settings: OperatorSettings,
    kube: Kube,
    lease: Lease,
    queue: WorkQueue,
    health: Health,
    metrics: Metrics,
    stop: asyncio.Event,
) -> None:
    await _wait_for_crd(kube, settings, lease)
    health.ready = True
    await lease.acquire()
    queue.heartbeat = time.monotonic()
    health.beats["queue"] = (lambda: queue.heartbeat, SILENCE_S)
    canary = Canary(touch_through(kube))
    for kind in KINDS:
        health.beats[f"watch of {kind}s"] = (functools.partial(canary.beat, kind), ECHO_S)
    logger.info("serving LLMDeployments of %s", ", ".join(settings.namespaces) or "all namespaces")
    metrics.watched(settings.namespaces)
    async with asyncio.TaskGroup() as group:
        group.create_task(lease.keep())
        group.create_task(queue.run())
        group.create_task(_relist(settings, kube, queue))
        group.create_task(canary.run())
        group.create_task(_watch(settings, queue, canary, stop))


async def _wait_for_crd(kube: Kube, settings: OperatorSettings, lease: Lease) -> None:
    """Kopf finds kinds at its start only, so the kind must be there by then."""
    while True:
        lease.heartbeat = time.monotonic()
        try:
            for namespace in settings.namespaces or (None,):
                await kube.list_all(names.KIND, namespace)
            return
        except ApiError as error:
            logger.warning("LLMDeployments cannot be listed (is the CRD installed?): %s", error)
            await asyncio.sleep(3)


async def _relist(settings: OperatorSettings, kube: Kube, queue: WorkQueue) -> None:
    while True:
        try:
            for namespace in settings.namespaces or (None,):
                for item in await kube.list_all(names.KIND, namespace):
                    queue.request(item["metadata"]["namespace"], item["metadata"]["name"])
        except ApiError as error:
            logger.warning("listing: %s", error)
        await asyncio.sleep(RELIST_S)


async def _watch(settings: OperatorSettings, queue: WorkQueue, canary: Canary, stop: asyncio.Event) -> None:
    """Kopf, until it ends: from here on SIGTERM comes to it, and its end is ours."""
    scope = {"namespaces": settings.namespaces} if settings.namespaces else {"clusterwide": True}
    memo = Memo(queue=queue, canary=canary, generations={})
    # Left to itself Kopf asks for the user's name, and the pod's user has none. Its type of identity is private.
    identity: Any = settings.identity
    await kopf.operator(registry=registry(), settings=kopf_settings(), memo=memo, identity=identity, **scope)
    stop.set()
