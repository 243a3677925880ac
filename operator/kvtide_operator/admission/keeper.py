"""Keeps the webhook's certificates: in a Secret, trusted by the API server, loaded by every replica."""

import asyncio
import base64
import datetime
import logging
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvtide_operator.admission.certificates import (
    Certificates,
    authorities_in,
    flaw,
    issue,
    renewal_due,
    service_names,
)
from kvtide_operator.api import names
from kvtide_operator.edge.kube import ApiError, Json, Kube
from kvtide_operator.settings import AdmissionSettings

logger = logging.getLogger(__name__)

# How soon a replica serves with what another one has made, and a Secret that is gone is made again.
ROUND_S = 10.0
# Until there is something to serve with.
FIRST_ROUNDS_S = 1.0
CONFIGURATION = "ValidatingWebhookConfiguration"


def secret_name(service: str) -> str:
    """The Secret of the webhook behind this Service."""
    return f"{service}-tls"


@dataclass
class Keeper:
    """One replica's part. Only the one that `writes`, which is the Lease's holder, makes and publishes anything.

    context: what the server takes its certificate from; a new one is loaded into it and holds from the next
             connection on
    """

    kube: Kube
    settings: AdmissionSettings
    namespace: str
    writes: Callable[[], bool]
    context: ssl.SSLContext
    _loaded: Certificates | None = None

    async def keep(self) -> None:
        """Goes round until cancelled; what fails is said and tried again."""
        while True:
            try:
                await self.go_round(datetime.datetime.now(datetime.UTC))
            except ApiError as error:
                log = logger.debug if error.status == 409 else logger.warning
                log("the webhook's certificates: %s", error)
            except Exception:
                logger.exception("the webhook's certificates")
            await asyncio.sleep(ROUND_S if self._loaded else FIRST_ROUNDS_S)

    async def go_round(self, now: datetime.datetime) -> None:
        """Reads the Secret, writes what is missing where that is ours to do, and loads what is new.

        Raises ApiError: 409 where another replica was faster, whose Secret the next round reads.
        """
        secret = await self.kube.get("Secret", self.namespace, secret_name(self.settings.service))
        found = Certificates.from_secret(secret)
        wrong = flaw(found, self._names, now) if found else None
        if wrong:
            logger.warning("the Secret %s cannot be used: %s", secret_name(self.settings.service), wrong)
        usable = None if wrong else found
        if self.writes():
            usable = await self._provide(secret, usable, now)
        if usable is not None and usable != self._loaded:
            _load(self.context, usable)
            self._loaded = usable
            logger.info("serving admission as %s", self._names[-1])

    @property
    def _names(self) -> list[str]:
        return service_names(self.settings.service, self.namespace)

    async def _provide(
        self, secret: Json | None, usable: Certificates | None, now: datetime.datetime
    ) -> Certificates | None:
        """Sees to it that there are certificates with some life left, and that the API server trusts them.

        A new authority is trusted before anybody serves with its certificate, and an earlier certificate serves on
        until the next round, so that no request meets a certificate that is not trusted yet.
        """
        configuration = await self.kube.get(CONFIGURATION, None, self.settings.configuration)
        if configuration is None:
            raise ApiError(404, f"there is no {CONFIGURATION} {self.settings.configuration}")
        if usable is not None and not renewal_due(usable, now):
            await self._trust(configuration, usable)
            return usable
        fresh = issue(self._names, now, trusted=_still_trusted(secret, usable, configuration))
        await self._trust(configuration, fresh)
        await self._store(secret, configuration, fresh)
        return usable or fresh

    async def _trust(self, configuration: Json, certificates: Certificates) -> None:
        bundle = base64.b64encode(certificates.authorities).decode()
        clients = [webhook["clientConfig"] for webhook in configuration["webhooks"]]
        if all(client.get("caBundle") == bundle for client in clients):
            return
        for client in clients:
            client["caBundle"] = bundle
        await self.kube.replace(configuration)
        logger.info("the API server now trusts the certificates of %s", self._names[-1])

    async def _store(self, secret: Json | None, configuration: Json, certificates: Certificates) -> None:
        if secret is not None:
            await self.kube.replace({**secret, "data": certificates.to_data()})
            return
        await self.kube.create(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "kubernetes.io/tls",
                "metadata": {
                    "name": secret_name(self.settings.service),
                    "namespace": self.namespace,
                    "labels": {
                        "app.kubernetes.io/name": names.OPERATOR_APP,
                        "app.kubernetes.io/part-of": names.PART_OF,
                    },
                    # It goes with the configuration, which is the chart's: nobody else would remove it.
                    "ownerReferences": [
                        {
                            "apiVersion": "admissionregistration.k8s.io/v1",
                            "kind": CONFIGURATION,
                            "name": configuration["metadata"]["name"],
                            "uid": configuration["metadata"]["uid"],
                        }
                    ],
                },
                "data": certificates.to_data(),
            }
        )


def _still_trusted(secret: Json | None, usable: Certificates | None, configuration: Json) -> bytes:
    """The authorities that stay trusted beside a new one.

    Where the Secret cannot be used, others may still serve with what they have loaded: what the API server trusts now
    goes on. Where it is gone, somebody deleted it to be rid of them.
    """
    if usable is not None:
        return usable.authorities
    if secret is None:
        return b""
    return authorities_in(configuration["webhooks"][0]["clientConfig"].get("caBundle") or "")


def _load(context: ssl.SSLContext, certificates: Certificates) -> None:
    """Puts the pair into the context. Python's ssl takes it from files only, so it is one for that moment."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pair.pem"
        file.touch(mode=0o600)
        file.write_bytes(certificates.key + certificates.certificate)
        context.load_cert_chain(file)
