"""`kvtide models` and `kvtide devices`: what is built in."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.table import Table

from kvtide_sizing.devices.device import builtin_gpus
from kvtide_sizing.formats import Precision, bytes_per_token
from kvtide_sizing.models import catalog
from kvtide_sizing.quantity import format_bytes
from kvtide_sizing.shape import ModelShape


@click.command("models")
def models_command() -> None:
    """List the built-in models: their heads, and what a token of context costs in BF16."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("model", no_wrap=True)
    for name in ("parameters", "layers", "query heads", "KV heads", "head size", "context", "bytes a token"):
        table.add_column(name, justify="right")
    table.add_column("attention")
    table.add_column("served")
    for name in catalog.names():
        shape = catalog.builtin(name)
        table.add_row(
            name,
            f"{shape.parameters / 1e9:.2f} B",
            str(shape.num_layers),
            str(shape.query_heads),
            str(shape.kv_heads),
            str(shape.head_dim),
            f"{shape.max_context_tokens:,}",
            f"{bytes_per_token(shape, Precision.BF16):,}",
            _attention(shape),
            "yes" if shape.unserved is None else "planned only",
        )
    _print(table)


def _attention(shape: ModelShape) -> str:
    if any(layer.is_latent for layer in shape.layers):
        return "MLA"
    kind = "MQA" if shape.kv_heads == 1 else "MHA" if shape.kv_heads == shape.query_heads else "GQA"
    windows = sorted({layer.window for layer in shape.layers if layer.window is not None})
    windowed = sum(layer.window is not None for layer in shape.layers)
    return f"{kind}, {windowed} layers see {windows[0]}" if windows else kind


@click.command("devices")
def devices_command() -> None:
    """List the built-in devices: their memory, bandwidth and compute."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("device", no_wrap=True)
    for name in ("memory", "bandwidth", "BF16 compute", "FP8"):
        table.add_column(name, justify="right")
    for name, device in builtin_gpus().items():
        bandwidth, flops = device.bandwidth_bytes_per_s, device.bf16_flops_per_s
        table.add_row(
            name,
            format_bytes(device.memory_bytes),
            f"{bandwidth / 1e9:,.0f} GB/s" if bandwidth else "",
            f"{flops / 1e12:,.0f} TFLOP/s" if flops else "",
            "yes" if device.has_fp8 else "",
        )
    _print(table)
    click.echo("Any other: NAME:MEMORY, such as mygpu:48GiB. A CPU: cpu:MEMORY, the container's limit.")


def _print(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 160).print(table)
