"""`kvtide serve`: options to settings; everything heavy is imported when it runs."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any, Literal

import click

from kvtide_sizing.errors import InvalidQuantity
from kvtide_sizing.formats import Precision
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_sizing.quantity import parse_quantity
from kvtide_sizing.served import WEIGHT_FORMATS
from kvtide_worker.engine.config import DType
from kvtide_worker.server.settings import ServeSettings

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_POSITIVE = click.IntRange(min=1)
_PORT = click.IntRange(min=0, max=65535)
_SECONDS = click.FloatRange(min=0)


class _Quantity(click.ParamType[int]):
    """An amount of memory in bytes, written as Kubernetes does."""

    name = "amount"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes; fails with what may be written."""
        try:
            return value if isinstance(value, int) else parse_quantity(str(value))
        except InvalidQuantity as error:
            self.fail(str(error), param, ctx)


@click.command("serve")
@click.option("--model", required=True, help="hf://ORG/NAME[@REVISION], pvc://CLAIM/PATH, file:///PATH, or a path.")
@click.option("--served-name", help="The model's name in the API. Default: the last part of --model.")
@click.option("--plan", "plan_file", type=_FILE, help="The plan as `kvtide plan -o json` writes it.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "bfloat16", "float32"]),
    default="auto",
    show_default=True,
    help="Of weights and arithmetic. float32 is for exactness tests: BF16 KV is then float32 too, in twice the bytes.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is all.")
@click.option("--port", type=_PORT, default=8000, show_default=True, help="The API and /metrics. 0: a free port.")
@click.option("--admin-port", type=_PORT, default=8001, show_default=True, help="State, limits and drain.")
@click.option(
    "--admin-token-file",
    type=_FILE,
    help="The token that the admin port asks for. Without it the admin port stays on loopback, "
    "with a token that is made for the run and printed.",
)
@click.option(
    "--api-key-file",
    type=_FILE,
    help="A key that clients of the API must send. Default: the one in KVTIDE_API_KEY, or none is asked.",
)
@click.option("--chat-template", type=_FILE, help="A Jinja file in place of the model's own chat template.")
@click.option(
    "--drain-seconds",
    type=_SECONDS,
    default=120.0,
    show_default=True,
    help="How long open requests may go on after SIGTERM.",
)
@click.option(
    "--lame-duck-seconds",
    type=_SECONDS,
    default=5.0,
    show_default=True,
    help="How much of it new requests are still taken, while load balancers hear of the end.",
)
@click.option(
    "--engine-timeout",
    "engine_timeout_seconds",
    type=_SECONDS,
    default=60.0,
    show_default=True,
    help="Seconds without a sign of life from the engine after which /health fails.",
)
@click.option(
    "--gpu-memory-wait",
    "gpu_memory_wait_seconds",
    type=_SECONDS,
    default=120.0,
    show_default=True,
    help="Seconds that what the plan needs of a GPU may be held by others at the start.",
)
@click.option(
    "--memory", "memory_bytes", type=_Quantity(), help="To plan with, such as 2Gi. Default: the cgroup's limit."
)
@click.option(
    "--max-context", "max_context_tokens", type=_POSITIVE, help="Tokens. Default: what the model allows and fits."
)
@click.option(
    "--precision",
    type=click.Choice(["Auto", *(precision.value for precision in Precision)], case_sensitive=False),
    help="How KV is stored. Default: Auto, which is chosen.",
)
@click.option(
    "--kv-heads",
    type=_POSITIVE,
    help="Pool the model's KV heads into so many, if the quality gate lets it pass. Default: as the model has them.",
)
@click.option(
    "--weights",
    type=click.Choice([stored.value for stored in WeightFormat if stored in WEIGHT_FORMATS], case_sensitive=False),
    help="How matrices are held. Default: BF16. INT8 takes half, and may cost 1 % in perplexity.",
)
@click.option("--block-size", "block_size_tokens", type=_POSITIVE, help="Tokens in a KV block. Default: chosen.")
@click.option("--max-batch", type=_POSITIVE, help="Sequences in a step. Default: what the KV pool holds.")
@click.option(
    "--reencodable",
    is_flag=True,
    envvar="KVTIDE_REENCODABLE",
    help="Check at the start, which takes some seconds, which smaller formats KV may be re-encoded to while it serves: "
    "kvPrecision of PUT /v1/limits.",
)
@click.option(
    "--enforce-eager",
    is_flag=True,
    help="Run no step as a CUDA graph, as vLLM's option of this name: a faster start, less memory, slower decodes.",
)
@click.option("--threads", type=_POSITIVE, help="Of the engine, on a CPU. Default: what the cgroup allows.")
def serve_command(device: Literal["cpu", "cuda"], dtype: DType, **options: Any) -> None:
    """Run the inference engine and its OpenAI-compatible server.

    \b
    Exit status: 0 after SIGTERM and a drain, 1 when the engine died,
    2 when the model does not fit, 3 when it cannot be served.
    """
    # Init of a container is not ended by a signal that it does not handle; the server's own handler comes with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from kvtide_worker.server.worker import serve

    sys.exit(serve(ServeSettings(device=device, dtype=dtype, **options)))
