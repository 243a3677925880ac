"""Over a real connection with TLS: what is asked badly is 400, and what fails inside is admitted."""

import asyncio
import base64
import json
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import aiohttp
import pytest
from aiohttp.test_utils import unused_port
from prometheus_client import CollectorRegistry

from kvtide_operator.admission import server
from kvtide_operator.edge.kube import Kube
from kvtide_operator.settings import AdmissionSettings, OperatorSettings

Json = dict[str, Any]
Review = Callable[..., Json]
NAME = "kvtide-admission.kvtide-system.svc"


class Webhook:
    """A running server, asked as the API server asks it: by the Service's name, with the configuration's bundle."""

    def __init__(self, store: Any, registry: CollectorRegistry, port: int) -> None:
        self.store, self.registry, self.port = store, registry, port

    def trusting(self) -> ssl.SSLContext:
        configuration = self.store.objects["ValidatingWebhookConfiguration", "ours"]
        bundle = base64.b64decode(configuration["webhooks"][0]["clientConfig"]["caBundle"])
        return ssl.create_default_context(cadata=bundle.decode())

    async def post(self, body: bytes) -> tuple[int, str]:
        asked = aiohttp.ClientSession()
        async with (
            asked,
            asked.post(
                f"https://127.0.0.1:{self.port}/review?timeout=3s", data=body, ssl=self.trusting(), server_hostname=NAME
            ) as response,
        ):
            return response.status, await response.text()

    async def review(self, review: Json) -> Json:
        status, text = await self.post(json.dumps(review).encode())
        assert status == 200, text
        answered: Json = json.loads(text)["response"]
        return answered

    def count(self, result: str) -> float | None:
        return self.registry.get_sample_value("kvtide_admission_reviews_total", {"result": result})


@pytest.fixture
async def webhook(make_store: Callable[..., Any]) -> AsyncIterator[Webhook]:
    configuration = {
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "ours", "uid": "c-1"},
        "webhooks": [{"clientConfig": {}}],
    }
    store, registry, port = make_store(configuration), CollectorRegistry(), unused_port()
    names = AdmissionSettings("kvtide-admission", "ours", port)
    settings = OperatorSettings("registry/worker:1", "kvtide-system", "one", admission=names)
    runner = await server.serve_admission(cast(Kube, store), settings, names, lambda: True, registry)
    async with asyncio.timeout(10):
        await store.created.wait()
    yield Webhook(store, registry, port)
    await runner.cleanup()


async def test_it_admits_and_refuses(webhook: Webhook, make_review: Review) -> None:
    fits = await webhook.review(make_review())
    assert (fits["uid"], fits["allowed"]) == ("r-1", True)
    assert fits["warnings"]
    too_small = await webhook.review(make_review(device={"kind": "GPU", "memory": "24Gi"}))
    assert too_small["allowed"] is False
    assert "24.0 GiB" in too_small["status"]["message"]
    assert (webhook.count("allowed"), webhook.count("denied"), webhook.count("failed")) == (1, 1, None)
    assert webhook.registry.get_sample_value("kvtide_admission_duration_seconds_count") == 2


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b'{"kind": "AdmissionReview"}'])
async def test_what_is_no_review_is_400(webhook: Webhook, body: bytes) -> None:
    status, _ = await webhook.post(body)
    assert status == 400


async def test_a_name_that_is_a_path_is_400_and_nothing_is_asked_for(webhook: Webhook, make_review: Review) -> None:
    review = make_review(old={}, metadata={"namespace": "kube-system/secrets"})
    status, text = await webhook.post(json.dumps(review).encode())
    assert status == 400
    assert "kube-system/secrets" in text
    assert webhook.count("failed") is None


async def test_a_large_object_is_read(webhook: Webhook, make_review: Review) -> None:
    answered = await webhook.review(make_review(metadata={"annotations": {"note": "x" * 3_000_000}}))
    assert answered["allowed"] is True


async def test_what_fails_inside_admits_and_is_logged(
    webhook: Webhook, make_review: Review, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    webhook.store.get = broken
    with caplog.at_level(logging.ERROR):
        answered = await webhook.review(make_review(old={}, drain={"timeoutSeconds": 5}))
    assert answered["allowed"] is True
    assert "RuntimeError" in answered["warnings"][0]
    assert "team/chat" in caplog.text
    assert webhook.count("failed") == 1


async def test_what_takes_too_long_admits(
    webhook: Webhook, make_review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hanging(*_: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(server, "ANSWER_WITHIN_S", 0.05)
    webhook.store.get = hanging
    answered = await webhook.review(make_review(old={}, drain={"timeoutSeconds": 5}))
    assert answered["allowed"] is True
    assert "TimeoutError" in answered["warnings"][0]
