"""What the pool is stored as now, and how it becomes something else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvtide_kernels.attention import PagedAttention
from kvtide_kernels.backends import attention_over
from kvtide_kernels.pool import KVPool
from kvtide_kernels.reencode import UsedBlocks, reencode
from kvtide_sizing.formats import LayerFormat, Precision
from kvtide_sizing.plan.planner import layer_runs
from kvtide_worker.engine.cannot_reencode import CannotReencode
from kvtide_worker.engine.kv_choice import KvChoice, becomes
from kvtide_worker.engine.layout import ServedKv
from kvtide_worker.engine.messages import KvFormat, ReencodeError


class KvFormats:
    """The precision in force, and those that passed their check; query_heads and scale as attention has them.

    Smaller ones are reached with the pool's content; larger ones, and those that cut it otherwise, without: their pool
    holds less than what may be live in this one.
    """

    def __init__(self, choice: KvChoice, *, query_heads: int, scale: float) -> None:
        self.served = choice.served
        self._passed = {choice.served.precision: choice.served, **choice.others}
        self._bases = choice.bases
        self._query_heads, self._scale = query_heads, scale

    @property
    def reencodable(self) -> list[Precision]:
        """What the pool may become as it stands, the largest first."""
        return [precision for precision, other in self._passed.items() if becomes(self.served, other)]

    @property
    def told(self) -> KvFormat:
        """What the state says of it."""
        reencodable = self.reencodable
        return told(
            self.served.precision.value,
            self.served.formats,
            reencodable,
            [one for one in self._passed if one is not self.served.precision and one not in reencodable],
        )

    def target(self, name: str, *, live_blocks: int) -> ServedKv:
        """The pool in the precision of that name. Raises CannotReencode for one that it cannot have now."""
        kv = self.told
        if name in kv.reencodable or name == kv.precision:
            return self._passed[Precision(name)]
        if name not in kv.larger:
            others = [*kv.reencodable, *(f"{one} (once no request runs)" for one in kv.larger)]
            raise CannotReencode(
                f"kvPrecision {name}: KV is stored as {kv.precision}, and of what passed its check when the model was "
                f"loaded it may become {', '.join(others) or 'nothing else'}",
                ReencodeError.NEVER,
            )
        if live_blocks:
            raise CannotReencode(
                f"kvPrecision {name} takes more bytes than {kv.precision}, and {live_blocks} blocks are live: it is "
                f"possible once no request runs; pause admission and wait",
                ReencodeError.NOT_NOW,
            )
        return self._passed[Precision(name)]

    def attention(self, pool: KVPool) -> PagedAttention:
        """What attends over a pool of the precision in force."""
        bases = {layer: basis for layer, basis in self._bases.items() if self.served.formats[layer].has_key_basis}
        return attention_over(pool, query_heads=self._query_heads, scale=self._scale, bases=bases)

    def reencoded(
        self,
        pool: KVPool,
        target: ServedKv,
        used: Sequence[tuple[Sequence[int], Sequence[int]]],
        tick: Callable[[], None],
    ) -> KVPool:
        """The pool as the target, with the content of blocks in use, as `BlockManager.used_blocks` tells them.

        tick: called several times a second
        """
        smaller = reencode(
            pool,
            target.layout,
            target.formats,
            num_blocks=target.num_blocks,
            used=[UsedBlocks(tokens, recent) for tokens, recent in used],
            bases=self._bases,
            tick=tick,
        )
        self.served = target
        return smaller

    def emptied(self, pool: KVPool, target: ServedKv) -> KVPool:
        """A pool as the target in the same memory, whose content is lost."""
        made = KVPool.over(
            pool.storage,
            target.layout,
            target.formats,
            num_blocks=target.num_blocks,
            kv_heads=pool.kv_heads,
            head_dim=pool.head_dim,
        )
        self.served = target
        return made


def told(
    precision: str, formats: Sequence[LayerFormat], reencodable: Sequence[str] = (), larger: Sequence[str] = ()
) -> KvFormat:
    """A precision as the state tells it."""
    runs = layer_runs([(each.key.name, each.value.name) for each in formats])
    return KvFormat(
        precision,
        [(run.layers, run.key, run.value) for run in runs],
        list(map(str, reencodable)),
        list(map(str, larger)),
    )
