"""`kvtide top`: reads a worker again and again, and draws it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections import deque
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.live import Live

from kvtide_worker.top.rates import Rates, rates
from kvtide_worker.top.reading import NotAWorker, Reading, read
from kvtide_worker.top.screen import screen

_TIMEOUT_S = 5.0
# Rates are of so many seconds at most, so that they move and do not flicker.
_WINDOW_S = 10.0
_HISTORY = 240


class Unreachable(Exception):
    """The worker gave no answer that can be shown. The message is for a person."""


class _Url(click.ParamType[str]):
    """Where a server is: http or https, without a slash at its end."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The address; fails with what may be written."""
        if not str(value).startswith(("http://", "https://")):
            self.fail(f"{value!r} is no address: write http://HOST:PORT, as the worker says when it starts", param, ctx)
        return str(value).rstrip("/")


@click.command("top")
@click.argument("url", type=_Url())
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=1.0, show_default=True, help="Seconds between two readings."
)
@click.option("--once", is_flag=True, help="Draw one screen and end; so it does without a terminal.")
@click.option(
    "--admin-url",
    type=_Url(),
    help="The worker's admin port, such as http://127.0.0.1:8001: shows each request and each block.",
)
@click.option(
    "--admin-token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The token that the admin port asks for.",
)
def top_command(url: str, interval: float, once: bool, admin_url: str | None, admin_token_file: Path | None) -> None:
    """Show one worker's memory, KV cache, requests and rates on one screen.

    URL is where the worker's API is, such as http://127.0.0.1:8000; of a worker in a cluster, what
    `kubectl port-forward POD 8000` gives. Ctrl-C ends it.
    """
    if (admin_url is None) != (admin_token_file is None):
        raise click.UsageError("--admin-url and --admin-token-file go together: write both, or neither")
    token = admin_token_file.read_text(encoding="utf-8").strip() if admin_token_file else ""
    watched = _Watched(url, admin_url, token)
    console = Console()
    try:
        watched.look()
        if once or not console.is_terminal:
            time.sleep(interval)
            watched.look()
            console.print(watched.draw())
            return
        with Live(watched.draw(), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                try:
                    watched.look()
                    trouble = None
                except Unreachable as error:
                    trouble = f"{error}; shown is what was {time.monotonic() - watched.last.at:.0f} s ago"
                live.update(watched.draw(trouble), refresh=True)
    except Unreachable as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        return


class _Watched:
    """One worker, and what was read of it lately."""

    def __init__(self, url: str, admin_url: str | None, token: str) -> None:
        self._url = url
        self._admin_url = admin_url
        self._token = token
        self._readings: deque[Reading] = deque()
        self._history: deque[tuple[float, float]] = deque(maxlen=_HISTORY)
        self._pool: dict[str, Any] | None = None

    @property
    def last(self) -> Reading:
        """The newest reading."""
        return self._readings[-1]

    def look(self) -> None:
        """Read the worker once more. Raises Unreachable."""
        try:
            reading = read(_get(f"{self._url}/metrics"), time.monotonic())
        except NotAWorker as error:
            raise Unreachable(f"{self._url}/metrics: {error}") from error
        if self._admin_url is not None:
            self._pool = _pool(f"{self._admin_url}/debug/kv", self._token)
        if self._readings:
            self._history.append((reading.usage, rates(self._readings[-1], reading).output_tokens or 0.0))
        self._readings.append(reading)
        while len(self._readings) > 2 and reading.at - self._readings[1].at >= _WINDOW_S:
            self._readings.popleft()

    def draw(self, trouble: str | None = None) -> RenderableType:
        """The screen of what was read."""
        oldest, newest = self._readings[0], self._readings[-1]
        lately = rates(oldest, newest) if oldest is not newest else Rates()
        return screen(self._url, newest, lately, list(self._history), self._pool, trouble)


def _pool(url: str, token: str) -> dict[str, Any]:
    """The pool's map. Raises Unreachable, also for an answer that is none."""
    text = _get(url, token)
    try:
        pool = json.loads(text)
    except ValueError:
        pool = None
    if not isinstance(pool, dict) or not {"blocks", "sequences"} <= pool.keys():
        raise Unreachable(f"{url} answered with something else than a map of the pool: is this the admin port?")
    return pool


def _get(url: str, token: str = "") -> str:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        hint = {401: ": the token is another one", 404: ": this is no KVTide worker"}.get(error.code, "")
        raise Unreachable(f"{url} answered {error.code}{hint}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise Unreachable(f"{url} does not answer ({reason}); is the worker running there?") from error
