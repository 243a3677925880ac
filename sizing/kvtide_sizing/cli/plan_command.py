"""`kvtide plan`: what a model's KV cache takes on a device, what fits, and why."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TextIO

import click

from kvtide_sizing.cli.exit import fail
from kvtide_sizing.devices.device import device_named
from kvtide_sizing.errors import DoesNotFit, InvalidModel, SizingError
from kvtide_sizing.formats import Precision
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_sizing.models.inspect import resolve_model
from kvtide_sizing.models.sensitivity import with_measurement
from kvtide_sizing.plan import Plan, Policy, Profile, Workload, plan
from kvtide_sizing.plan.explain import explain as explanation_of
from kvtide_sizing.plan.ladder import Rung, ladder
from kvtide_sizing.quantity import parse_quantity
from kvtide_sizing.shape import ModelShape

DOES_NOT_FIT_STATUS = 2

# Plain strings: of an enum click takes the members' names, not what the resource writes.
_PRECISIONS = ["Auto", *(precision.value for precision in Precision)]
_PROFILES = [profile.value for profile in Profile]
_WEIGHTS = ["Auto", *(stored.value for stored in WeightFormat)]

_EXAMPLES = """
\b
Examples:
  kvtide plan --model llama-2-7b --device a100-80gb --context 4096
  kvtide plan --model llama-3.1-8b --device l4 --context 8192 --concurrency 32
  kvtide plan --model llama-2-13b --device a100-40gb --context 4096 --compare
  kvtide plan --model ./my-model --device mygpu:48GiB --explain
  kvtide plan --model model.gguf --device cpu:2GiB -o json

Messages name fields as the resource has them: kvCache.precision is --precision, maxContextTokens is --context,
kvCache.blockSizeTokens is --block-size, attention.kvHeads is --kv-heads, model.weightPrecision is --weights,
device.count is --count.
"""


class _KvHeads(click.ParamType[str | int]):
    """Native, Auto or a number."""

    name = "N|Native|Auto"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        text = str(value)
        return int(text) if text.isdecimal() else text.capitalize()


@click.command("plan", epilog=_EXAMPLES)
@click.option(
    "--model",
    required=True,
    metavar="NAME|FOLDER|FILE.gguf",
    help="A built-in name (`kvtide models`), or a model's files.",
)
@click.option(
    "--device",
    required=True,
    metavar="NAME[:MEMORY]",
    help="A built-in name (`kvtide devices`), mygpu:48GiB, cpu:2GiB.",
)
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="Devices that share the model.")
@click.option("--context", type=int, help="Longest sequence in tokens. Default: the model's, cut to what fits.")
@click.option("--concurrency", type=int, help="Sequences to hold at once; Auto chooses so that they fit.")
@click.option(
    "--precision",
    type=click.Choice(_PRECISIONS, case_sensitive=False),
    default="Auto",
    show_default=True,
    help="How keys and values are stored.",
)
@click.option(
    "--max-quality-loss",
    type=float,
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="What Auto may cost in perplexity.",
)
@click.option(
    "--sensitivity",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="What `kvtide quality MODEL --sensitivity FILE` measured; Mixed is chosen by it.",
)
@click.option("--block-size", type=int, help="Tokens of a KV block. Default: chosen.")
@click.option(
    "--kv-heads",
    type=_KvHeads(),
    default="Native",
    show_default=True,
    help="KV heads; Auto chooses among the variants.",
)
@click.option("--variant", "variants", type=int, multiple=True, help="KV heads of a trained variant; may be repeated.")
@click.option(
    "--weights",
    type=click.Choice(_WEIGHTS, case_sensitive=False),
    default="Auto",
    show_default=True,
    help="How matrices are served. Auto: as the checkpoint is quantised, else BF16. INT8 takes half, and may cost 1 %.",
)
@click.option(
    "--profile",
    type=click.Choice(_PROFILES, case_sensitive=False),
    default=Profile.CHAT.value,
    show_default=True,
    help="What sequences are like.",
)
@click.option("--mean-prompt", type=int, help="Mean prompt in tokens. Default: the profile's.")
@click.option("--mean-output", type=int, help="Mean output in tokens. Default: the profile's.")
@click.option(
    "--compare", is_flag=True, help="Put contiguous and paged allocation, fewer heads and precisions side by side."
)
@click.option("--explain", is_flag=True, help="Print the formula with the numbers put in.")
@click.option("--overhead", metavar="SIZE", help="What driver and framework were measured to take, such as 900Mi.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def plan_command(
    model: str,
    device: str,
    count: int,
    context: int | None,
    concurrency: int | None,
    precision: str,
    max_quality_loss: float,
    sensitivity: TextIO | None,
    block_size: int | None,
    kv_heads: str | int,
    variants: tuple[int, ...],
    weights: str,
    profile: str,
    mean_prompt: int | None,
    mean_output: int | None,
    compare: bool,
    explain: bool,
    overhead: str | None,
    output: str,
) -> None:
    """Say what a model's KV cache takes on a device, and what fits.

    Exits with 2 where it does not fit, and says by how much and what would; with 64 for an unknown option.
    """
    try:
        measured = None if overhead is None else parse_quantity(overhead)
        on = replace(device_named(device), count=count, measured_overhead_bytes=measured)
        shape = _measured(resolve_model(model), sensitivity)
        workload = Workload(Profile(profile), context, mean_prompt, mean_output, concurrency)
        policy = Policy(precision, block_size, kv_heads, variants, max_quality_loss, weights)
        result = plan(shape, on, workload, policy)
        rungs = ladder(result, shape, on, workload, policy) if compare else []
        lines = explanation_of(result, shape, on, workload, policy) if explain else []
    except SizingError as error:
        if output != "table":
            _print_data({"error": _error(error)}, output)
        fail(error, DOES_NOT_FIT_STATUS if isinstance(error, DoesNotFit) else 1)
    _print(result, rungs, lines, output)


def _measured(shape: ModelShape, sensitivity: TextIO | None) -> ModelShape:
    if sensitivity is None:
        return shape
    try:
        return with_measurement(shape, json.load(sensitivity))
    except ValueError as error:
        raise InvalidModel(f"{sensitivity.name} cannot be read as JSON: {error}") from error


def _print(result: Plan, rungs: Sequence[Rung], explanation: Sequence[str], output: str) -> None:
    if output == "table":
        from rich.console import Console

        from kvtide_sizing.cli.render import show

        # Without a terminal nobody wraps lines: they may be long.
        show(Console(width=None if sys.stdout.isatty() else 160), result, rungs, explanation)
        return
    data: dict[str, Any] = result.to_json()
    if rungs:
        data["comparison"] = [rung.to_json() for rung in rungs]
    if explanation:
        data["explanation"] = list(explanation)
    _print_data(data, output)


def _print_data(data: dict[str, Any], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(data, indent=2))
    else:
        import yaml

        click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120), nl=False)


def _error(error: SizingError) -> dict[str, Any]:
    """A refusal as JSON values."""
    data: dict[str, Any] = {"reason": error.reason, "message": str(error)}
    if isinstance(error, DoesNotFit):
        data |= {
            "neededBytes": error.needed_bytes,
            "deviceBytes": error.device_bytes,
            "changes": list(error.changes),
        }
    return data
