"""The `kvtide` command: finds the parts' commands, and loads only the one that is asked for."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import click

_GROUP = "kvtide.commands"

# sysexits.h's EX_USAGE, where click would exit with 2: that is `kvtide plan`'s "does not fit".
click.UsageError.exit_code = 64

# What `kvtide --help` says of each command without importing its part, and the extra that brings its packages.
_HELP = {
    "plan": "Say what a model's KV cache takes on a device, and what fits.",
    "models": "List the built-in models: their heads, and what a token of context costs in BF16.",
    "devices": "List the built-in devices: their memory, bandwidth and compute.",
    "inspect": "Print a model's shape, from its files' headers only.",
    "serve": "Run the inference engine and its OpenAI-compatible server.",
    "top": "Show one worker's memory, KV cache, requests and rates on one screen.",
    "quality": "Measure what each KV format costs in perplexity, on real weights.",
    "operator": "Run the Kubernetes operator.",
}
_EXTRAS = {"serve": "worker", "top": "worker", "quality": "worker", "operator": "operator"}


class Commands(click.Group):
    """The commands under the entry points `kvtide.commands`, each imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        found = _entry_points()
        return [name for name in _HELP if name in found] + sorted(found.keys() - _HELP.keys())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command. Raises ClickException where its part's packages are not installed."""
        entry = _entry_points().get(cmd_name)
        if entry is None:
            return None
        try:
            command = entry.load()
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get(cmd_name)
            remedy = f"pip install 'kvtide[{extra}]'" if extra else "pip install kvtide"
            raise click.ClickException(
                f"`kvtide {cmd_name}` needs {error.name}, which is not installed: {remedy}"
            ) from error
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, so that help imports no part."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _HELP.get(name, "")) for name in self.list_commands(ctx)])


def _entry_points() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=_GROUP)}


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvtide", prog_name="kvtide")
def main() -> None:
    """Serve large language models on Kubernetes by the memory of their KV cache."""
