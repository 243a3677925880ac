"""Broad matrices, and the few rows of them that represent all others."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest


def narrow(every: Iterable[object], fast: Collection[object]) -> list[object]:
    """Parameters of a test, of which all but the fast ones wait for the slow tests."""
    return [one if one in fast else pytest.param(one, marks=pytest.mark.slow) for one in every]
