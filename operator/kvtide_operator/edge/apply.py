"""Carries out what a pass wants. One action that is refused stops none of the others."""

import asyncio
import logging
from collections.abc import Awaitable

from kvtide_operator.api import names
from kvtide_operator.api.conditions import Reason
from kvtide_operator.api.status import Status
from kvtide_operator.children.secret import token_of
from kvtide_operator.children.worker_template import admin_secret_name
from kvtide_operator.edge.cluster import Cluster
from kvtide_operator.edge.kube import ApiError, Json
from kvtide_operator.edge.worker_client import WorkerClient, WorkerError
from kvtide_operator.reconcile.actions import Actions
from kvtide_operator.reconcile.diff import differs
from kvtide_operator.reconcile.observed import Observed
from kvtide_operator.reconcile.pods import Trouble

logger = logging.getLogger(__name__)


async def carry_out(
    cluster: Cluster, workers: WorkerClient, observed: Observed, actions: Actions
) -> tuple[Trouble, ...]:
    """Does everything but the status, and says what was refused and is not a matter of time."""
    namespace = observed.resource.namespace
    troubles: list[Trouble] = []

    async def attempt(what: str, doing: Awaitable[None]) -> None:
        try:
            await doing
        except ApiError as error:
            # 409: somebody was faster, the next pass sees it. 404: the namespace or the pod is going.
            if error.status in (404, 409):
                logger.info("%s/%s: %s: %s", namespace, observed.resource.name, what, error)
                return
            troubles.append(Trouble(Reason.APPLY_REFUSED, f"{what}: {error}"))

    for pod, cost in actions.deletion_costs.items():
        annotations = {names.DELETION_COST_ANNOTATION: str(cost)}
        await attempt(f"Pod {pod}", cluster.merge("Pod", namespace, pod, {"metadata": {"annotations": annotations}}))
    # What pods mount comes before the pods; among itself it has no order.
    mounted = [manifest for manifest in actions.apply if manifest["kind"] != "Deployment"]
    await asyncio.gather(*(attempt(_named(manifest), cluster.apply(manifest)) for manifest in mounted))
    for manifest in actions.apply:
        if manifest["kind"] == "Deployment":
            await attempt(_named(manifest), cluster.apply(manifest))
    for manifest in actions.create:
        await attempt(_named(manifest), cluster.create(manifest))
    for pod in actions.delete_pods:
        await attempt(f"Pod {pod}", cluster.delete("Pod", namespace, pod))

    token = token_of(observed.child("Secret", admin_secret_name(observed.resource)))
    if token is None:
        return tuple(troubles)
    pushes = [
        *((push.pod, workers.push_limit(push.ip, token, push.batch_limit)) for push in actions.limits),
        *((push.pod, workers.push_precision(push.ip, token, push.precision)) for push in actions.precisions),
    ]

    async def push(pod: str, pushing: Awaitable[None]) -> None:
        try:
            await pushing
        except WorkerError as error:
            # A worker keeps what it has until told otherwise; the next pass decides again from that.
            logger.warning("%s/%s: %s", namespace, pod, error)

    # All at once: one that hangs keeps nobody else from being told.
    await asyncio.gather(*(push(pod, pushing) for pod, pushing in pushes))
    return tuple(troubles)


def _named(manifest: Json) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"


async def write_status(cluster: Cluster, document: Json, status: Status) -> bool:
    """Writes the status if it differs from the document's, and says whether it did.

    Raises ApiError; a resource that is gone is none.
    """
    wanted, present = status.to_json(), document.get("status") or {}
    if wanted == present or (not differs(wanted, present) and not differs(present, wanted)):
        return False
    manifest = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {key: document["metadata"][key] for key in ("name", "namespace", "uid")},
        "status": wanted,
    }
    try:
        await cluster.apply(manifest, "/status")
    except ApiError as error:
        # With the uid in it, the patch of a resource that was deleted or made anew meets a 404 or a 409.
        if error.status not in (404, 409):
            raise
    return True
