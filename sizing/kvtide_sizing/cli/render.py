"""A plan for people: a bar that shows where the memory goes, and tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from kvtide_sizing.plan.ladder import Rung
from kvtide_sizing.plan.record import MemoryPlan, Plan
from kvtide_sizing.quantity import format_bytes

_BAR_WIDTH = 60


def show(console: Console, plan: Plan, rungs: Sequence[Rung]) -> None:
    """Print the plan, and the ladder where rungs has one."""
    parts: list[Text | Table] = [_headline(plan), Text(), _bar(plan.memory), _memory(plan.memory), Text(), _kv(plan)]
    if rungs:
        parts += [Text(), _ladder(rungs)]
    parts += [Text(), _lines("because", plan.reasons, "green")]
    if plan.alternatives:
        parts += [_alternatives(plan)]
    parts += [_lines("note", plan.warnings, "yellow")]
    console.print(Group(*parts))


def _headline(plan: Plan) -> Text:
    text = Text.assemble((plan.model, "bold"), " on ", (plan.device, "bold"))
    text.append(f" ({format_bytes(plan.memory.device_bytes)}): ")
    text.append(f"{plan.kv.capacity_tokens:,} tokens", "bold")
    text.append(f" of {plan.kv.precision} KV, {plan.batch_limit} sequences at once")
    return text


def _components(memory: MemoryPlan) -> list[tuple[str, int, str]]:
    return [
        ("weights", memory.weights_bytes, "blue"),
        ("KV pool", memory.kv_pool_bytes, "green"),
        ("activations", memory.activations_bytes, "yellow"),
        ("overhead", memory.overhead_bytes, "magenta"),
        ("reserve", memory.reserve_bytes, "bright_black"),
    ]


def _bar(memory: MemoryPlan) -> Text:
    """The device as a row of cells; each part ends where the parts before it and it end."""
    bar = Text()
    sofar = drawn = 0
    for _, amount, colour in _components(memory):
        sofar += amount
        end = round(sofar * _BAR_WIDTH / memory.device_bytes)
        bar.append("█" * (end - drawn), colour)
        drawn = end
    return bar


def _memory(memory: MemoryPlan) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    for justify in ("right", "right", "right"):
        table.add_column(justify=justify)
    for name, amount, colour in _components(memory):
        share = f"{amount / memory.device_bytes:.1%}"
        table.add_row(Text.assemble(("█ ", colour), name), format_bytes(amount), share, f"{amount:,}")
    return table


def _kv(plan: Plan) -> Table:
    table = Table.grid(padding=(0, 2))
    kv, attention = plan.kv, plan.attention
    for name, value in (
        ("a token", f"{kv.bytes_per_token:,} bytes ({attention.kv_heads} KV heads of {attention.query_heads})"),
        ("a block", f"{kv.block_size_tokens} tokens, {kv.bytes_per_block:,} bytes"),
        ("the pool", f"{kv.num_blocks:,} blocks, {kv.capacity_tokens:,} tokens"),
        (
            "a sequence",
            f"up to {plan.max_context_tokens:,} tokens; {plan.max_concurrency:,} of that length fit at once",
        ),
        ("batch limit", f"{plan.batch_limit:,} sequences of the expected length"),
    ):
        table.add_row(name, value)
    return table


def _ladder(rungs: Sequence[Rung]) -> Table:
    table = Table(title="The same pool, used in other ways", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("allocation", no_wrap=True)
    for name in ("bytes a token", "KV a sequence", "saved", "sequences", "their tokens"):
        table.add_column(name, justify="right")
    for rung in rungs:
        table.add_row(
            rung.name,
            f"{rung.bytes_per_token:,}",
            format_bytes(rung.bytes_per_sequence),
            f"{rung.saving:.0%}",
            f"{rung.sequences:,}",
            f"{rung.tokens:,}",
        )
    return table


def _alternatives(plan: Plan) -> Table:
    lines = [
        f"{other.choice}: {other.capacity_tokens:,} tokens, {other.batch_limit} sequences at once"
        for other in plan.alternatives
    ]
    return _lines("instead", lines, "cyan")


def _lines(label: str, lines: Sequence[str], colour: str) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", min_width=8, style=colour)
    for line in lines:
        table.add_row(label, line)
    return table
