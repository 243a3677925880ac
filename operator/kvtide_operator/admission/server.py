"""The webhook's HTTPS server, in every replica, a standby too. What fails in it admits: it never blocks a cluster."""

import asyncio
import contextlib
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry

from kvtide_operator.admission.keeper import Keeper
from kvtide_operator.admission.known import Sources
from kvtide_operator.admission.metrics import AdmissionMetrics
from kvtide_operator.admission.request import Answer, NotAReview, Request
from kvtide_operator.admission.review import review
from kvtide_operator.edge.kube import Kube
from kvtide_operator.settings import AdmissionSettings, OperatorSettings

logger = logging.getLogger(__name__)

PATH = "/review"
# The API server itself waits for the configuration's timeoutSeconds; an answer without a judgement comes before.
ANSWER_WITHIN_S = 1.0
# An object may have 3 MiB in a request to the API server, and an update carries two.
LARGEST_BODY = 8 << 20

Judge = Callable[[Request], Awaitable[Answer]]


async def serve_admission(
    kube: Kube,
    settings: OperatorSettings,
    names: AdmissionSettings,
    writes: Callable[[], bool],
    registry: CollectorRegistry,
) -> web.AppRunner:
    """Serves, and keeps the certificates, until the runner is cleaned up.

    writes: whether this replica holds the Lease, and so makes the certificates. Before there are any, no handshake
    succeeds, and the API server admits without asking.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    keeper = Keeper(kube, names, settings.operator_namespace, writes, context)
    sources = Sources(kube, settings)

    async def judge(request: Request) -> Answer:
        return review(request, await sources.look(request))

    async def keep(_: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(keeper.keep())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    application = reviewing(judge, AdmissionMetrics(registry))
    application.cleanup_ctx.append(keep)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=names.port, ssl_context=context).start()
    return runner


def reviewing(judge: Judge, metrics: AdmissionMetrics) -> web.Application:
    """POST /review: an AdmissionReview for an AdmissionReview; 400 for anything else."""

    async def answer(request: web.Request) -> web.Response:
        began = time.monotonic()
        try:
            asked = Request.parse(json.loads(await request.read()))
        except (ValueError, NotAReview) as error:
            return web.Response(status=400, text=f"{error}\n")
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                found = await judge(asked)
            result = "allowed" if found.allowed else "denied"
        except Exception as error:
            logger.exception("%s/%s is admitted without a judgement", asked.namespace, asked.name)
            found, result = _unjudged(error), "failed"
        metrics.reviewed(result, time.monotonic() - began)
        return web.json_response(found.to_review(asked.uid))

    application = web.Application(client_max_size=LARGEST_BODY)
    application.add_routes([web.post(PATH, answer)])
    return application


def _unjudged(error: Exception) -> Answer:
    words = f"whether it fits could not be judged here ({type(error).__name__}): see the condition Planned"
    return Answer(True, warnings=(words,))
