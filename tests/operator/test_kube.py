"""What is asked of the API server, over a real connection: paths that names cannot leave, and lists in pages."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from kubernetes.aio import client

from kvtide_operator.edge import kube as edge_kube
from kvtide_operator.edge.kube import PAGE, TRIES, ApiError, Kube
from tests.operator.connection import connected


class Server:
    """Says what it was asked; pods come two a page. Refuses as often as it is told to, by status and Retry-After.

    text: it serves nothing, and says so
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.refusals: list[tuple[int, str | None]] = []
        self.text: str | None = None

    async def answer(self, request: web.Request) -> web.Response:
        if self.text is not None:
            return web.Response(text=self.text, status=404)
        self.asked.append((request.raw_path.partition("?")[0], dict(request.query)))
        if self.refusals:
            status, retry_after = self.refusals.pop(0)
            headers = {"Retry-After": retry_after} if retry_after else {}
            return web.json_response({"message": f"refused with {status}"}, status=status, headers=headers)
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
    async with connected(server.answer) as kube:
        yield kube


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


MANIFEST = {"kind": "ConfigMap", "metadata": {"namespace": "team", "name": "a", "resourceVersion": "1"}}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited before each further try; no time passes."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(edge_kube.asyncio, "sleep", sleep)
    return waited


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_what_passes_by_itself_is_asked_again(
    server: Server, kube: Kube, waits: list[float], status: int
) -> None:
    server.refusals = [(status, None), (status, None)]
    assert await kube.get("ConfigMap", "team", "a") == {"metadata": {"name": "x"}}
    assert len(server.asked) == 3
    assert 0.1 <= waits[0] <= 0.3
    assert 0.2 <= waits[1] <= 0.6  # twice as long, and half of it either way


async def test_the_servers_own_wish_is_waited_for(server: Server, kube: Kube, waits: list[float]) -> None:
    server.refusals = [(429, "3")]
    await kube.get("ConfigMap", "team", "a")
    assert waits == [3.0]


async def test_a_wish_too_long_to_wait_for_is_left_to_the_queue(server: Server, kube: Kube, waits: list[float]) -> None:
    server.refusals = [(429, "60")]
    with pytest.raises(ApiError) as refusal:
        await kube.get("ConfigMap", "team", "a")
    assert (refusal.value.status, refusal.value.retry_after_s, waits) == (429, 60.0, [])


async def test_it_is_not_asked_for_ever(server: Server, kube: Kube, waits: list[float]) -> None:
    server.refusals = [(503, None)] * 99
    with pytest.raises(ApiError, match="refused with 503"):
        await kube.get("ConfigMap", "team", "a")
    assert len(server.asked) == TRIES


@pytest.mark.parametrize(("status", "tries"), [(400, 1), (403, 1), (422, 1), (409, 2)])
async def test_a_patch_that_met_another_write_is_made_again_and_no_other_refusal(
    server: Server, kube: Kube, waits: list[float], status: int, tries: int
) -> None:
    server.refusals = [(status, None)]
    if tries == 1:
        with pytest.raises(ApiError, match=f"refused with {status}"):
            await kube.apply(MANIFEST)
    else:
        await kube.apply(MANIFEST)
    assert len(server.asked) == tries


@pytest.mark.parametrize(("status", "tries"), [(409, 1), (500, 1), (429, 2)])
async def test_what_may_have_been_done_is_not_done_twice(
    server: Server, kube: Kube, waits: list[float], status: int, tries: int
) -> None:
    for write in (kube.create, kube.replace):
        server.asked, server.refusals = [], [(status, None)]
        if tries == 1:
            with pytest.raises(ApiError):
                await write(MANIFEST)
        else:
            await write(MANIFEST)
        assert len(server.asked) == tries


async def test_a_server_that_is_gone_is_told_as_one(waits: list[float], unused_tcp_port: int) -> None:
    gone = Kube(client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{unused_tcp_port}")))
    with pytest.raises(ApiError) as refusal:
        await gone.get("ConfigMap", "team", "a")
    assert (refusal.value.status, len(waits)) == (0, TRIES - 1)
    await gone.close()


async def test_a_kind_that_is_not_served_is_no_object_that_is_gone(server: Server, kube: Kube) -> None:
    """As the API server answers while a CRD is replaced: what there is of that kind is not to be forgotten."""
    server.refusals = [(404, None)]
    assert await kube.get("ConfigMap", "team", "gone") is None
    server.text = "404 page not found\n"
    with pytest.raises(ApiError, match="404 page not found"):
        await kube.get("LLMDeployment", "team", "chat")
