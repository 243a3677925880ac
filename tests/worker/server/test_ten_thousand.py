"""Ten thousand requests, a third of which are given up on: nothing stays allocated, and memory is where it was."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from tests.worker.server.harness import MODEL_NAME, Server, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REQUESTS, WARM_UP, LANES = 10_000, 1_500, 48
# What the allocators of two processes may differ by from one moment to the next.
NOISE_BYTES = 32 << 20


async def ask(session: aiohttp.ClientSession, url: str, rng: random.Random, seen: Counter[str]) -> None:
    """One request of a random kind; what became of it is counted."""
    prompt = [rng.randrange(3, 40_000) for _ in range(rng.choice((3, 20, 70, 200)))]
    body = {
        "model": MODEL_NAME, "prompt": prompt, "max_tokens": rng.choice((1, 4, 16, 40)), "ignore_eos": True,
        "n": rng.choice((1, 1, 1, 2)), "stream": rng.random() < 0.5, "temperature": rng.choice((0, 1)),
        "priority": rng.choice((0, 0, 1)),
    }  # fmt: skip
    if rng.random() < 0.1:
        body["timeout"] = rng.choice((0.001, 0.02))
    given_up = rng.random() < 0.33
    patience = aiohttp.ClientTimeout(total=rng.uniform(0, 0.05) if given_up else 120)
    try:
        async with session.post(url, json=body, timeout=patience) as answer:
            await answer.read()
            seen[f"{answer.status}"] += 1
    except TimeoutError:
        assert given_up, "a client that waits two minutes is answered"
        seen["given up"] += 1


async def ask_many(url: str, count: int, seed: int) -> Counter[str]:
    """So many requests in LANES at once."""
    seen: Counter[str] = Counter()
    left = iter(range(count))

    async def lane(number: int) -> None:
        rng = random.Random(1000 * seed + number)
        async with aiohttp.ClientSession() as session:
            for _ in left:
                await ask(session, f"{url}/v1/completions", rng, seen)

    await asyncio.gather(*map(lane, range(LANES)))
    return seen


def taken_bytes(*processes: int) -> int:
    """Private memory of processes, the page cache's share not counted."""
    total = 0
    for process in processes:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Private_Dirty:", "Private_Clean:")):
                total += int(line.split()[1]) << 10
    return total


def test_nothing_stays_allocated(tiny_server: Server) -> None:
    processes = (tiny_server.process.pid, tiny_server.engine_pid())
    asyncio.run(ask_many(tiny_server.url, WARM_UP, seed=1))
    eventually(lambda: tiny_server.state()["requests"]["running"] == 0, 30)
    before = taken_bytes(*processes)

    seen = asyncio.run(ask_many(tiny_server.url, REQUESTS - WARM_UP, seed=2))

    assert seen.keys() <= {"200", "429", "504", "given up"}, seen
    assert seen["200"] > REQUESTS // 4
    assert seen["given up"] > REQUESTS // 20
    eventually(lambda: tiny_server.state()["requests"] == dict.fromkeys(tiny_server.state()["requests"], 0), 30)
    state = tiny_server.state()["kv"]
    assert state["liveBlocks"] == state["liveTokens"] == 0
    assert state["cachedBlocks"] + state["freeBlocks"] == state["numBlocks"]
    assert tiny_server.admin.get("/debug/kv").json()["sequences"] == []
    assert taken_bytes(*processes) - before < NOISE_BYTES
