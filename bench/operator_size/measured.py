"""What the API server and the kernel counted over a stretch of time."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.operator_size.control_plane import ControlPlane, scrape
from bench.operator_size.processes import MIB, cpu_seconds, rss_bytes, slope

_REQUEST = re.compile(r"^apiserver_request_total\{(.*)\} ([\d.e+]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
READS = ("GET", "LIST")
WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION")
SAMPLE_S = 5.0


async def requests(plane: ControlPlane) -> Counter[tuple[str, str]]:
    """Requests so far by verb and resource (with its subresource)."""
    found: Counter[tuple[str, str]] = Counter()
    for labels, value in _REQUEST.findall(await scrape(plane)):
        label = dict(_LABEL.findall(labels))
        what = "/".join(part for part in (label.get("resource", ""), label.get("subresource", "")) if part)
        found[label["verb"], what] += int(float(value))
    return found


@dataclass
class Stretch:
    """One stretch of time. `rss` as (seconds since its begin, bytes)."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    rss: list[tuple[float, float]] = field(default_factory=list)
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def cores(self) -> float:
        return self.cpu_s / self.seconds

    @property
    def rss_slope_mib_per_hour(self) -> float:
        return slope(self.rss) * 3600 / MIB

    @property
    def rss_peak_mib(self) -> float:
        return max(value for _, value in self.rss) / MIB

    def a_minute(self, verbs: tuple[str, ...], without: tuple[str, ...] = ()) -> float:
        """Requests of these verbs a minute, but for these resources."""
        found = sum(n for (verb, what), n in self.requests.items() if verb in verbs and what not in without)
        return found * 60 / self.seconds

    def table(self) -> str:
        """Every kind of request, the most frequent first."""
        rows = (f"{verb} {what} {n * 60 / self.seconds:.1f}" for (verb, what), n in self.requests.most_common() if n)
        return ", ".join(rows)


async def stretch(plane: ControlPlane, pid: int, seconds: float, say: Callable[[str], None]) -> Stretch:
    """Watches for so many seconds."""
    found, began = Stretch(), time.monotonic()
    before, cpu = await requests(plane), cpu_seconds(pid)
    said = began
    while (passed := time.monotonic() - began) < seconds:
        found.rss.append((passed, rss_bytes(pid)))
        if time.monotonic() - said >= 30:
            said = time.monotonic()
            used = (cpu_seconds(pid) - cpu) / passed
            say(f"quiet for {passed:.0f} s: {found.rss[-1][1] / MIB:.0f} MiB, {used:.2f} cores")
        await asyncio.sleep(min(SAMPLE_S, seconds - passed))
    found.seconds = time.monotonic() - began
    found.cpu_s = cpu_seconds(pid) - cpu
    found.requests = await requests(plane) - before
    return found
