"""Reads the Secrets and ConfigMaps that resources name. Their content goes no further than this file, but as a hash."""

import base64
import time

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.edge.kube import ApiError, Json, Kube
from kvtide_operator.plan.references import References, references_of

# A change of theirs rolls workers this much later at most: nobody watches every Secret of a cluster for it.
KEPT_S = 10.0
# Where a worker takes the key from that its clients must send (docs/api.md).
KEY_VARIABLE = "KVTIDE_API_KEY"

_Key = tuple[str, str, str]


class ReferenceReader:
    """What was read, kept for some seconds by (kind, namespace, name)."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._kept: dict[_Key, tuple[float, Json | None]] = {}

    async def read(self, resource: LLMDeployment) -> References:
        """What each reference of the spec leads to, as a hash. One that may not be read is left out, which is said in
        the status: `plan.references.unreadable`.

        Raises ApiError where the API server does not say.
        """
        found = {}
        for reference in references_of(resource.spec):
            try:
                live = await self._get(reference.kind, resource.namespace, reference.name)
            except ApiError as error:
                if error.status != 403:
                    raise
                continue
            found[reference] = reference.content_of(live)
        return found

    async def api_key(self, resource: LLMDeployment) -> str | None:
        """The key that the spec makes the workers' clients send, None where there is none or it cannot be read."""
        for entry in resource.spec.worker.env or []:
            if entry.get("name") != KEY_VARIABLE:
                continue
            if entry.get("value"):
                return str(entry["value"]).strip()
            source = entry.get("valueFrom") or {}
            for kind, field in (("Secret", "secretKeyRef"), ("ConfigMap", "configMapKeyRef")):
                if field in source:
                    return await self._value(kind, resource.namespace, source[field])
        return None

    async def _value(self, kind: str, namespace: str, source: Json) -> str | None:
        try:
            live = await self._get(kind, namespace, str(source.get("name")))
        except ApiError:
            return None
        text = ((live or {}).get("data") or {}).get(source.get("key"))
        if text is None:
            return None
        return (base64.b64decode(text).decode(errors="replace") if kind == "Secret" else str(text)).strip()

    async def _get(self, kind: str, namespace: str, name: str) -> Json | None:
        oldest = time.monotonic() - KEPT_S
        self._kept = {key: kept for key, kept in self._kept.items() if kept[0] >= oldest}
        key = (kind, namespace, name)
        if key not in self._kept:
            live = await self._kube.get(kind, namespace, name)
            self._kept[key] = (time.monotonic(), live)
        return self._kept[key][1]
