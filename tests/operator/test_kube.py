"""What is asked of the API server, over a real connection: paths that names cannot leave, and lists in pages."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from kvtide_operator.edge.kube import PAGE, ApiError, Kube


class Server:
    """Says what it was asked; pods come two a page."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.raw_path.partition("?")[0], dict(request.query)))
        if request.path != "/api/v1/pods":
            return web.json_response({"metadata": {"name": "x"}})
        begin = int(request.query.get("continue", "0"))
        following = {"continue": str(begin + 2)} if begin < 4 else {}
        pods = [{"metadata": {"name": f"pod-{number}"}} for number in range(begin, min(begin + 2, 5))]
        return web.json_response({"metadata": following, "items": pods})


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def kube(server: Server) -> AsyncIterator[Kube]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.answer)
    async with TestServer(application) as running:
        connected = Kube(client.ApiClient(client.Configuration(host=str(running.make_url("")).rstrip("/"))))
        yield connected
        await connected.close()


@pytest.mark.parametrize(
    ("namespace", "name", "path"),
    [
        ("team", "chat-plan", "/api/v1/namespaces/team/configmaps/chat-plan"),
        ("team", "a.b", "/api/v1/namespaces/team/configmaps/a.b"),
        ("team", "a/../../secrets/b", "/api/v1/namespaces/team/configmaps/a%2F..%2F..%2Fsecrets%2Fb"),
        ("team/secrets", "a", "/api/v1/namespaces/team%2Fsecrets/configmaps/a"),
        ("team", "a?watch#b", "/api/v1/namespaces/team/configmaps/a%3Fwatch%23b"),
        ("team", "a%2Fb", "/api/v1/namespaces/team/configmaps/a%252Fb"),
    ],
)
async def test_a_name_is_one_segment_of_the_path(
    server: Server, kube: Kube, namespace: str, name: str, path: str
) -> None:
    await kube.get("ConfigMap", namespace, name)
    assert server.asked == [(path, {})]


@pytest.mark.parametrize(("namespace", "name"), [("..", "a"), ("team", ".."), ("team", ".")])
async def test_what_would_climb_is_not_asked(server: Server, kube: Kube, namespace: str, name: str) -> None:
    with pytest.raises(ApiError, match="no name"):
        await kube.get("ConfigMap", namespace, name)
    assert server.asked == []


async def test_a_list_is_read_page_by_page(server: Server, kube: Kube) -> None:
    found = await kube.list_all("Pod", None, "a=b")
    assert [pod["metadata"]["name"] for pod in found] == [f"pod-{number}" for number in range(5)]
    asked = {"labelSelector": "a=b", "limit": str(PAGE)}
    assert [query for _, query in server.asked] == [asked, asked | {"continue": "2"}, asked | {"continue": "4"}]
