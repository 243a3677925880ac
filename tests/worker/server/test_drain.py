"""A worker that is stopped under load: every stream that it has taken comes to its last token."""

import asyncio
from pathlib import Path

import openai
import pytest

from tests.worker.server.conftest import serve_tiny
from tests.worker.server.harness import MODEL_NAME, eventually

STREAMS, TOKENS = 50, 300


async def stream(client: openai.AsyncOpenAI, lane: int, begun: asyncio.Semaphore) -> list[str]:
    """The text of each token of one greedy answer; raises where it breaks off."""
    answer = await client.completions.create(
        model=MODEL_NAME,
        prompt=[1000 + 37 * lane] * (8 + lane),
        max_tokens=TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    texts, reason, usage = [], None, None
    async for chunk in answer:
        if chunk.choices:
            texts.append(chunk.choices[0].text)
            reason = chunk.choices[0].finish_reason or reason
        usage = chunk.usage or usage
        if len(texts) == 1:
            begun.release()
    assert (reason, usage.completion_tokens) == ("length", TOKENS)
    return texts


@pytest.mark.slow
def test_a_drain_under_fifty_streams_loses_no_token(smollm2: Path, tmp_path: Path) -> None:
    with serve_tiny(smollm2, tmp_path, max_context=512) as server:
        server.ready()

        async def all_streams(stop: bool) -> list[list[str]]:
            begun = asyncio.Semaphore(0)
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
                lanes = [asyncio.create_task(stream(client, lane, begun)) for lane in range(STREAMS)]
                # The batch is smaller than the streams are many: some run, some wait, and all are to be served.
                for _ in range(8):
                    await begun.acquire()
                if stop:
                    server.terminate()
                return await asyncio.gather(*lanes)

        alone = asyncio.run(all_streams(stop=False))
        eventually(lambda: server.state()["requests"]["running"] == 0, 10)
        assert ["".join(texts) for texts in asyncio.run(all_streams(stop=True))] == ["".join(texts) for texts in alone]
        assert server.exit_status(within_s=30) == 0
