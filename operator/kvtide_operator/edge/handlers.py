"""Kopf's side: watches LLMDeployments, keeps them in memory, and asks the queue for a pass.

Handlers only carry; there is no finalizer, timer or daemon. Children are watched by edge/cluster.py: Kopf keeps a task
for each object, and forgets what was deleted while it did not look.
"""

import dataclasses
import os
import random
from typing import Any

import kopf

from kvtide_operator.api import names
from kvtide_operator.edge.canary import Canary
from kvtide_operator.edge.kube import Json
from kvtide_operator.edge.queue import WorkQueue
from kvtide_operator.edge.store import Key, Store, key_of, version_of

# Resources of one answer, each of which is some ten kilobytes.
CHUNK = 100
# An object's uid, its spec's generation, and whether it is on its way out.
Identity = tuple[Any, ...]


class Memo(kopf.Memo):
    """What handlers are given beside the event."""

    queue: WorkQueue
    canary: Canary
    resources: Store[bytes]
    identities: dict[Key, Identity]


def _with_service_account(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """The pod's own credentials, at the address the kubelet gave it: Kopf's default asks the cluster's DNS for one."""
    info = kopf.login_with_service_account(**kwargs)
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if info is None or host is None:
        return info
    bracketed = f"[{host}]" if ":" in host else host
    return dataclasses.replace(info, server=f"https://{bracketed}:{os.environ['KUBERNETES_SERVICE_PORT']}")


def registry() -> kopf.OperatorRegistry:
    """Our handlers in a registry of their own, so that nothing depends on what is imported first."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers, id="login", retries=3)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return _with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=handlers, id="resource")
    async def resource_changed(event: kopf.RawEvent, memo: Memo, **_: Any) -> None:
        changed(dict(event["object"]), event["type"] == "DELETED", memo)

    return handlers


def changed(thing: Json, gone: bool, memo: Memo) -> None:
    """An event of an LLMDeployment: it is remembered, and a pass asked for where it is news.

    Our own status writes come back as events too: only another spec, another object or its end is news.
    """
    key = key_of(thing)
    memo.canary.heard(key, version_of(thing), gone)
    memo.resources.happened(thing, gone)
    identity = None if gone else _identity(thing)
    if identity is None or memo.identities.get(key) != identity:
        memo.queue.request(*key)
    if identity is None:
        memo.identities.pop(key, None)
    else:
        memo.identities[key] = identity


def _identity(thing: Json) -> Identity:
    metadata = thing["metadata"]
    return metadata["uid"], metadata.get("generation"), metadata.get("deletionTimestamp")


def kopf_settings() -> kopf.OperatorSettings:
    """Settings that keep watches from stalling silently, and Kopf's marks apart from other operators'."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.persistence.finalizer = f"{names.GROUP}/unused"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=names.GROUP)
    settings.watching.connect_timeout = 60
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 301
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = [random.uniform(0.5, 1.5) * s for s in (1, 2, 4, 8, 16)]  # noqa: S311
    settings.execution.max_workers = 2
    settings.watching.chunk_size = CHUNK
    return settings
