"""The commands of `python -m devcluster`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from devcluster import binaries, cluster, forwarder, process
from devcluster import images as images_of
from devcluster.components import all_components
from devcluster.model import smollm2_gguf
from devcluster.paths import KUBECONFIG, REPOSITORY
from devcluster.screenshot import screenshot as take_screenshot
from devcluster.state import State, locked, required
from devcluster.steps import console


class Commands(click.Group):
    """A group whose commands end with the message of what went wrong, not with a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (RuntimeError, ValueError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Commands)
def main() -> None:
    """A real Kubernetes on this machine, in a network namespace of its own. Needs root, Debian or Ubuntu, and Go."""


@main.command()
def install() -> None:
    """Install and build what `up` needs, without starting anything."""
    cluster.install()


@main.command()
def up() -> None:
    """Start the cluster, or repair the one that runs."""
    started = time.monotonic()
    state = cluster.up()
    console.print(f"\nup in {time.monotonic() - started:.0f} s")
    console.print(f"  API         https://127.0.0.1:{state.forwards[cluster.API_FORWARD].port}")
    console.print(f"  Prometheus  {_prometheus_url(state)}")
    console.print('\nkubectl and helm in this shell: eval "$(python -m devcluster env)", which says')
    console.print(_exports(state))


@main.command()
@click.option("--purge", is_flag=True, help="Drop the caches as well: binaries, base image, built images.")
def down(purge: bool) -> None:
    """Stop the cluster and remove everything that it made, but for the caches."""
    if purge:
        cluster.purge()
    else:
        cluster.down()


@main.command()
def status() -> None:
    """Show the components and the forwards. Exits with 1 where one is not well."""
    state = required()
    table = Table("component", "pid", "health", box=None)
    well = True
    for component in all_components():
        healthy = cluster.healthy(state, component)
        well = well and healthy
        running = state.processes.get(component.name)
        table.add_row(component.name, str(running.pid) if running else "", _health(healthy))
    forwards = Table("127.0.0.1 port", "leads to", "address inside", "pid", "health", box=None)
    for name, forward in state.forwards.items():
        well = well and forward.process.alive
        forwards.add_row(
            str(forward.port), name, forward.address, str(forward.process.pid), _health(forward.process.alive)
        )
    output = Console()
    output.print(table)
    output.print()
    output.print(forwards)
    if not well:
        raise SystemExit(1)


@main.command()
@click.option("--path", is_flag=True, help="Print where the file is instead.")
def kubeconfig(path: bool) -> None:
    """Print the administrator's kubeconfig."""
    required()
    click.echo(str(KUBECONFIG) if path else KUBECONFIG.read_text(), nl=path)


@main.command()
def env() -> None:
    """Print the exports with which a shell finds kubectl, helm, the cluster and Prometheus."""
    click.echo(_exports(required()))


@main.command()
@click.argument("component", required=False)
def logs(component: str | None) -> None:
    """Print the log of a COMPONENT; without one, say which there are."""
    names = cluster.logs()
    if component is None:
        click.echo("\n".join(names))
    elif component in names:
        click.echo(process.log_file(component).read_text(errors="replace"), nl=False)
    else:
        raise RuntimeError(f"no log of {component}; there are: {', '.join(names) or 'none'}")


@main.command()
@click.argument("target", metavar="NAMESPACE/SERVICE:PORT", required=False)
@click.option("--port", type=int, default=0, help="Which port of 127.0.0.1; another where it is taken. Default: any.")
@click.option("--list", "listed", is_flag=True, help="Show the forwards that there are.")
def forward(target: str | None, port: int, listed: bool) -> None:
    """Open a port on 127.0.0.1 that leads to a Service, and print its URL. It stays until `unforward` or `down`."""
    if listed:
        for name, present in required().forwards.items():
            click.echo(f"http://127.0.0.1:{present.port}\t{name}\t{present.address}")
    elif target is None:
        raise click.UsageError("say which Service, as NAMESPACE/SERVICE:PORT, or --list")
    else:
        with locked():
            click.echo(f"http://127.0.0.1:{forwarder.forward_service(required(), target, port).port}")


@main.command()
@click.argument("target", metavar="NAMESPACE/SERVICE:PORT")
def unforward(target: str) -> None:
    """Close a port that `forward` opened."""
    with locked():
        forwarder.close(required(), target)


@main.command()
@click.option("--only", type=click.Choice(images_of.PARTS), help="Build the image of this part alone.")
@click.option("--json", "as_json", is_flag=True, help="Print the names as JSON: one object, part to image.")
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    default=REPOSITORY,
    help="Another checkout of this repository to build from. Default: this one.",
)
def images(only: str | None, as_json: bool, source: Path) -> None:
    """Build the operator's and the worker's images, load them into the node, and print their names."""
    names = images_of.build_and_load([only] if only else images_of.PARTS, source)
    click.echo(json.dumps(names) if as_json else "\n".join(names.values()))


@main.command()
@click.argument("url")
@click.argument("file", type=click.Path(path_type=Path))
def screenshot(url: str, file: Path) -> None:
    """Save a picture of the page at URL as FILE (PNG)."""
    take_screenshot(url, file)


@main.command()
def model() -> None:
    """Fetch SmolLM2-135M-Instruct, if it is not there, and print where its file is."""
    click.echo(smollm2_gguf())


def _exports(state: State) -> str:
    return "\n".join(
        (
            f'export PATH="{binaries.CURRENT}:$PATH"',
            f'export KUBECONFIG="{KUBECONFIG}"',
            f'export PROMETHEUS_URL="{_prometheus_url(state)}"',
        )
    )


def _prometheus_url(state: State) -> str:
    return f"http://127.0.0.1:{state.forwards[cluster.PROMETHEUS_FORWARD].port}"


def _health(healthy: bool) -> str:
    return "[green]well[/green]" if healthy else "[red]not well[/red]"
