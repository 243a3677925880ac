"""`make demo`: exits with 0 only if it saw an answer, a scale-up and a scale-down."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlencode

import click
import httpx2
import openai
from rich.console import Console

from bench.traffic import StreamResult, Traffic, stream_once
from devcluster.demo import timeline
from devcluster.demo.cluster import ROOT, Cluster, CommandFailed, devcluster, install, wait_until
from devcluster.screenshot import screenshot

NAMESPACE = "default"
NAME = "smollm2"
EXAMPLE = "examples/smollm2.yaml"
QUESTION = "What is the capital of France? Answer in one sentence."
STREAMS = 48
# Of the page with load, KV in use, batch limits and replicas: devcluster/consoles/kvtide.html.
PAGE_HEIGHT = 740

console = Console(highlight=False)


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Say what begins and how long it took."""
    console.print(f"\n[bold cyan]▸[/] [bold]{title}[/]")
    start = time.monotonic()
    yield
    console.print(f"  [green]done[/] in {time.monotonic() - start:.0f} s")


async def ask(url: str) -> StreamResult:
    """Stream the answer to the question onto the terminal; a Service without endpoints yet is asked again."""
    async with openai.AsyncOpenAI(
        base_url=url, api_key="none", max_retries=0, http_client=httpx2.AsyncClient(timeout=60)
    ) as client:
        deadline = time.monotonic() + 60
        while True:
            result = await stream_once(
                client, NAME, QUESTION, 48, lambda text: console.print(text, end="", style="green")
            )
            if result.error is None or time.monotonic() > deadline:
                console.print()
                return result
            await asyncio.sleep(0.2)


class Watch:
    """Prints a line whenever the operator changed something, and notes when the threshold was passed."""

    def __init__(self, cluster: Cluster, start: float) -> None:
        self.cluster = cluster
        self.start = start
        self.shown: tuple[int, int, int] | None = None
        self.passed_at: float | None = None
        worker = f'{{llmdeployment="{NAME}"}}'
        self.pressure = (
            f'(sum(kvtide_kv_tokens{{state="live",llmdeployment="{NAME}"}})'
            f" + sum(kvtide_queued_prompt_tokens{worker}))"
            f" / sum(kvtide_kv_capacity_tokens{worker})"
        )

    def look(self) -> timeline.Moment | None:
        """What Prometheus has now; nothing while it is too busy to answer."""
        try:
            return self._look(time.time())
        except httpx2.HTTPError:
            return None

    def _look(self, now: float) -> timeline.Moment | None:
        if self.passed_at is None:
            rows = self.cluster.query(self.pressure)
            if rows and rows[0][1] > 0.85:
                self.passed_at = now
                console.print(f"  live and queued tokens passed 85 % of the KV capacity at {now - self.start:.0f} s")
        moments = timeline.read(self.cluster, NAMESPACE, NAME, now - timeline.STEP_S, now)
        if not moments:
            return None
        moment = moments[-1]
        if moment.decided != self.shown:
            self.shown = moment.decided
            console.print(
                f"  {now - self.start:4.0f} s   desired {moment.desired}   ready {moment.ready}"
                f"   batch limit {moment.batch_limit:3d}   KV {moment.kv:4.0%}   waiting {moment.waiting}"
            )
        return moment

    async def until(self, what: str, seen: Callable[[timeline.Moment], bool], timeout_s: float) -> None:
        """Watch until a moment is as asked. Raises TimeoutError that says what was waited for."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            moment = await asyncio.to_thread(self.look)
            if moment and seen(moment):
                return
            await asyncio.sleep(1)
        raise TimeoutError(f"waited {timeout_s:.0f} s for {what}")


async def load_and_watch(cluster: Cluster, url: str) -> tuple[float, list[StreamResult], float]:
    """Load the Service until a second replica is ready, let go, and watch it go down again.

    Gives the seconds from the threshold to the new replica being ready, what became of the streams, and when the
    load began.
    """
    start = time.time()
    watch = Watch(cluster, start)
    traffic = Traffic(url, NAME, concurrency=STREAMS, prompt_words=200, max_tokens=400, whole=True)
    traffic.start()
    try:
        await watch.until("a second replica under load", lambda moment: min(moment.desired, moment.ready) >= 2, 240)
        scaled_after = time.time() - (watch.passed_at or start)
        console.print(
            f"  [green]scaled up[/]: the new replica was ready {scaled_after:.0f} s after the threshold was passed"
        )
        # The new workers take their share and their KV memory fills, which moves the batch limits.
        for _ in range(30):
            await asyncio.to_thread(watch.look)
            await asyncio.sleep(1)
    finally:
        console.print("  the load stops; what runs is let finish")
        results = await traffic.stop(timeout_s=240)
    await watch.until("the scale-down", lambda moment: (moment.desired, moment.ready) == (1, 1), 300)
    console.print("  [green]scaled down[/] to 1 replica")
    return scaled_after, results, start


def page(cluster: Cluster, minutes: int) -> str:
    """The page of Prometheus's that shows it all."""
    asked = urlencode({"name": NAME, "namespace": NAMESPACE, "minutes": minutes})
    return f"{cluster.prometheus_url}/consoles/kvtide.html?{asked}"


