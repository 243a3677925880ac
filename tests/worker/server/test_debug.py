"""`GET /debug/kv`: the picture of the pool is the pool that the state counts."""

import httpx2

from tests.worker.server.harness import Server, eventually


def test_the_map_shows_each_sequence_its_blocks_and_what_stays_cached(server: Server) -> None:
    # Two choices of one prompt: all its full blocks are shared.
    prompt = list(range(100, 180))
    body = {"prompt": prompt, "n": 2, "max_tokens": 200, "ignore_eos": True, "stream": True, "temperature": 0}
    with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        assert '"text"' in next(lines)
        eventually(lambda: server.state()["requests"]["running"] == 2, 10)
        drawn = server.admin.get("/debug/kv").raise_for_status().json()
    one, other = drawn["sequences"]
    assert drawn["numBlocks"] == len(drawn["blocks"]) == server.state()["kv"]["numBlocks"]
    assert one["state"] == other["state"] == "running"
    held, others = (sequence["tables"][0]["blocks"] for sequence in (one, other))
    size = drawn["blockSizeTokens"]
    assert one["promptTokens"] == len(prompt)
    assert len(held) >= -(-one["writtenTokens"] // size)
    assert held[: len(prompt) // size] == others[: len(prompt) // size]
    assert {drawn["blocks"][block] for block in set(held) & set(others)} == {"&"}
    assert {drawn["blocks"][block] for block in set(held) ^ set(others)} == {"#"}
    assert drawn["blocks"].count("#") + drawn["blocks"].count("&") == len(set(held) | set(others))

    eventually(lambda: server.state()["kv"]["liveBlocks"] == 0, 10)
    left, kv = server.admin.get("/debug/kv").json(), server.state()["kv"]
    assert left["sequences"] == []
    assert (left["blocks"].count("c"), left["blocks"].count(".")) == (kv["cachedBlocks"], kv["freeBlocks"])


def test_the_map_is_behind_the_token_and_not_on_the_clients_port(server: Server) -> None:
    assert httpx2.get(f"{server.admin.base_url}/debug/kv").status_code == 401
    assert server.get("/debug/kv").status_code == 404
