"""Kopf's side: watches, and asks the queue for a pass. Handlers only carry; there is no finalizer, timer or daemon."""

import dataclasses
import os
import random
from typing import Any

import kopf

from kvtide_operator.api import names
from kvtide_operator.edge.canary import Canary
from kvtide_operator.edge.queue import WorkQueue


class Memo(kopf.Memo):
    """What handlers are given beside the event."""

    queue: WorkQueue
    canary: Canary
    generations: dict[str, int]


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
    async def resource_changed(
        uid: str, namespace: str | None, name: str, meta: kopf.Meta, type: str | None, memo: Memo, **_: Any
    ) -> None:
        memo.canary.heard(names.KIND, str(namespace), name, type == "DELETED")
        # Our own status writes come back as events too: only another generation, or the end, is news.
        generation = int(meta.get("generation", 0))
        if type == "DELETED" or "deletionTimestamp" in meta:
            memo.generations.pop(uid, None)
        elif memo.generations.get(uid) == generation:
            return
        else:
            memo.generations[uid] = generation
        memo.queue.request(str(namespace), name)

    @kopf.on.event("apps", "v1", "deployments", registry=handlers, id="deployment", param="Deployment")
    @kopf.on.event("v1", "pods", registry=handlers, id="pod", param="Pod")
    async def child_changed(
        namespace: str | None, name: str, labels: kopf.Labels, type: str | None, memo: Memo, param: Any = "", **_: Any
    ) -> None:
        memo.canary.heard(param, str(namespace), name, type == "DELETED")
        owner = labels.get(names.NAME_LABEL)
        if owner is not None and namespace is not None:
            memo.queue.request(namespace, owner)

    return handlers


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
    ours = f"app.kubernetes.io/part-of={names.PART_OF},{names.NAME_LABEL}"
    settings.watching.label_selectors["apps", "v1", "deployments"] = ours
    settings.watching.label_selectors["", "v1", "pods"] = ours
    return settings
