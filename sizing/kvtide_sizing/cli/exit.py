"""How a command ends that could not do what was asked."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from kvtide_sizing.errors import SizingError


def fail(error: SizingError, status: int) -> NoReturn:
    """Say what is wrong on standard error, and exit."""
    click.echo(f"Error: {error}", err=True)
    sys.exit(status)
