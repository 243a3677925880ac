"""Builders of what the API server sends, and the least that is needed to be it: objects with resourceVersions."""

import asyncio
import copy
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from kvtide_operator.edge.kube import ApiError

Json = dict[str, Any]
LLAMA = {"uri": "hf://meta-llama/Llama-2-13b-chat-hf"}
A100 = {"kind": "GPU", "memory": "80Gi"}


@pytest.fixture
def make_review() -> Callable[..., Json]:
    """An AdmissionReview for Llama-2-13B on an A100; keyword arguments are parts of the spec, `old` of the present."""

    def make(old: Json | None = None, metadata: Json | None = None, **spec: Any) -> Json:
        def document(parts: Json) -> Json:
            named = {"namespace": "team", "name": "chat", "uid": "u-1", **(metadata or {})}
            return {"metadata": named, "spec": {"model": LLAMA, "device": A100, **parts}}

        return {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "r-1",
                "operation": "CREATE" if old is None else "UPDATE",
                "namespace": "team",
                "name": "chat",
                "object": document(spec),
                "oldObject": None if old is None else document(old),
            },
        }

    return make


class Store:
    """Objects by (kind, name), with optimistic locking as the API server has it. `created` is set with the first."""

    def __init__(self, *objects: Json) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self.created = asyncio.Event()
        for manifest in objects:
            self._keep(manifest, 1)

    def _keep(self, manifest: Json, version: int) -> None:
        kept = copy.deepcopy(manifest)
        kept["metadata"]["resourceVersion"] = str(version)
        self.objects[kept["kind"], kept["metadata"]["name"]] = kept

    async def get(self, kind: str, namespace: str | None, name: str) -> Json | None:
        return copy.deepcopy(self.objects.get((kind, name)))

    async def create(self, manifest: Json) -> None:
        if (manifest["kind"], manifest["metadata"]["name"]) in self.objects:
            raise ApiError(409, "exists")
        self._keep(manifest, 1)
        self.created.set()

    async def replace(self, manifest: Json) -> None:
        version = self.objects[manifest["kind"], manifest["metadata"]["name"]]["metadata"]["resourceVersion"]
        if manifest["metadata"]["resourceVersion"] != version:
            raise ApiError(409, "conflict")
        self._keep(manifest, int(version) + 1)


@pytest.fixture
def make_store() -> type[Store]:
    return Store


@pytest.fixture
def shakes_hands() -> Callable[[ssl.SSLContext, bytes, str], None]:
    """A TLS handshake of a server's context with a client that trusts these authorities alone and asks for this name.

    Raises ssl.SSLError where they do not come together. The client is Python's own, with X.509's strict rules.
    """

    def shake(server: ssl.SSLContext, authorities: bytes, name: str) -> None:
        trusting = ssl.create_default_context(cadata=authorities.decode())
        trusting.verify_flags |= ssl.VERIFY_X509_STRICT
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = [
            trusting.wrap_bio(back, there, server_hostname=name),
            server.wrap_bio(there, back, server_side=True),
        ]
        while ends:
            for end in list(ends):
                try:
                    end.do_handshake()
                    ends.remove(end)
                except ssl.SSLWantReadError:
                    continue

    return shake
