"""A value that is read when it is asked for, and kept for a while."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """Whoever asks while it is being read waits for that one reading, which goes on where somebody gives up waiting."""

    def __init__(self, read: Callable[[], Awaitable[T]], kept_s: float) -> None:
        self._read = read
        self._kept_s = kept_s
        self._last: tuple[T, float] | None = None
        self._reading: asyncio.Task[T] | None = None

    @property
    def last(self) -> T | None:
        """What was last read, however old; None before that."""
        return self._last[0] if self._last else None

    def amend(self, value: T) -> None:
        """Puts another value in the place of the last one, to be read again no later than that."""
        if self._last:
            self._last = (value, self._last[1])

    async def get(self) -> T:
        """The value, at most kept_s seconds old. Raises what reading raises; the next call then reads again."""
        if self._reading is None:
            if self._last and time.monotonic() - self._last[1] <= self._kept_s:
                return self._last[0]
            self._reading = asyncio.create_task(self._renew())
            self._reading.add_done_callback(self._done)
        return await asyncio.shield(self._reading)

    async def _renew(self) -> T:
        value = await self._read()
        self._last = (value, time.monotonic())
        return value

    def _done(self, task: "asyncio.Task[T]") -> None:
        self._reading = None
        # Marks an error as seen: where nobody waits any longer, nobody is to be told.
        if not task.cancelled():
            task.exception()
