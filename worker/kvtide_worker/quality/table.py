"""A quality report for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvtide_worker.quality.report import FormatReport, QualityReport
from kvtide_worker.quality.sensitivity import Sensitivity


def show(console: Console, result: QualityReport | Sensitivity) -> None:
    """Print what was found."""
    if isinstance(result, Sensitivity):
        _show_layers(console, result)
    else:
        _show_formats(console, result)


def _show_formats(console: Console, report: QualityReport) -> None:
    """As a table, and below it what the columns leave open."""
    answered = [each.answers for each in report.formats if each.answers is not None]
    title = f"{report.model}: {report.tokens:,} tokens of {', '.join(report.texts)}, weights in {report.dtype}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("KV format", no_wrap=True)
    columns = ["bytes a token", "perplexity", "% worse", "bound", "", "KL divergence", "top-1 %"]
    for name in columns + (["greedy %", "tokens alike", "answers alike"] if answered else []):
        table.add_column(name, justify="right", no_wrap=True)
    for each in report.formats:
        table.add_row(*_cells(each))
    console.print(table)
    if answered:
        answers = answered[0]
        console.print(
            f"Greedy: {answers.tokens:,} tokens of {answers.answers} answers in conversations; tokens alike is the "
            f"median of an answer's before its first other token.",
            style="bright_black",
        )
    for each in report.formats:
        if each.beside is not None:
            name, worse = each.beside
            console.print(f"{each.name} against {name}: {worse.percent:+.2f} ± {worse.error_percent:.2f} %")
    unsure = [each.name for each in report.formats if not each.certain]
    if unsure:
        console.print(
            f"The error of {', '.join(unsure)} is more than half of the bound: measure more text (--text, --tokens).",
            style="yellow",
        )


def _cells(each: FormatReport) -> list[str | Text]:
    text = each.text
    cells: list[str | Text] = [each.name, f"{each.bytes_per_token:,}", f"{text.perplexity:.3f}"]
    if each.bound_percent is None:
        cells += ["", "", "", "", ""]
    else:
        cells += [
            f"{text.worse.percent:+.2f} ± {text.worse.error_percent:.2f}",
            f"{each.bound_percent:g}",
            Text("✓", "green") if each.passed else Text("✗", "bold red"),
            f"{text.divergence:.5f}",
            f"{text.agreed_percent:.1f}",
        ]
    if each.answers is not None:
        answers = each.answers
        cells += [f"{answers.agreed_percent:.1f}", f"{answers.first_difference:g}", f"{answers.same}/{answers.answers}"]
    return cells


def _show_layers(console: Console, sensitivity: Sensitivity) -> None:
    """Each layer's divergences, in thousandths of a nat a token."""
    table = Table(
        title=f"{sensitivity.model}: KL divergence · 1000 with one side alone in a format, the rest in BF16; "
        f"{sensitivity.tokens} tokens",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    table.add_column("layer", justify="right")
    for name in ("keys INT8", "keys INT4", "values INT8", "values INT4"):
        table.add_column(name, justify="right")
    for index, layer in enumerate(sensitivity.layers):
        table.add_row(
            str(index), *(f"{1000 * loss:.3f}" for side in (layer.key, layer.value) for loss in (side.int8, side.int4))
        )
    console.print(table)
