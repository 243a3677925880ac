"""One screen: bars for memory and KV, the requests, the rates, and how they went lately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from kvtide_sizing.quantity import format_bytes
from kvtide_worker.top.rates import Rates
from kvtide_worker.top.reading import BLOCK_STATES, COMPONENTS, Reading

_BAR = 60
_SPARKS = "▁▂▃▄▅▆▇█"
_LABELS = {"kv_pool": "KV pool"}
_COLOURS = {
    "weights": "blue", "kv_pool": "green", "activations": "yellow", "other": "magenta",
    "live": "green", "cached": "cyan", "free": "bright_black",
}  # fmt: skip
# Requests that are shown by themselves; a screen has so many lines.
_MOST_ROWS = 12


def screen(
    url: str,
    reading: Reading,
    of: Rates,
    history: Sequence[tuple[float, float]] = (),
    pool: Mapping[str, Any] | None = None,
    trouble: str | None = None,
) -> RenderableType:
    """The screen as it is drawn now.

    of:       what happened lately
    history:  (KV usage from 0 to 1, output tokens a second), oldest first
    pool:     what /debug/kv answered, where it was asked
    trouble:  why the numbers are old
    """
    parts: list[RenderableType] = [_head(reading), Text(), *_memory(reading), Text(), *_kv(reading)]
    if pool is not None:
        parts += [Text(), _map(str(pool["blocks"]))]
    parts += [Text(), _numbers(reading, of)]
    if len(history) > 1:
        parts += [Text(), _lately(history)]
    if pool is not None and pool["sequences"]:
        parts += [Text(), _requests(pool["sequences"])]
    if trouble is not None:
        parts += [Text(), Text(trouble, "bold red")]
    return Panel(Group(*parts), title=f"[bold]{reading.model}[/] on {url}", title_align="left", width=84)


def _head(reading: Reading) -> Text:
    stored = "; ".join(
        f"layers {layers}: {key}" if key == value else f"layers {layers}: {key} keys, {value} values"
        for layers, key, value in reading.stored
    )
    return Text(f"{reading.capacity_tokens:,} tokens of KV in blocks of {reading.block_size}; {stored}", "bold")


def _memory(reading: Reading) -> list[RenderableType]:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("memory", "predicted", "measured"):
        table.add_column(title, justify="left" if title == "memory" else "right")
    for name in COMPONENTS:
        label = Text("■ ", _COLOURS[name]).append(_LABELS.get(name, name), "default")
        amounts = (source.get(name) for source in (reading.predicted, reading.measured))
        table.add_row(label, *("" if amount is None else format_bytes(amount) for amount in amounts))
    return [_bar(reading.measured, COMPONENTS), table]


def _kv(reading: Reading) -> list[RenderableType]:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(f"KV, {reading.usage:.0%} live")
    for title in ("blocks", "tokens"):
        table.add_column(title, justify="right")
    for state in BLOCK_STATES:
        label = Text("■ ", _COLOURS[state]).append(state, "default")
        table.add_row(label, f"{reading.blocks.get(state, 0):,}", f"{reading.tokens.get(state, 0):,}")
    return [_bar(reading.blocks, BLOCK_STATES), table]


def _bar(parts: Mapping[str, int], order: Sequence[str]) -> Text:
    """Cells for each part; each ends where the parts before it and it end, so that nothing is lost to rounding."""
    whole = sum(max(0, parts.get(name, 0)) for name in order)
    bar, sofar, drawn = Text(), 0, 0
    for name in order:
        sofar += max(0, parts.get(name, 0))
        end = round(sofar * _BAR / whole) if whole else 0
        bar.append(("░" if name == "free" else "█") * (end - drawn), _COLOURS[name])
        drawn = end
    return bar


def _map(blocks: str) -> Text:
    """The pool block by block; of a large one, each cell is the busiest of its blocks."""
    cells = 4 * _BAR
    each = -(-len(blocks) // cells)
    colours = {"#": "green", "&": "bright_green", "c": "cyan", ".": "bright_black"}
    text = Text()
    for at in range(0, len(blocks), each):
        piece = blocks[at : at + each]
        kind = next(kind for kind in "&#c." if kind in piece)
        text.append("·" if kind == "." else "■", colours[kind])
        if (at // each + 1) % _BAR == 0:
            text.append("\n")
    if not text.plain.endswith("\n"):
        text.append("\n")
    many = f"{each} blocks" if each > 1 else "1 block"
    return text.append(f"a cell is {many}; bright ones are shared, blue ones cached", "dim")


def _numbers(reading: Reading, of: Rates) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_column(justify="right")
    rows = [
        ("running", f"{reading.running} of {reading.batch_limit}", "output tokens/s", _number(of.output_tokens)),
        ("waiting", f"{reading.waiting}", "prompt tokens/s", _number(of.prompt_tokens)),
        ("queued prompt tokens", f"{reading.queued_prompt_tokens:,}", "answers/s", _number(of.answers)),
        ("preemptions", f"{reading.preemptions:,}", "prompt tokens found cached", _share(of.hit_share)),
        ("answers", f"{reading.answers:,}", "first token p50 · p95", _pair(of.first_token_p50, of.first_token_p95)),
        (
            "tokens generated",
            f"{reading.generation_tokens:,}",
            "per token p50 · p95",
            _pair(of.between_tokens_p50, of.between_tokens_p95),
        ),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _pair(median: float | None, high: float | None) -> str:
    return f"{_seconds(median)} · {_seconds(high)}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _lately(history: Sequence[tuple[float, float]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    shown = history[-_BAR:]
    fastest = max(rate for _, rate in shown)
    table.add_row("KV", Text(_spark([usage for usage, _ in shown], 1.0), "green"), "of 100 %")
    table.add_row("tokens/s", Text(_spark([rate for _, rate in shown], fastest), "blue"), f"of {fastest:,.0f}")
    return table


def _spark(values: Sequence[float], highest: float) -> str:
    last = len(_SPARKS) - 1
    return "".join(_SPARKS[min(last, round(value / highest * last)) if highest else 0] for value in values)


def _requests(sequences: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("request", "state", "prompt", "cached", "output", "blocks", "preempted"):
        table.add_column(title, justify="left" if title in ("request", "state") else "right")
    ordered = sorted(sequences, key=lambda one: (one["state"] != "running", -int(one["writtenTokens"])))
    for one in ordered[:_MOST_ROWS]:
        blocks = sum(len(held["blocks"]) + len(held["recentBlocks"]) for held in one["tables"])
        numbers = (one["promptTokens"], one["cachedTokens"], one["outputTokens"], blocks, one["preemptions"])
        table.add_row(one["id"], one["state"], *(f"{number:,}" for number in numbers))
    if len(ordered) > _MOST_ROWS:
        table.add_row(f"and {len(ordered) - _MOST_ROWS} more")
    return table
