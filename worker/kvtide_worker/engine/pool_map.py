"""The KV pool as a picture: which block is whose. For people who look for a leak, or wonder where the memory went."""

from __future__ import annotations

from collections.abc import Iterable

from kvtide_worker.engine.block_manager import BlockManager
from kvtide_worker.engine.messages import PoolMap, SequenceMap
from kvtide_worker.engine.request import Request


def pool_map(blocks: BlockManager, requests: Iterable[Request]) -> PoolMap:
    """The pool as it stands between two steps, and what each of these requests has of it."""
    return PoolMap(
        block_size_tokens=blocks.layout.block_size,
        block_tables=len(blocks.layout.tables),
        drawn=blocks.drawn(),
        sequences=[_sequence(request) for request in requests],
    )


def _sequence(request: Request) -> SequenceMap:
    held = request.blocks
    return SequenceMap(
        request_id=request.request_id,
        running=bool(held.tables),
        priority=request.priority,
        preemptions=request.preemptions,
        prompt_tokens=len(request.prompt_token_ids),
        output_tokens=len(request.output_token_ids),
        written_tokens=held.num_tokens,
        cached_tokens=request.cached_tokens or 0,
        first_blocks=[table.first for table in held.tables],
        blocks=[list(table.blocks) for table in held.tables],
        recent_blocks=[list(table.recent) for table in held.tables],
    )
