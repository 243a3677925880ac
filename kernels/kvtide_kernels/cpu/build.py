"""Compiling the kernels: `python -m kvtide_kernels.cpu.build [FOLDER]`. It needs a C++ compiler and no torch.

One library for each instruction set, and plain C++ for every other processor. They are kept in a folder named after
their sources, so that an older one is never taken for a newer:

    FOLDER/<hash>/libkvtide-avx512.so   libkvtide-avx2.so   libkvtide-plain.so
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "src"

# Names a folder of prebuilt libraries: an image has no compiler, and its file system is read-only.
FOLDER_VARIABLE = "KVTIDE_CPU_KERNELS"

_FLAGS = [
    *("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-fopenmp-simd"),
    *("-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"),
]  # fmt: skip
# Without it GCC keeps two copies of each accumulator, and the inner loops spill to the stack. Others do not know it.
_GCC_FLAGS = ["-fno-tree-coalesce-vars"]
_X86_SETS = {
    "avx512": "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16 -mavx2 -mfma -mf16c "
    "-mprefer-vector-width=512",
    "avx2": "-mavx2 -mfma -mf16c",
}


def instruction_sets() -> dict[str, list[str]]:
    """The libraries to build for this kind of processor, and the compiler's options of each."""
    sets = {"plain": ""} | (_X86_SETS if platform.machine() == "x86_64" else {})
    return {name: options.split() for name, options in sets.items()}


def compiler() -> str | None:
    """The C++ compiler: $CXX, or what is installed."""
    names = [os.environ.get("CXX"), "g++", "c++", "clang++"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def cache_folder() -> Path:
    """Where libraries are kept that were compiled at first use."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvtide" / "cpu-kernels"


def digest() -> str:
    """The name of what these sources and options give."""
    sums = hashlib.sha256(repr((platform.machine(), _FLAGS, _GCC_FLAGS, instruction_sets())).encode())
    for source in sorted(SOURCES.iterdir()):
        sums.update(source.name.encode() + source.read_bytes())
    return sums.hexdigest()[:16]


def library_path(folder: Path, instruction_set: str) -> Path:
    """Where the library of an instruction set lies in a folder, built or not."""
    return folder / digest() / f"libkvtide-{instruction_set}.so"


def build(folder: Path) -> list[Path]:
    """Compile what the folder lacks. Raises RuntimeError without a compiler, or with what the compiler said."""
    wanted = {library_path(folder, name): options for name, options in instruction_sets().items()}
    missing = {path: options for path, options in wanted.items() if not path.exists()}
    if missing and not compiler():
        raise RuntimeError("the CPU kernels are not built and there is no C++ compiler; install g++, or set CXX")
    flags = [*_FLAGS, *_own_flags(str(compiler()))] if missing else []
    for path, options in missing.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when it is whole: others may be looking, and may be building too.
        with tempfile.TemporaryDirectory(dir=path.parent) as work:
            made = Path(work) / path.name
            command = [str(compiler()), *flags, *options, *map(str, sorted(SOURCES.glob("*.cpp"))), "-o", str(made)]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode:
                raise RuntimeError(f"{' '.join(command)} failed:\n{ran.stderr[-4000:]}")
            made.rename(path)
    return list(wanted)


def _own_flags(command: str) -> list[str]:
    version = subprocess.run([command, "--version"], capture_output=True, text=True, check=False).stdout
    return _GCC_FLAGS if "Free Software Foundation" in version else []


if __name__ == "__main__":
    for built in build(Path(sys.argv[1]) if len(sys.argv) > 1 else cache_folder()):
        print(built)
