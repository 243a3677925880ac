"""Where the compiled kernels come from, and what is said when they cannot."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from kvtide_kernels.cpu import build, library


@pytest.mark.slow
def test_builds_what_a_folder_lacks_and_no_more(tmp_path: Path) -> None:
    """As in an image: by a process without torch, for every instruction set; the second time nothing is compiled."""
    command = [sys.executable, "-X", "importtime", "-m", "kvtide_kernels.cpu.build", str(tmp_path)]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "torch" not in first.stderr
    paths = [Path(line) for line in first.stdout.split()]
    assert [path.name for path in paths] == [f"libkvtide-{name}.so" for name in build.instruction_sets()]
    times = [path.stat().st_mtime_ns for path in paths]
    assert build.build(tmp_path) == paths
    assert [path.stat().st_mtime_ns for path in paths] == times


def test_prebuilt_libraries_need_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build.build(build.cache_folder())
    built = [build.library_path(build.cache_folder(), name) for name in build.instruction_sets()]
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    with pytest.raises(RuntimeError, match="no C\\+\\+ compiler; install g\\+\\+, or set CXX"):
        library.library.__wrapped__()
    for path in built:
        target = build.library_path(tmp_path, path.stem.removeprefix("libkvtide-"))
        target.parent.mkdir(exist_ok=True)
        target.symlink_to(path)
    monkeypatch.setenv(build.FOLDER_VARIABLE, str(tmp_path))
    assert library.library.__wrapped__().instruction_set in build.instruction_sets()


def test_an_instruction_set_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.SET_VARIABLE, "plain")
    assert library.library.__wrapped__().instruction_set == "plain"
    with pytest.raises(ValueError, match="no kernels for 'sse9'; there are plain"):
        library.library.__wrapped__("sse9")


def test_shares_torchs_threads() -> None:
    """One libgomp in a process of the kernels', torch's; with two there would be two pools of threads."""
    program = (
        "from pathlib import Path; import torch; from kvtide_kernels.cpu import library; assert library.library();"
        "print(*{line.split()[-1] for line in Path('/proc/self/maps').read_text().splitlines() if 'libgomp' in line})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    [loaded] = done.stdout.split()
    assert "torch" in loaded


def test_structures_are_as_large_as_in_c(tmp_path: Path) -> None:
    source = tmp_path / "sizes.cpp"
    source.write_text(
        f'#include "{build.SOURCES}/layout.h"\n'
        'extern "C" void sizes(long* to) { to[0] = sizeof(Side); to[1] = sizeof(Layer); to[2] = sizeof(Step);'
        " to[3] = sizeof(Span) / 8; to[4] = sizeof(Unit) / 8; }"
    )
    subprocess.run(
        [str(build.compiler()), "-shared", "-fPIC", str(source), "-o", str(tmp_path / "sizes.so")], check=True
    )
    sizes = (ctypes.c_long * 5)()
    ctypes.CDLL(str(tmp_path / "sizes.so")).sizes(sizes)
    assert list(sizes) == [
        *(ctypes.sizeof(one) for one in (library.Side, library.Layer, library.Step)),
        len(library.SPAN_FIELDS),
        len(library.UNIT_FIELDS),
    ]


def test_threads_are_torchs_own_whatever_else_brings_openmp() -> None:
    """sentencepiece has a copy of libgomp, and a second pool would spin where torch's works."""
    told = subprocess.run([sys.executable, "-c", _COUNT_THREADS], capture_output=True, text=True, check=True)
    with_torch, with_kernels = told.stdout.split()
    assert with_torch == with_kernels


_COUNT_THREADS = """
import os
import torch
import sentencepiece
from kvtide_kernels.cpu.library import library
from kvtide_kernels.cpu.linear import PackedMatrix

torch.set_num_threads(2)
matrix = torch.ones(2048, 2048, dtype=torch.bfloat16)
matrix.float().exp().sum()
print(len(os.listdir("/proc/self/task")))
PackedMatrix.bf16(matrix).multiply(torch.ones(64, 2048, dtype=torch.bfloat16), library())
print(len(os.listdir("/proc/self/task")))
"""
