"""The Kubernetes API as the operator uses it: plain JSON over the official client's asynchronous side."""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote
from urllib.request import getproxies

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from kvtide_operator.api import names

Json = dict[str, Any]

TIMEOUT = aiohttp.ClientTimeout(total=30, connect=10)
# Calls at once: more would not be answered sooner, and would keep others waiting at the API server. Watches come on
# top: they hold a connection each.
CALLS = 16
# A watch is ended by the server after so long, somewhere between, so that not all end at once; and by us where it has
# said nothing for as long as the API server needs for two bookmarks.
WATCH_S = (240, 300)
WATCH_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=10, sock_read=130)
# What is asked again, how often in all, and how long before: a pass that fails is run again by the queue anyway.
TRIES = 4
BACKOFF_S = 0.2
LONGEST_WAIT_S = 5.0
# Refused before anything was done: asked for too much at once, or a server that is going or coming.
_AGAIN = (429, 503)
# As kubectl lists: a page's answer is small enough for both sides, and most lists are one page.
PAGE = 500

# Where each kind lives: (path of its group and version, plural).
_PATHS = {
    names.KIND: (f"/apis/{names.API_VERSION}", names.PLURAL),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "Node": ("/api/v1", "nodes"),
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "Secret": ("/api/v1", "secrets"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Event": ("/api/v1", "events"),
    "ResourceSlice": ("/apis/resource.k8s.io/v1", "resourceslices"),
    "ResourceSlice v1beta1": ("/apis/resource.k8s.io/v1beta1", "resourceslices"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "ValidatingWebhookConfiguration": ("/apis/admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"),
}


class ApiError(Exception):
    """The API server said no. `status` is HTTP's, 0 where it did not answer; the message is its own.

    retry_after_s: when it wants to be asked again, None where it does not say
    unserved:      it is not the object that is missing, but its kind: as while a CRD is replaced
    """

    def __init__(self, status: int, message: str, retry_after_s: float | None = None, unserved: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.unserved = unserved


class Kube:
    """One connection pool to the API server. Every method raises ApiError, and nothing else, when that says no.

    What passes by itself is tried again a few times, with jitter and no earlier than the server says (Retry-After):
    429, 5xx, a connection that cannot be had, and a patch that met another write (409). Whatever may have been done
    already is asked again only where doing it twice is the same as once.
    """

    def __init__(self, api: Any, calls: int = CALLS) -> None:
        self._api = api
        self._calls = asyncio.Semaphore(calls)

    @classmethod
    async def connect(cls) -> "Kube":
        """With the pod's service account; outside of a cluster with KUBECONFIG or ~/.kube/config."""
        configuration = client.Configuration()
        loader: Any = config  # the generated client has annotations in part only
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            loader.load_incluster_config(client_configuration=configuration)
        else:
            kubeconfig = os.environ.get("KUBECONFIG")
            await loader.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
        configuration.connection_pool_maxsize = 0  # no limit: CALLS is one
        # Of the environment nothing but a proxy matters: for the rest a file would be looked for before every call.
        configuration.client_session_kwargs = {"trust_env": bool(getproxies())}
        return cls(client.ApiClient(configuration))

    def aside(self) -> "Kube":
        """The same pool for calls that must not wait behind those of passes: the Lease's."""
        return Kube(self._api, calls=1)

    async def close(self) -> None:
        """Closes the pool."""
        await self._api.close()

    async def get(self, kind: str, namespace: str | None, name: str) -> Json | None:
        """One object, None where there is none. A kind that belongs to no namespace has None for it."""
        try:
            return await self._call("GET", _path(kind, namespace, name))
        except ApiError as error:
            if error.status == 404 and not error.unserved:
                return None
            raise

    async def list_all(self, kind: str, namespace: str | None, selector: str = "") -> list[Json]:
        """All objects of a kind with these labels, in one namespace or (None) in all."""
        return [item async for page in self.pages(kind, namespace, selector) for item in page]

    async def pages(self, kind: str, namespace: str | None, selector: str = "") -> AsyncIterator[list[Json]]:
        """The same page by page, for who keeps a little of each object: a large cluster's pods are megabytes."""
        async for answer in self.lists(kind, namespace, selector):
            yield answer.get("items", [])

    async def lists(
        self, kind: str, namespace: str | None, selector: str = "", accept: str = "application/json"
    ) -> AsyncIterator[Json]:
        """The same as the API server's own lists, all of one state, which their metadata.resourceVersion names."""
        query = [("limit", str(PAGE)), *_selecting(selector)]
        more: list[tuple[str, str]] = []
        while True:
            answer = await self._call("GET", _path(kind, namespace), query + more, accept=accept)
            yield answer
            token = (answer.get("metadata") or {}).get("continue")
            if not token:
                return
            more = [("continue", token)]

    async def watch(self, kind: str, namespace: str | None, selector: str, since: str) -> AsyncIterator[Json]:
        """Events from the state `since` on, bookmarks and the server's errors among them, until the server ends it.

        Raises ApiError where it cannot be had (410: that state is too long ago), breaks off, or falls silent.
        """
        path = _path(kind, namespace)
        lasting = ("timeoutSeconds", str(random.randint(*WATCH_S)))  # noqa: S311  jitter, not a secret
        query = [("watch", "true"), ("allowWatchBookmarks", "true"), ("resourceVersion", since), lasting]
        response = await self._send("GET", path, query + _selecting(selector), within=WATCH_TIMEOUT)
        try:
            if response.status != 200:
                raise _refusal(response, await response.read(), "GET", path)
            rest = b""
            async for chunk in response.response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiError(0, f"watching {path}: {type(error).__name__} {error}") from error
        finally:
            response.response.close()

    async def apply(self, manifest: Json, subresource: str = "") -> Json:
        """Server-side apply as our field manager, taking over what is ours to write. Gives what there is now."""
        metadata = manifest["metadata"]
        path = _path(manifest["kind"], metadata["namespace"], metadata["name"]) + subresource
        query = [("fieldManager", names.FIELD_MANAGER), ("force", "true")]
        return await self._call("PATCH", path, query, manifest, "application/apply-patch+yaml")

    async def merge(self, kind: str, namespace: str, name: str, change: Json) -> Json:
        """A merge patch. Gives what there is now."""
        query = [("fieldManager", names.FIELD_MANAGER)]
        return await self._call("PATCH", _path(kind, namespace, name), query, change, "application/merge-patch+json")

    async def create(self, manifest: Json) -> Json:
        """Creates an object, and gives it; ApiError 409 where it exists."""
        path = _path(manifest["kind"], manifest["metadata"]["namespace"])
        return await self._call("POST", path, [("fieldManager", names.FIELD_MANAGER)], manifest)

    async def replace(self, manifest: Json) -> None:
        """Replaces an object at its resourceVersion; ApiError 409 where it has changed meanwhile."""
        metadata = manifest["metadata"]
        path = _path(manifest["kind"], metadata.get("namespace"), metadata["name"])
        await self._call("PUT", path, [], manifest)

    async def delete(self, kind: str, namespace: str, name: str) -> Json | None:
        """Deletes an object; no error where there is none. Gives it where it takes its time to go, else None."""
        try:
            answer = await self._call("DELETE", _path(kind, namespace, name))
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        return None if answer.get("kind") == "Status" else answer

    async def _call(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Json:
        for tries in range(1, TRIES + 1):
            try:
                async with self._calls:
                    return await self._once(method, path, query, body, content_type, accept)
            except ApiError as error:
                if tries == TRIES or not _worth_another(method, error):
                    raise
                jitter = random.uniform(0.5, 1.5)  # noqa: S311  not a secret
                await asyncio.sleep(max(error.retry_after_s or 0.0, BACKOFF_S * 2 ** (tries - 1) * jitter))
        raise AssertionError("the last try returns or raises")

    async def _once(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]] | None,
        body: Mapping[str, Any] | None,
        content_type: str,
        accept: str,
    ) -> Json:
        response = await self._send(method, path, query, body, content_type, accept)
        try:
            content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, f"{method} {path}: {type(error).__name__} {error}") from error
        if not 200 <= response.status < 300:
            raise _refusal(response, content, method, path)
        answer: Json = json.loads(content)
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]] | None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        within: aiohttp.ClientTimeout = TIMEOUT,
    ) -> Any:
        """The answer with its content still to be read."""
        headers = {"Accept": accept, "Content-Type": content_type}
        try:
            verb, url, headers, sent, _ = await self._api.param_serialize(
                method, path, query_params=query, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            return await self._api.call_api(verb, url, headers, sent, _request_timeout=within)
        except (aiohttp.ClientError, TimeoutError, OSError, ApiException) as error:
            raise ApiError(0, f"{method} {path}: {type(error).__name__} {error}") from error


def _selecting(selector: str) -> list[tuple[str, str]]:
    return [("labelSelector", selector)] if selector else []


def _refusal(response: Any, content: bytes, method: str, path: str) -> ApiError:
    said = _message(content) or f"{method} {path}: HTTP {response.status}"
    # Of a kind that it serves it answers with a Status, else with a line of text.
    unserved = response.status == 404 and not content.lstrip().startswith(b"{")
    return ApiError(response.status, said, _retry_after_s(response.headers.get("Retry-After")), unserved)


def _worth_another(method: str, error: ApiError) -> bool:
    """Whether the same request, a moment later, may be answered otherwise."""
    if (error.retry_after_s or 0.0) > LONGEST_WAIT_S:
        return False
    if error.status == 409:
        return method == "PATCH"
    if error.status in (0, 500, 502, 504):
        # It may have been done: to create it again would meet a 409, to replace it another version. A time-out has
        # taken half a minute already.
        return method in ("GET", "PATCH", "DELETE") and not isinstance(error.__cause__, TimeoutError)
    return error.status in _AGAIN


def _retry_after_s(header: str | None) -> float | None:
    """The header in seconds; the API server writes no dates."""
    return float(header) if header is not None and header.isdecimal() else None


def _path(kind: str, namespace: str | None, name: str = "") -> str:
    group, plural = _PATHS[kind]
    place = f"/namespaces/{_segment(namespace)}" if namespace else ""
    return f"{group}{place}/{plural}" + (f"/{_segment(name)}" if name else "")


def _segment(name: str) -> str:
    """A name as one segment of a path, whatever it is. No object is called `.` or `..`, which quoting leaves alone."""
    if name in (".", ".."):
        raise ApiError(0, f"{name!r} is no name")
    return quote(name, safe="")


def _message(content: bytes) -> str:
    """The API server's own words, from the Status object that it answers errors with."""
    try:
        return str(json.loads(content).get("message", ""))
    except (ValueError, AttributeError):
        return content.decode(errors="replace")[:500]
