"""A plan for people: a bar that shows where the memory goes, and tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from kvtide_sizing.plan.ladder import Rung
from kvtide_sizing.plan.record import Alternative, MemoryPlan, Plan
from kvtide_sizing.quantity import format_bytes

_BAR_WIDTH = 60


def show(console: Console, plan: Plan, rungs: Sequence[Rung], explanation: Sequence[str]) -> None:
    """Print the plan, the ladder where rungs has one, and the formula where explanation has one."""
    parts: list[Text | Table] = [_headline(plan), Text(), _bar(plan.memory), _memory(plan), Text(), _kv(plan)]
    if rungs:
        parts += [Text(), _ladder(rungs)]
    parts += [Text(), _lines("because", plan.reasons, "green")]
    if explanation:
        parts += [Text(), _lines("sum", explanation, "blue")]
    if plan.alternatives and not rungs:
        parts += [Text(), _alternatives(plan)]
    parts += [Text(), _lines("note", plan.warnings, "yellow")]
    console.print(Group(*parts))


def _headline(plan: Plan) -> Text:
    text = Text.assemble((plan.model, "bold"), " on ", (plan.device, "bold"))
    if plan.device_count > 1:
        text.append(f" × {plan.device_count}", "bold")
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


def _memory(plan: Plan) -> Table:
    memory = plan.memory
    table = Table.grid(padding=(0, 2))
    table.add_column()
    for justify in ("right", "right", "right"):
        table.add_column(justify=justify)
    for name, amount, colour in _components(memory):
        share = f"{amount / memory.device_bytes:.1%}"
        label = f"{name} in {plan.weight_precision}" if name == "weights" else name
        table.add_row(Text.assemble(("█ ", colour), label), format_bytes(amount), share, f"{amount:,}")
    return table


def _kv(plan: Plan) -> Table:
    table = Table.grid(padding=(0, 2))
    kv, attention = plan.kv, plan.attention
    for name, value in (
        (
            "a token",
            f"{kv.bytes_per_token:,} bytes ({attention.query_heads} query heads share {attention.kv_heads} of KV)",
        ),
        ("a block", f"{kv.block_size_tokens} tokens, {kv.bytes_per_block:,} bytes"),
        ("the pool", f"{kv.num_blocks:,} blocks, {kv.capacity_tokens:,} tokens"),
        (
            "a sequence",
            f"up to {plan.max_context_tokens:,} tokens, of which {plan.max_concurrency:,} fit at once; "
            f"one alone could have {plan.longest_context_tokens:,}",
        ),
        ("batch limit", f"{plan.batch_limit:,} sequences of the expected length"),
    ):
        table.add_row(name, value)
    return table


def _ladder(rungs: Sequence[Rung]) -> Table:
    table = Table(
        title="The ladder, for sequences of the expected length: each row keeps what the rows before it gained",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    table.add_column("allocation", no_wrap=True)
    for name in ("bytes a token", "KV a sequence", "saved", "sequences", "their tokens"):
        table.add_column(name, justify="right")
    for rung in rungs:
        table.add_row(
            rung.name,
            f"{rung.bytes_per_token:,}",
            format_bytes(rung.bytes_per_sequence),
            f"{rung.saving:.1%}",
            f"{rung.sequences:,}",
            f"{rung.tokens:,}",
        )
    return table


def _alternatives(plan: Plan) -> Table:
    table = Table(title="Instead", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("choice", no_wrap=True, style="cyan")
    for name in ("bytes a token", "tokens", f"sequences of {plan.max_context_tokens:,}", "batch limit"):
        table.add_column(name, justify="right")
    table.add_column("")
    for other in plan.alternatives:
        table.add_row(
            other.choice,
            f"{other.bytes_per_token:,}",
            f"{other.capacity_tokens:,}",
            f"{other.max_concurrency:,}",
            f"{other.batch_limit:,}",
            _served(other, plan),
        )
    return table


def _served(other: Alternative, plan: Plan) -> str:
    if not other.served:
        return "not served yet"
    field, value = other.choice.split()
    pooled = field == "kvHeads" and int(value) < plan.attention.native_kv_heads
    return "pooled, if the quality gate lets it pass" if pooled else ""


def _lines(label: str, lines: Sequence[str], colour: str) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", min_width=8, style=colour)
    for line in lines:
        table.add_row(label, line)
    return table
