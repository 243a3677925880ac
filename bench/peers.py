"""The engine beside what people run today, in one run: `make bench-peers`, or `python -m bench.peers --help`.

The peers are vLLM's CPU build and llama.cpp's server. Their runners and the load client (`peers.py bench`) stand in a
folder of their own, which installs them into a cache; this starts the worker once with each kind of weights, has the
runners load everything in turn, and prints the ratios beside the goals. Then what only the worker is asked: how long it
takes to start, and what a shared prefix saves of the time to the first token.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import httpx2
from rich.console import Console
from rich.table import Table

from bench.goals import Goal, judged
from devcluster.model import smollm2_gguf

ROOT = Path(__file__).parents[1]
KVTIDE = Path(sys.executable).with_name("kvtide")
PEERS = ROOT.parent / "shared" / "peers"

# (ours, the peer, requests at once, times its output tokens a second)
GOALS = (
    Goal("bf16", "vllm-tuned", 1, 1.4),
    Goal("bf16", "vllm-tuned", 16, 1.3),
    Goal("bf16", "vllm-tuned", 64, 1.4),
    Goal("int8", "vllm-tuned", 1, 2.0),
    Goal("int8", "vllm-tuned", 16, 1.5),
    Goal("int8", "llama", 1, 1.2),
    Goal("int8", "llama", 16, 4.0),
)
START_GOAL_S, PREFIX_TOKENS, PREFIX_GOAL = 10.0, 2000, 5.0
# Of a peer's memory at so many requests.
MEMORY_PEER, MEMORY_AT, MEMORY_GOAL = "vllm-tuned", 16, 0.25


@dataclass(frozen=True)
class Worker:
    """A running `kvtide serve`. started_s: from the command to the first answer of /ready"""

    name: str
    url: str
    started_s: float
    process_id: int

    def memory_mib(self) -> float:
        """What all its processes hold, pages that they share counted once (proc_pid_smaps(5): Pss)."""
        return sum(_pss_kib(each) for each in _with_children(self.process_id)) / 1024


@contextmanager
def serving(name: str, model: Path, folder: Path, *options: str) -> Iterator[Worker]:
    """Start the worker on free ports; it is ended by its process id."""
    log = folder / f"{name}.log"
    command = [str(KVTIDE), "serve", "--model", str(model), "--served-name", name, "--port", "0", "--admin-port", "0"]
    began = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen([*command, *options], stdout=output, stderr=subprocess.STDOUT)
    try:
        while f"serving {name}" not in log.read_text():
            if process.poll() is not None:
                raise click.ClickException(f"{name} ended with status {process.returncode}:\n{log.read_text()}")
            time.sleep(0.02)
        url = re.search(r"serving \S+ on (\S+)/v1", log.read_text())
        assert url, "the worker says where it serves"
        yield Worker(name, url[1], time.monotonic() - began, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _with_children(process_id: int) -> list[int]:
    children = Path(f"/proc/{process_id}/task").glob("*/children")
    return [
        process_id,
        *(one for told in children for each in told.read_text().split() for one in _with_children(int(each))),
    ]


def _pss_kib(process_id: int) -> int:
    lines = Path(f"/proc/{process_id}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def first_token_seconds(url: str, model: str, prompt: list[int]) -> tuple[float, str]:
    """From sending a prompt to its first chunk of text, and that answer's 16 tokens at temperature 0."""
    body = {"model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True, "stream": True}
    began, first, text = time.monotonic(), 0.0, ""
    with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                first = first or time.monotonic() - began
                text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
    return first, text


def shared_prefix(worker: Worker, repeats: int = 5) -> tuple[float, float, bool]:
    """Median seconds to the first token, cold and warm, and whether both gave the same text."""
    cold, warm, same = [], [], True
    for number in range(repeats):
        prompt = [1000 + (37 * place + 7919 * number) % 40_000 for place in range(PREFIX_TOKENS + 20)]
        once, text = first_token_seconds(worker.url, worker.name, prompt)
        again, repeated = first_token_seconds(worker.url, worker.name, prompt)
        cold.append(once)
        warm.append(again)
        same = same and text == repeated
    return sorted(cold)[repeats // 2], sorted(warm)[repeats // 2], same


@click.command(help=__doc__)
@click.option(
    "--runners",
    type=click.Path(path_type=Path),
    default=Path(os.environ.get("KVTIDE_PEERS", PEERS)),
    show_default="$KVTIDE_PEERS, or ../shared/peers",
    help="The folder with peers.py.",
)
@click.option("--peers", default="vllm-tuned,llama", show_default=True, help="Which ones; '' for none.")
@click.option("--concurrency", default="1,16,64", show_default=True)
@click.option("--rounds", default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("peers.json"), show_default=True)
def main(runners: Path, peers: str, concurrency: str, rounds: int, out: Path) -> None:
    """Run everything, one thing at a time."""
    if not (runners / "peers.py").is_file():
        raise click.ClickException(f"{runners} has no peers.py: say with --runners or KVTIDE_PEERS where it is")
    console, model = Console(), smollm2_gguf()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        options = ("--max-context", "4096", "--precision", "BF16")
        # So much that the plan lets in 64 at once, which is the most that ask.
        large = (*options, "--memory", "2100Mi")
        with (
            serving("bf16", model, folder, *large) as bf16,
            serving("int8", model, folder, *large, "--weights", "INT8") as int8,
        ):
            also = [f"--also={worker.name}={worker.url}" for worker in (bf16, int8)]
            command = [sys.executable, str(runners / "peers.py"), "bench", *also, f"--peers={peers}"]
            subprocess.run([*command, f"--concurrency={concurrency}", f"--rounds={rounds}", f"--out={out}"], check=True)
            prefix = shared_prefix(bf16)
        # Once more, now that its files lie in the page cache, in what 16 of these requests need.
        with serving("bf16", model, folder, *options, "--memory", "1200Mi") as small:
            started_s = small.started_s
            load = [sys.executable, str(runners / "peers.py"), "load", small.url, f"--concurrency={MEMORY_AT}"]
            subprocess.run([*load, f"--requests={MEMORY_AT}"], check=True, stdout=subprocess.DEVNULL)
            memory_mib = small.memory_mib()
    measured = json.loads(out.read_text())
    console.print(_against(measured))
    console.print(_alone(prefix, started_s, memory_mib, _peers_memory_mib(measured)))


def _against(measured: dict[str, Any]) -> Table:
    table = Table("ours", "against", "at", "output tokens/s", "goal", "", "TTFT p95", "per token p50")
    for ratio in measured["ratios"]:
        goal = next((goal for goal in GOALS if goal.is_about(ratio)), None)
        table.add_row(
            ratio["peer"],
            ratio["against"],
            str(ratio["concurrency"]),
            f"{ratio['output_tok_s']:.2f}",
            "" if goal is None else f"{goal.times:g}",
            "" if goal is None else judged(ratio["output_tok_s"] >= goal.times),
            *(f"{ratio[key]:.2f}" if ratio[key] else "-" for key in ("ttft_ms_p95", "itl_ms_p50")),
        )
    return table


def _peers_memory_mib(measured: dict[str, Any]) -> float | None:
    """What the peer held in the first round; None where it was not run."""
    runs = measured["runs"]
    held = (run for run in runs if run["peer"] == MEMORY_PEER and run["concurrency"] == MEMORY_AT)
    return next((float(run["memory_mib"]) for run in held), None)


def _alone(
    prefix: tuple[float, float, bool], started_s: float, memory_mib: float, peers_memory_mib: float | None
) -> Table:
    cold, warm, same = prefix
    table = Table("the worker", "measured", "goal", "")
    table.add_row("start to ready", f"{started_s:.1f} s", f"{START_GOAL_S:g} s", judged(started_s < START_GOAL_S))
    told = f"{cold:.2f} s cold, {warm:.3f} s warm: {cold / warm:.1f} times"
    table.add_row(
        f"first token behind {PREFIX_TOKENS} shared ones", told, f"{PREFIX_GOAL:g} times",
        judged(cold / warm >= PREFIX_GOAL),
    )  # fmt: skip
    table.add_row("the same tokens, cold and warm", "yes" if same else "no", "yes", judged(same))
    if peers_memory_mib is not None:
        told = f"{memory_mib:.0f} MiB, {MEMORY_PEER} {peers_memory_mib:.0f} MiB"
        share = memory_mib / peers_memory_mib
        table.add_row("memory, all processes", told, f"{MEMORY_GOAL:g} of it", judged(share <= MEMORY_GOAL))
    return table


if __name__ == "__main__":
    main()
