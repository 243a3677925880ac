"""Steady streams of chat requests against an OpenAI-compatible endpoint, with what became of each."""

import asyncio
import dataclasses
import itertools
import random
import time
from collections.abc import Callable

import httpx2
import openai

WORDS = (
    "river stone morning garden paper window copper forest letter summer engine bridge candle market winter "
    "harbor mirror silver thunder valley orchard lantern meadow compass island ribbon voyage anchor timber feather"
).split()


@dataclasses.dataclass(frozen=True)
class StreamResult:
    """What became of one streamed request. Times are of the monotonic clock, in seconds."""

    started: float
    first_token: float | None
    ended: float
    chunks: int
    finish_reason: str | None
    error: str | None

    @property
    def lost(self) -> bool:
        """True where the client did not get the whole answer: an error, or an end without a finish reason."""
        return self.error is not None or self.finish_reason is None


@dataclasses.dataclass
class Traffic:
    """`concurrency` streams, each asking again when it is answered, until `stop` is called.

    Every request opens a connection of its own, so that a Service spreads them over its endpoints. No two prompts
    share a prefix.

    whole: no answer ends before max_tokens
    """

    base_url: str
    model: str
    concurrency: int
    prompt_words: int = 200
    max_tokens: int = 128
    whole: bool = False
    results: list[StreamResult] = dataclasses.field(default_factory=list)
    _stopping: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = dataclasses.field(default_factory=list)

    def start(self) -> None:
        """Open the streams. Must be called inside a running event loop."""
        self._tasks = [asyncio.create_task(self._ask_again(lane)) for lane in range(self.concurrency)]

    async def stop(self, *, timeout_s: float = 120) -> list[StreamResult]:
        """Ask nothing new, let what runs come to its end, and give all the results."""
        self._stopping.set()
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*self._tasks)
        return self.results

    async def _ask_again(self, lane: int) -> None:
        rng = random.Random(lane)
        # A connection per request: a kept-alive one would stay on the pod that it first met.
        limits = httpx2.Limits(max_keepalive_connections=0)
        async with (
            httpx2.AsyncClient(limits=limits, timeout=httpx2.Timeout(300, connect=10)) as http,
            openai.AsyncOpenAI(base_url=self.base_url, api_key="none", http_client=http, max_retries=0) as client,
        ):
            for turn in itertools.count():
                if self._stopping.is_set():
                    return
                text = f"{lane}-{turn}: " + " ".join(rng.choices(WORDS, k=self.prompt_words))
                result = await stream_once(client, self.model, text, self.max_tokens, whole=self.whole)
                self.results.append(result)
                if result.error is not None:
                    # Refused or cut off: a client that waits a moment, not one that hammers.
                    await asyncio.sleep(0.5)


async def stream_once(
    client: openai.AsyncOpenAI,
    model: str,
    text: str,
    max_tokens: int,
    on_text: Callable[[str], None] | None = None,
    *,
    whole: bool = False,
) -> StreamResult:
    """Stream one chat answer at temperature 0 and tell what became of it. Errors are in the result, never raised."""
    started = time.monotonic()
    first: float | None = None
    finish: str | None = None
    chunks = 0
    error: str | None = None
    try:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": text}],
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True} if whole else None,
        )
        async for event in stream:
            for choice in event.choices:
                if choice.delta.content:
                    first = first or time.monotonic()
                    chunks += 1
                    if on_text is not None:
                        on_text(choice.delta.content)
                finish = choice.finish_reason or finish
    except (openai.OpenAIError, httpx2.HTTPError) as problem:
        error = f"{type(problem).__name__}: {problem}"
    return StreamResult(started, first, time.monotonic(), chunks, finish, error)
