"""A `Kube` over a real connection to a server of the test's own."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from kvtide_operator.edge.kube import Kube


@asynccontextmanager
async def connected(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[Kube]:
    """answer: to every request, whatever its method and path"""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as running:
        kube = Kube(client.ApiClient(client.Configuration(host=str(running.make_url("")).rstrip("/"))))
        yield kube
        await kube.close()