def picture(cluster: Cluster, minutes: int) -> str:
    """Take a screenshot of that page; tells where it is, or why there is none."""
    target = ROOT / "out" / "prometheus.png"
    try:
        screenshot(page(cluster, minutes), target, height=PAGE_HEIGHT)
    except (RuntimeError, subprocess.SubprocessError) as problem:
        return f"could not be taken: {problem}"
    return str(target)


def tell() -> None:
    began = time.monotonic()
    console.print("[bold]KVTide demo[/]: a real Kubernetes, a real model, and scaling by KV memory, on this machine")

    with step("Kubernetes: etcd, API server, scheduler, kubelet, containerd, DNS, Prometheus"):
        devcluster("up")
        devcluster("model")
    cluster = Cluster.connect()

    with step("Images: operator/Dockerfile and worker/Dockerfile, built and loaded into the node"):
        images = cluster.images()
    console.print("\n".join(f"  {image}" for image in images.values()))

    with step("helm upgrade --install kvtide charts/kvtide"):
        install(cluster, images)

    cluster.kubectl("delete", "llmd", NAME, "-n", NAMESPACE, "--ignore-not-found", "--wait")
    wait_until(
        "the pods of an earlier demo to go",
        lambda: not cluster.items("pods", "-n", NAMESPACE, "-l", f"serving.kvtide.dev/name={NAME}"),
        timeout_s=120,
    )
    with step(f"kubectl apply -f {EXAMPLE}, and the first question"):
        applied = time.monotonic()
        cluster.kubectl("apply", "-n", NAMESPACE, "-f", EXAMPLE)
        wait_until(
            f"{NAME} to become Ready",
            lambda: cluster.condition(NAMESPACE, NAME, "Ready").get("status") == "True",
            timeout_s=180,
        )
        url = cluster.forward(f"{NAMESPACE}/{NAME}:80") + "/v1"
        console.print(f"\n  [bold]{QUESTION}[/]")
        answer = asyncio.run(ask(url))
        if answer.lost or answer.first_token is None:
            raise CommandFailed(f"no answer: {answer}")
        first_token = answer.first_token - applied
    console.print(f"  first streamed token {first_token:.0f} s after kubectl apply")
    console.print(cluster.kubectl("get", "llmd", "-n", NAMESPACE).rstrip(), soft_wrap=True)

    with step(f"Load: {STREAMS} streams until it scales up, then none until it scales down"):
        scaled_after, results, load_start = asyncio.run(load_and_watch(cluster, url))

    moments = timeline.thin(timeline.read(cluster, NAMESPACE, NAME, load_start, time.time()))
    lost = [result for result in results if result.lost]

    console.rule("Summary")
    console.print(f"[bold]{QUESTION}[/]")
    console.print(timeline.table(moments))
    limits = sorted({moment.batch_limit for moment in moments if moment.batch_limit})
    console.print(
        f"\nfirst token after apply     {first_token:4.0f} s  (goal: under 60)"
        f"\nthreshold to new replica    {scaled_after:4.0f} s  (goal: under 60)"
        f"\nstreams                     {len(results):4d}    lost: {len(lost)}"
        f"\nlowest batch limit          {limits[0]} to {limits[-1]} sequences"
        f"\nthe whole demo              {time.monotonic() - began:4.0f} s"
    )
    minutes = max(2, int((time.time() - load_start) / 60) + 1)
    image = picture(cluster, minutes)
    console.print(
        f"\nLook around:\n  the model        {url}  (any OpenAI client, model {NAME})"
        f"\n  its graphs       {page(cluster, minutes)}"
        f"\n  a picture        {image}"
        f"\n  Prometheus       {cluster.prometheus_url}"
        f'\n  kubectl, helm    eval "$({sys.executable} -m devcluster env)"; kubectl get llmd'
        f"\n  remove it all    make down",
        soft_wrap=True,
    )
    for result in lost[:3]:
        console.print(f"[red]lost:[/] {result.error}")


@click.command(help=__doc__)
def main() -> None:
    try:
        tell()
    except (CommandFailed, TimeoutError) as problem:
        console.print(f"\n[bold red]The demo did not see what it should:[/] {problem}")
        sys.exit(1)


if __name__ == "__main__":
    main()
