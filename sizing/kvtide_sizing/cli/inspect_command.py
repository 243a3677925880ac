"""`kvtide inspect`: a model's shape from its files' headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from kvtide_sizing.cli.exit import fail
from kvtide_sizing.errors import SizingError
from kvtide_sizing.models import catalog
from kvtide_sizing.models.inspect import inspect_model, resolve_model
from kvtide_sizing.models.model_uri import ModelUri, Scheme
from kvtide_sizing.shape import ModelShape

NOT_INSPECTED_STATUS = 3
# Kubernetes keeps 4096 bytes of a termination message, and a character may take four.
_MOST_MESSAGE_CHARACTERS = 1000


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
        fail(error, NOT_INSPECTED_STATUS)
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
