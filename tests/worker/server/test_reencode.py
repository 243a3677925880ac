"""A worker whose pool is re-encoded over the admin port, while a client reads its answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.worker.server.conftest import serve_tiny
from tests.worker.server.harness import Server, eventually
from tests.worker.server.test_admin import samples


@pytest.fixture(scope="module")
def bf16(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Heads of 64, which the kernels serve, in bfloat16."""
    folder = tmp_path_factory.mktemp("bf16")
    options = ("--threads", "1", "--precision", "BF16", "--reencodable")
    with serve_tiny(smollm2, folder, max_context=1024, options=options, head_dim=64) as started:
        yield started.ready()


def test_a_stream_goes_on_over_a_reencoding_and_back(bf16: Server) -> None:
    before = bf16.state()
    assert before["kv"]["reencodable"] == ["INT8", "K8V4", "INT4"]
    assert [check["precision"] for check in before["kv"]["quality"]] == ["INT8", "K8V4", "INT4"]
    assert all(0 < check["kld"] <= check["limit"] for check in before["kv"]["quality"])
    assert (before["kv"]["fallback"], before["kv"]["plannedPrecision"]) == (None, "BF16")
    body: dict[str, Any] = {"prompt": [900] * 40, "max_tokens": 800, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    with httpx2.stream("POST", f"{bf16.url}/v1/completions", json=body, timeout=120) as stream:
        lines = stream.iter_lines()
        assert '"text"' in next(lines)
        answer = bf16.admin.put("/v1/limits", json={"kvPrecision": "INT8"}, timeout=60)
        assert answer.status_code == 200
        now = bf16.state()
        assert now["kv"]["precision"] == "INT8"
        assert now["kv"]["reencodable"] == ["K8V4", "INT4"]
        # 256 bytes of a head's key and value in BF16, 132 in INT8
        assert now["kv"]["numBlocks"] == pytest.approx(before["kv"]["numBlocks"] * 256 / 132, abs=1)
        assert now["limits"] == answer.json()
        assert now["requests"]["running"] == 1
        refused = bf16.admin.put("/v1/limits", json={"kvPrecision": "BF16"})
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "not_now"
        assert "blocks are live: it is possible once no request runs" in refused.json()["error"]["message"]
        assert any('"completion_tokens":800' in line for line in lines)
    seen = samples(bf16)
    assert seen["kvtide_kv_format_info", (("block_size", "16"), ("key", "INT8"), ("layers", "0-1"), ("value", "INT8"))]
    assert {labels[0][1] for name, labels in seen if name == "kvtide_kv_quality_kld"} == {"INT8", "K8V4", "INT4"}
    eventually(lambda: bf16.state()["requests"]["running"] == 0, 10)
    assert bf16.admin.put("/v1/limits", json={"kvPrecision": "BF16"}).status_code == 200
    back = bf16.state()
    assert {key: back["kv"][key] for key in ("precision", "numBlocks", "liveBlocks", "cachedBlocks")} == {
        "precision": "BF16",
        "numBlocks": before["kv"]["numBlocks"],
        "liveBlocks": 0,
        "cachedBlocks": 0,
    }
    assert bf16.post("/v1/completions", {"prompt": [900] * 40, "max_tokens": 3}).status_code == 200
