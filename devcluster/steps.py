"""How progress is shown: a line for each step, with how long it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

# Progress goes beside the results, so that those can be piped.
console = Console(stderr=True, highlight=False)

SILENT_BELOW_S = 0.05


@contextmanager
def step(title: str) -> Iterator[None]:
    """Show that something is being done, and then that it is done; nothing, if it was done in no time."""
    started = time.monotonic()
    try:
        with console.status(title):
            if not console.is_terminal:
                # Without a spinner a long step would be a long silence.
                console.print(f"  … {title}")
            yield
    except BaseException:
        console.print(f"[red]  ✗ {title}[/red]")
        raise
    elapsed_s = time.monotonic() - started
    if elapsed_s >= SILENT_BELOW_S:
        console.print(f"[green]  ✓[/green] {title} [dim]{elapsed_s:.1f} s[/dim]")
