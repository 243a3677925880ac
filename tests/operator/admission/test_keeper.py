"""Two replicas and one API server: at every moment what each serves with is trusted. tests/cluster has the real one."""

import base64
import copy
import datetime
import ssl
from collections.abc import Callable
from typing import Any, cast

import pytest

from kvtide_operator.admission.certificates import Certificates, issue, service_names
from kvtide_operator.admission.keeper import Keeper
from kvtide_operator.edge.kube import ApiError, Kube
from kvtide_operator.settings import AdmissionSettings

Json = dict[str, Any]
Shake = Callable[[ssl.SSLContext, bytes, str], None]
NAMES = service_names("kvtide-admission", "kvtide-system")
NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
CONFIGURATION = {
    "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": "ours", "uid": "c-1"},
    "webhooks": [{"name": "llmdeployments.serving.kvtide.dev", "clientConfig": {"service": {"name": "x"}}}],
}


class Replica:
    """One replica's keeper, with the context that its server would serve with."""

    def __init__(self, store: Any, writes: bool) -> None:
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.writes = writes
        settings = AdmissionSettings("kvtide-admission", "ours")
        self.keeper = Keeper(cast(Kube, store), settings, "kvtide-system", lambda: self.writes, self.context)

    async def go_round(self, now: datetime.datetime = NOW) -> None:
        await self.keeper.go_round(now)


@pytest.fixture
def store(make_store: Callable[..., Any]) -> Any:
    return make_store(CONFIGURATION)


def trusted(store: Any) -> bytes:
    client = store.objects["ValidatingWebhookConfiguration", "ours"]["webhooks"][0]["clientConfig"]
    assert client["service"] == {"name": "x"}  # nothing else of it is touched
    return base64.b64decode(client["caBundle"])


def secret(store: Any) -> Json:
    found: Json = store.objects["Secret", "kvtide-admission-tls"]
    return found


async def test_the_holder_makes_them_and_both_serve_with_them(store: Any, shakes_hands: Shake) -> None:
    holder, standby = Replica(store, writes=True), Replica(store, writes=False)
    await standby.go_round()
    assert ("Secret", "kvtide-admission-tls") not in store.objects  # a standby makes nothing
    await holder.go_round()
    await standby.go_round()
    for replica in (holder, standby):
        shakes_hands(replica.context, trusted(store), NAMES[-1])
    before = copy.deepcopy(store.objects)
    await holder.go_round()
    assert store.objects == before  # and then it is quiet
    assert [owner["uid"] for owner in secret(store)["metadata"]["ownerReferences"]] == ["c-1"]
    assert secret(store)["type"] == "kubernetes.io/tls"


async def test_no_request_fails_over_a_renewal(store: Any, shakes_hands: Shake) -> None:
    replicas = [Replica(store, writes=True), Replica(store, writes=False)]
    for replica in replicas:
        await replica.go_round(NOW - 244 * DAY)
    first = trusted(store)

    def all_trusted() -> None:
        for replica in replicas:
            shakes_hands(replica.context, trusted(store), NAMES[-1])

    holder, standby = replicas
    for replica in (holder, standby, holder, standby):
        await replica.go_round()
        all_trusted()
    assert trusted(store) != first
    assert first in trusted(store)
    for replica in replicas:  # by now they serve with the new one
        with pytest.raises(ssl.SSLError):
            shakes_hands(replica.context, first, NAMES[-1])


async def test_a_deleted_secret_is_made_again_and_the_old_authority_is_trusted_no_more(
    store: Any, shakes_hands: Shake
) -> None:
    holder = Replica(store, writes=True)
    await holder.go_round()
    first = trusted(store)
    del store.objects["Secret", "kvtide-admission-tls"]
    await holder.go_round()
    assert first not in trusted(store)
    shakes_hands(holder.context, trusted(store), NAMES[-1])


async def test_a_secret_that_cannot_be_used_is_filled_anew(store: Any, shakes_hands: Shake) -> None:
    await store.create(
        {"kind": "Secret", "metadata": {"name": "kvtide-admission-tls"}, "data": issue(["other"], NOW).to_data()}
    )
    standby, holder = Replica(store, writes=False), Replica(store, writes=True)
    await standby.go_round()
    with pytest.raises(ssl.SSLError):
        shakes_hands(standby.context, issue(["other"], NOW).authorities, "other")
    await holder.go_round()
    shakes_hands(holder.context, trusted(store), NAMES[-1])


@pytest.mark.parametrize(
    "broken",
    [
        {"tls.crt": "!"},
        {"tls.key": base64.b64encode(b"no key").decode()},
        {},
        issue(["other"], NOW).to_data(),
    ],
)
async def test_a_secret_that_was_broken_fails_no_request_to_those_that_serve(
    store: Any, shakes_hands: Shake, broken: Json
) -> None:
    holder, standby = Replica(store, writes=True), Replica(store, writes=False)
    for replica in (holder, standby):
        await replica.go_round()
    data = secret(store)["data"] | broken if broken else {}
    secret(store)["data"] = data
    for replica in (holder, standby, holder):
        await replica.go_round()
        for serving in (holder, standby):
            shakes_hands(serving.context, trusted(store), NAMES[-1])


async def test_of_a_broken_secret_what_has_ended_is_trusted_no_more(store: Any) -> None:
    holder = Replica(store, writes=True)
    await holder.go_round(NOW - 400 * DAY)
    first = trusted(store)
    secret(store)["data"] = {}
    await holder.go_round()
    assert first not in trusted(store)


@pytest.mark.parametrize("bundle", ["Cg==", "!", ""])  # a placeholder of one newline, no base64, nothing
async def test_a_bundle_that_cannot_be_read_is_written_anew(store: Any, shakes_hands: Shake, bundle: str) -> None:
    store.objects["ValidatingWebhookConfiguration", "ours"]["webhooks"][0]["clientConfig"]["caBundle"] = bundle
    await store.create({"kind": "Secret", "metadata": {"name": "kvtide-admission-tls"}, "data": {}})
    holder = Replica(store, writes=True)
    await holder.go_round()
    shakes_hands(holder.context, trusted(store), NAMES[-1])


async def test_a_bundle_that_was_lost_is_written_again(store: Any, shakes_hands: Shake) -> None:
    holder = Replica(store, writes=True)
    await holder.go_round()
    store.objects["ValidatingWebhookConfiguration", "ours"] = {
        **CONFIGURATION,
        "metadata": {"name": "ours", "uid": "c-2", "resourceVersion": "7"},
    }
    await holder.go_round()
    shakes_hands(holder.context, trusted(store), NAMES[-1])


async def test_of_two_that_write_at_once_one_loses_and_both_agree(store: Any, shakes_hands: Shake) -> None:
    """A Lease that has just changed hands: both believe that they hold it."""
    one, two = Replica(store, writes=True), Replica(store, writes=True)
    create, others_turn = store.create, [two]

    async def late(manifest: Json) -> None:
        if others_turn:
            await others_turn.pop().go_round()
        await create(manifest)

    store.create = late
    with pytest.raises(ApiError):
        await one.go_round()
    await one.go_round()
    await two.go_round()
    assert Certificates.from_secret(secret(store)) is not None
    for replica in (one, two):
        shakes_hands(replica.context, trusted(store), NAMES[-1])


async def test_without_a_configuration_nothing_is_made(make_store: Callable[..., Any]) -> None:
    store = make_store()
    with pytest.raises(ApiError, match="ours"):
        await Replica(store, writes=True).go_round()
    assert store.objects == {}
