"""Runs the tests of `interpreted/` in a process of their own, in which Triton interprets kernels on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = sorted(path.name for path in (Path(__file__).parent / "interpreted").glob("test_*.py"))


def run(paths: list[str], marks: str) -> None:
    """Run tests, and fail with what they printed; no test at all is a failure too."""
    folder = Path(__file__).parent.relative_to(ROOT) / "interpreted"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", marks, *(str(folder / path) for path in paths)],
        cwd=ROOT,
        check=False,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kernels_give_what_dense_attention_gives() -> None:
    run(FILES, "not slow")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", FILES)
def test_kernels_over_the_whole_matrix(path: str) -> None:
    run([path], "slow")
