"""`kvtide quality`: options to settings; everything heavy is imported when it runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_POSITIVE = click.IntRange(min=1)

EXIT_OK = 0
EXIT_MISSED = 1
EXIT_NOT_MEASURED = 3


@click.command("quality")
@click.argument("model")
@click.option(
    "--text", "texts", type=_FILE, multiple=True, help="A text to read; may be repeated. Default: the project's own."
)
@click.option(
    "--precision",
    default="INT8,K8V4,Mixed,INT4",
    show_default=True,
    metavar="P,P,…",
    help="The KV formats to compare with BF16.",
)
@click.option("--tokens", type=_POSITIVE, default=4096, show_default=True, help="Tokens to score at most.")
@click.option(
    "--window",
    "window_tokens",
    type=click.IntRange(min=128),
    default=512,
    show_default=True,
    help="Tokens of a text that are read as one sequence.",
)
@click.option(
    "--answer-tokens",
    type=click.IntRange(min=0),
    default=128,
    show_default=True,
    help="Tokens of each greedy answer at most; 0: no answers.",
)
@click.option(
    "--mixed-by",
    "sensitivity",
    type=_FILE,
    help="Choose Mixed by this file of --sensitivity; then it is also measured at 5 bits an element, beside INT4.",
)
@click.option(
    "--sensitivity",
    "write_sensitivity",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Instead, measure each layer's keys and values alone in few bits, in float32, and write that to this file.",
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float32"]),
    default="bfloat16",
    show_default=True,
    help="Of weights and arithmetic. float32 shows less than bfloat16's own noise; KV is stored and read as served.",
)
@click.option(
    "--weights",
    type=click.Choice(["BF16", "INT8"], case_sensitive=False),
    default="BF16",
    show_default=True,
    help="How matrices are held. INT8: they and each KV format with them are compared with BF16 of both.",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--threads", type=_POSITIVE, help="On a CPU. Default: what the cgroup allows.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def quality_command(write_sensitivity: Path | None, precision: str, weights: str, output: str, **options: Any) -> None:
    """Measure what KV formats cost a model's predictions, beside BF16.

    MODEL is what `kvtide serve --model` takes: hf://ORG/NAME[@REVISION], pvc://CLAIM/PATH, file:///PATH, or a path.

    Every token of the text is read as in a decode, through the pool and the kernels that serve. Perplexity, divergence
    and top-1 agreement are of the text; greedy agreement is of answers in conversations of several turns.

    \b
    Exit status: 0 where every format is within its bound (INT8 0.3, K8V4 and Mixed 1, INT4 3 % of perplexity),
    1 where one is not, 3 where nothing was measured. Weights in INT8 may cost 1 % more.
    """
    from kvtide_sizing.errors import SizingError
    from kvtide_sizing.memory.weights import WeightFormat
    from kvtide_worker.quality.measure import Settings, measure, measure_layers
    from kvtide_worker.text.tokenizer import UnsupportedTokenizerError

    names = [name.strip() for name in precision.split(",") if name.strip()]
    settings = Settings(precisions=names, weights=WeightFormat(weights), **options)
    try:
        if write_sensitivity is not None:
            sensitivity = measure_layers(settings, _progress)
            text = json.dumps(sensitivity.to_json(), indent=1)
            write_sensitivity.write_text(text + "\n", encoding="utf-8")
            _print(sensitivity, output)
            return
        report = measure(settings, _progress)
    except (SizingError, UnsupportedTokenizerError, ValueError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_NOT_MEASURED)
    _print(report, output)
    sys.exit(EXIT_OK if report.passed else EXIT_MISSED)


def _print(result: Any, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(result.to_json(), indent=2))
        return
    from rich.console import Console

    from kvtide_worker.quality.table import show

    # Without a terminal nobody wraps lines: they may be long.
    show(Console(width=None if sys.stdout.isatty() else 160), result)


@contextmanager
def _progress(label: str, passes: int) -> Iterator[Callable[[], None]]:
    """A bar with the time that is left, on standard error; each call is one forward pass."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=passes)
        yield lambda: bar.advance(task)
