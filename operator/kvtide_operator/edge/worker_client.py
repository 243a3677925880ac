"""The workers: reads state and pushes limits at the admin port, asks for a token as a client would.

Timeouts are short: a worker that hangs holds nobody up.
"""

import email.utils
import time
from collections.abc import Mapping

import aiohttp
import pydantic

from kvtide_operator.api.names import ADMIN_PORT, HTTP_PORT
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.reconcile.observed import Answer, Sample

TIMEOUT = aiohttp.ClientTimeout(total=3, connect=1)
# A pool of many GiB is read and written once. A worker that takes longer does it all the same.
REENCODE_S = 20.0


class WorkerError(Exception):
    """A worker did not answer, or not with what was asked."""


class WorkerClient:
    """One HTTP session for all workers."""

    def __init__(self) -> None:
        # No limit to connections: one to each worker is kept open, for it is asked again before long.
        self._session = aiohttp.ClientSession(timeout=TIMEOUT, connector=aiohttp.TCPConnector(limit=0))

    async def close(self) -> None:
        """Closes the session."""
        await self._session.close()

    async def sample(self, ip: str, token: str, idle_s: float = 0.0) -> Sample:
        """A worker's own account of itself: an idle one's once it has a request, at the latest after `idle_s`.

        One of a version before does not know how to wait, and answers at once. Raises WorkerError.
        """
        url, timeout = f"{_base(ip, ADMIN_PORT)}/v1/state", TIMEOUT
        if idle_s > 0:
            url, timeout = f"{url}?idleSeconds={idle_s:.3f}", aiohttp.ClientTimeout(total=3 + idle_s, connect=1)
        try:
            async with self._session.get(url, headers=_bearer(token), timeout=timeout) as response:
                if response.status != 200:
                    raise WorkerError(f"GET /v1/state: HTTP {response.status}")
                content = await response.read()
                answered_at = _answered_at(response.headers.get("Date"))
            state = WorkerState.model_validate_json(content)
        except (aiohttp.ClientError, TimeoutError, pydantic.ValidationError) as error:
            raise WorkerError(f"GET /v1/state: {type(error).__name__} {error}") from error
        return Sample(state, max(0.0, answered_at - state.sampled_at))

    async def push_limit(self, ip: str, token: str, batch_limit: int) -> None:
        """Sets a worker's batch limit, live at its next step. Raises WorkerError."""
        await self._put_limits(ip, token, {"batchLimit": batch_limit})

    async def push_precision(self, ip: str, token: str, precision: str) -> None:
        """Has a worker's pool re-encoded between two steps, which takes as long as it takes. Raises WorkerError."""
        await self._put_limits(ip, token, {"kvPrecision": precision}, REENCODE_S)

    async def _put_limits(self, ip: str, token: str, limits: Mapping[str, object], within_s: float = 3.0) -> None:
        try:
            async with self._session.put(
                f"{_base(ip, ADMIN_PORT)}/v1/limits",
                json=limits,
                headers=_bearer(token),
                timeout=aiohttp.ClientTimeout(total=within_s, connect=1),
            ) as response:
                if response.status != 200:
                    raise WorkerError(f"PUT /v1/limits: HTTP {response.status} {await response.text()}")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise WorkerError(f"PUT /v1/limits: {type(error).__name__} {error}") from error

    async def ask(self, ip: str, model: str, key: str | None, within_s: float) -> Answer:
        """Asks for one token through the port that clients use, and tells what became of it. Raises nothing."""
        body = {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        timeout = aiohttp.ClientTimeout(total=within_s, connect=5)
        try:
            async with self._session.post(
                f"{_base(ip, HTTP_PORT)}/v1/completions",
                json=body,
                headers=_bearer(key) if key else {},
                timeout=timeout,
            ) as response:
                said = (await response.text(errors="replace"))[:200]
                return _judged(response.status, said)
        except TimeoutError:
            return Answer(False, f"no answer to a request of one token within {within_s:.0f} s")
        except (aiohttp.ClientError, OSError) as error:
            return Answer(False, f"a request of one token ended with {type(error).__name__}: {error}")


def _judged(status: int, said: str) -> Answer:
    if status == 200:
        return Answer(True)
    if status == 401:
        return Answer(None, "its clients need a key that the operator does not have")
    if status == 429:
        return Answer(True, "it has as many requests as it takes")
    return Answer(False, f"a request of one token was answered with HTTP {status}: {said}")


def _answered_at(date: str | None) -> float:
    """When the worker answered, by its own clock: another node's may be minutes off ours."""
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() if date else time.time()
    except ValueError:
        return time.time()


def _base(ip: str, port: int) -> str:
    return f"http://[{ip}]:{port}" if ":" in ip else f"http://{ip}:{port}"


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
