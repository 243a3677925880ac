"""`kvtide plan` and `kvtide inspect`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from kvtide_sizing.devices.device import device_named
from kvtide_sizing.errors import DoesNotFit, SizingError
from kvtide_sizing.formats import Precision
from kvtide_sizing.models import catalog
from kvtide_sizing.models.inspect import inspect_model, resolve_model
from kvtide_sizing.models.model_uri import ModelUri, Scheme
from kvtide_sizing.plan import Plan, plan
from kvtide_sizing.plan.ladder import Rung, ladder
from kvtide_sizing.plan.workload import Policy, Profile, Workload
from kvtide_sizing.shape import ModelShape

DOES_NOT_FIT_STATUS = 2
NOT_INSPECTED_STATUS = 3
# Kubernetes keeps 4096 bytes of a termination message, and a character may take four.
_MOST_MESSAGE_CHARACTERS = 1000

# Plain strings: of an enum click takes the members' names, not what the resource writes.
_PRECISIONS = ["Auto", *(precision.value for precision in Precision)]
_PROFILES = [profile.value for profile in Profile]


@click.command("plan")
@click.option("--model", required=True, metavar="NAME|FOLDER|FILE.gguf", help="A built-in name, or a model's files.")
@click.option("--device", required=True, metavar="NAME[:MEMORY]", help="Such as a100-80gb, mygpu:48GiB, cpu:2GiB.")
@click.option("--context", type=int, help="Longest sequence in tokens. Default: the model's, cut to what fits.")
@click.option("--concurrency", type=int, help="Sequences to hold at once; a plan that holds fewer says so.")
@click.option("--precision", type=click.Choice(_PRECISIONS), default="Auto", show_default=True)
@click.option("--block-size", type=int, help="Tokens of a KV block. Default: chosen.")
@click.option("--kv-heads", type=int, help="KV heads. Default: the model's.")
@click.option("--profile", type=click.Choice(_PROFILES), default=Profile.CHAT.value, show_default=True)
@click.option("--mean-prompt", type=int, help="Mean prompt in tokens. Default: the profile's.")
@click.option("--mean-output", type=int, help="Mean output in tokens. Default: the profile's.")
@click.option("--compare", is_flag=True, help="Put contiguous and paged allocation side by side.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def plan_command(
    model: str,
    device: str,
    context: int | None,
    concurrency: int | None,
    precision: str,
    block_size: int | None,
    kv_heads: int | None,
    profile: str,
    mean_prompt: int | None,
    mean_output: int | None,
    compare: bool,
    output: str,
) -> None:
    """Say what a model's KV cache takes on a device, and what fits.

    Exits with 2 where it does not fit, and says by how much and what would.
    """
    try:
        workload = Workload(Profile(profile), context, mean_prompt, mean_output, concurrency)
        policy = Policy(precision, block_size, "Native" if kv_heads is None else kv_heads)
        result = plan(resolve_model(model), device_named(device), workload, policy)
    except SizingError as error:
        _fail(error, DOES_NOT_FIT_STATUS if isinstance(error, DoesNotFit) else 1)
    _print(result, ladder(result, workload) if compare else [], output)


def _print(result: Plan, rungs: Sequence[Rung], output: str) -> None:
    if output == "table":
        from rich.console import Console

        from kvtide_sizing.cli.render import show

        show(Console(), result, rungs)
        return
    data: dict[str, Any] = result.to_json()
    if rungs:
        data["comparison"] = [rung.to_json() for rung in rungs]
    if output == "json":
        click.echo(json.dumps(data, indent=2))
    else:
        import yaml

        click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120), nl=False)


@click.command("inspect")
@click.option("--model", required=True, metavar="URI", help="hf://ORG/NAME[@REVISION], pvc://CLAIM/PATH, file:///PATH.")
@click.option("--output", type=click.Path(dir_okay=False), help="Also write the JSON, or the error's, to this file.")
def inspect_command(model: str, output: str | None) -> None:
    """Print a model's shape, from its files' headers only.

    Exits with 3 where there is none, and writes {"error": {"reason", "message"}} to the output file.
    """
    try:
        shape = _shape(model)
    except SizingError as error:
        message = str(error)[:_MOST_MESSAGE_CHARACTERS]
        _write(output, {"error": {"reason": error.reason, "message": message}})
        _fail(error, NOT_INSPECTED_STATUS)
    _write(output, shape.to_json())
    click.echo(json.dumps(shape.to_json(), indent=2))


def _shape(text: str) -> ModelShape:
    if "://" not in text:
        return resolve_model(text)
    uri = ModelUri.parse(text)
    if uri.scheme is not Scheme.HF:
        return inspect_model(uri.local_path() or "")
    known = catalog.builtin_for(uri)
    if known is not None:
        return known
    from kvtide_sizing.models.hub import shape_from_hub

    try:
        return shape_from_hub(uri)
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"reading {uri} needs {error.name}, which is not installed: pip install 'kvtide[worker]'"
        ) from error


def _write(output: str | None, data: dict[str, Any]) -> None:
    if output is not None:
        Path(output).write_text(json.dumps(data, separators=(",", ":"), ensure_ascii=False), encoding="utf-8")


def _fail(error: SizingError, status: int) -> NoReturn:
    click.echo(f"Error: {error}", err=True)
    sys.exit(status)
