"""Which backend attends, and what is refused before anything is loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvtide_kernels.backends import attention_over, check_served
from kvtide_kernels.cpu import build
from kvtide_kernels.cpu.attention import CpuAttention
from kvtide_kernels.cpu.library import library
from kvtide_kernels.pool import KVPool
from kvtide_kernels.torch_attention import TorchAttention
from kvtide_sizing.formats import BF16, FLOAT32, FP8, INT4, INT8, LayerFormat, VectorFormat
from kvtide_sizing.memory.kv import KvLayout, TableLayout

CPU = torch.device("cpu")


def pool(key: VectorFormat, value: VectorFormat, *, head_dim: int = 64, block_size: int = 16) -> KVPool:
    """Two blocks of one layer of two heads."""
    formats = [LayerFormat(key, value)]
    block_bytes = block_size * 2 * (key.vector_bytes(head_dim) + value.vector_bytes(head_dim))
    layout = KvLayout(block_size, block_bytes, (TableLayout((0,), None),), step_tokens=1)
    return KVPool.allocate(layout, formats, num_blocks=2, kv_heads=2, head_dim=head_dim, device=CPU)


def check(key: VectorFormat, value: VectorFormat, *, head_dim: int = 64, block_size: int = 16, heads: int = 4) -> None:
    formats = [LayerFormat(key, value)]
    check_served(CPU, formats, head_dim=head_dim, query_heads=heads, kv_heads=2, block_size=block_size)


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder of this processor's libraries, found before anybody hides the compiler."""
    return build.build(build.cache_folder())[0].parent


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Neither kernels that were built, nor what builds them."""
    monkeypatch.delenv(build.FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    library.cache_clear()
    yield
    library.cache_clear()


@pytest.mark.parametrize(("key", "value"), [(BF16, BF16), (INT8, INT8), (INT8, INT4), (INT4, INT4), (BF16, INT4)])
def test_the_cpus_kernels_attend(key: VectorFormat, value: VectorFormat, caplog: pytest.LogCaptureFixture) -> None:
    check(key, value)
    assert isinstance(attention_over(pool(key, value), query_heads=4, scale=1.0), CpuAttention)
    assert not caplog.records


def test_float32_needs_no_kernels(caplog: pytest.LogCaptureFixture) -> None:
    check(FLOAT32, FLOAT32, head_dim=20, block_size=5)
    assert isinstance(attention_over(pool(FLOAT32, FLOAT32, head_dim=20), query_heads=4, scale=1.0), TorchAttention)
    assert not caplog.records


@pytest.mark.parametrize(
    ("key", "head_dim", "block_size", "heads", "message"),
    [
        (FP8, 64, 16, 4, "the CPU has no kernels for FP8; there are BF16, INT8, INT4"),
        (INT8, 100, 16, 4, "the CPU has no kernels for heads of 100; there are .*; BF16 would be attended to without"),
        (INT8, 64, 8, 4, "the CPU has no kernels for blocks of 8 tokens"),
        (INT8, 64, 16, 3, "3 query heads are no multiple of 2 KV heads"),
    ],
)
def test_refusals(key: VectorFormat, head_dim: int, block_size: int, heads: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(key, INT8, head_dim=head_dim, block_size=block_size, heads=heads)


def test_bf16_is_served_without_kernels(caplog: pytest.LogCaptureFixture) -> None:
    """Heads of 100 have none."""
    check(BF16, BF16, head_dim=100)
    assert isinstance(attention_over(pool(BF16, BF16, head_dim=100), query_heads=4, scale=1.0), TorchAttention)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "plain torch attends" in record.message
    assert "heads of 100" in record.message


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler(caplog: pytest.LogCaptureFixture) -> None:
    check(BF16, BF16)
    assert isinstance(attention_over(pool(BF16, BF16), query_heads=4, scale=1.0), TorchAttention)
    assert "install g++" in caplog.text
    with pytest.raises(ValueError, match=r"no C\+\+ compiler; install g\+\+, or set CXX; BF16 would be"):
        check(INT8, INT8)


@pytest.mark.usefixtures("no_compiler")
def test_kernels_that_were_built_need_no_compiler(built: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in an image: a folder of them, and a file system that is not written to."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / built.name).symlink_to(built)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing-can-be-made-here")
    with pytest.raises(ValueError, match="BF16 would be attended to without kernels"):
        check(INT4, INT4)
    monkeypatch.setenv(build.FOLDER_VARIABLE, str(tmp_path / "kernels"))
    check(INT4, INT4)
    assert isinstance(attention_over(pool(INT4, INT4), query_heads=4, scale=1.0), CpuAttention)
