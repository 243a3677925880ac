"""The admin port against the contract in docs/architecture.md, and the metrics that it shares its numbers with."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.worker.server.harness import MODEL_NAME, Server, eventually

ARCHITECTURE = Path(__file__).parents[3] / "docs" / "architecture.md"


def shape(value: object) -> object:
    """The keys of a JSON value, and the kinds of what is under them."""
    if isinstance(value, dict):
        return {key: shape(child) for key, child in value.items()}
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def test_the_state_is_what_the_architecture_says(server: Server) -> None:
    example = json.loads(re.search(r"```json\n(.*?)```", ARCHITECTURE.read_text(), re.DOTALL)[1])
    state = server.state()
    # Numbers where requests came in the last minute, else null.
    assert state["latency"].keys() == example["latency"].keys()
    state["latency"] = example["latency"]
    assert shape(state) == shape(example)
    assert state["modelName"] == MODEL_NAME
    assert (state["ready"], state["draining"], state["device"]) == (True, False, "cpu")


def test_the_numbers_of_the_state_add_up(server: Server) -> None:
    state = server.state()
    kv = state["kv"]
    assert kv["liveBlocks"] + kv["cachedBlocks"] + kv["freeBlocks"] == kv["numBlocks"]
    assert kv["capacityTokens"] == kv["numBlocks"] * kv["blockSizeTokens"]
    predicted, measured = state["memory"]["predicted"], state["memory"]["measured"]
    assert sum(predicted.values()) == 1500 << 20  # what it was started with
    device, peak = measured.pop("deviceBytes"), measured.pop("peakBytes")
    assert sum(measured.values()) == device
    assert peak >= measured["weightsBytes"] + measured["kvPoolBytes"]


def test_an_idle_engine_still_reports(server: Server) -> None:
    first = server.state()["sampledAt"]
    assert abs(time.time() - first) < 2
    eventually(lambda: server.state()["sampledAt"] > first, 2)


def test_an_idle_worker_may_be_asked_to_answer_once_it_has_a_request(server: Server) -> None:
    began = time.monotonic()
    assert server.state(idle_s=0.5)["requests"]["running"] == 0
    assert 0.4 < time.monotonic() - began < 3
    body = {"prompt": [900] * 16, "max_tokens": 8, "ignore_eos": True}
    with ThreadPoolExecutor(2) as pool:
        heard = pool.submit(server.state, idle_s=20)
        time.sleep(0.3)
        assert not heard.done()
        asked = time.monotonic()
        answer = pool.submit(httpx2.post, f"{server.url}/v1/completions", json=body, timeout=60)
        requests = heard.result()["requests"]
        assert requests["running"] + requests["waiting"] == 1
        assert time.monotonic() - asked < 5
        answer.result().raise_for_status()


@pytest.mark.parametrize("seconds", ["-1", "31", "soon", "nan"])
def test_an_answer_is_not_kept_back_for_ever(server: Server, seconds: str) -> None:
    answer = server.admin.get("/v1/state", params={"idleSeconds": seconds})
    assert answer.status_code == 400
    assert "idleSeconds" in answer.json()["error"]["message"]


def test_a_batch_limit_is_in_force_at_the_next_step(server: Server) -> None:
    most = server.state()["limits"]["maxBatchLimit"]
    try:
        answer = server.admin.put("/v1/limits", json={"batchLimit": 1})
        assert answer.json() == server.state()["limits"]
        assert (answer.json()["batchLimit"], answer.json()["maxBatchLimit"]) == (1, most)
        assert server.state()["limits"]["batchLimit"] == 1
        prompts = [[900] * 16] * 3
        body = {"prompt": prompts, "max_tokens": 40, "ignore_eos": True, "stream": True}
        with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as stream:
            lines = stream.iter_lines()
            assert '"text"' in next(lines)
            one_by_one = {"running": 1, "waiting": 2, "queuedPromptTokens": 32}
            eventually(lambda: one_by_one.items() <= server.state()["requests"].items(), 5)
    finally:
        server.admin.put("/v1/limits", json={"batchLimit": most}).raise_for_status()


def test_admission_can_be_paused_and_bounded_while_it_serves(server: Server) -> None:
    before = server.state()["limits"]
    ask = {"prompt": [900] * 8, "max_tokens": 1}
    try:
        changed = server.admin.put("/v1/limits", json={"admissionPaused": True, "maxWaitingRequests": 0}).json()
        assert changed == {**before, "admissionPaused": True, "maxWaitingRequests": 0} == server.state()["limits"]
        refused = httpx2.post(f"{server.url}/v1/completions", json=ask)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
        assert "told to take no new requests" in refused.json()["error"]["message"]
        # What is left out stays: nothing may wait, but an empty queue takes what comes.
        server.admin.put("/v1/limits", json={"admissionPaused": False}).raise_for_status()
        assert httpx2.post(f"{server.url}/v1/completions", json=ask).status_code == 200
    finally:
        back = server.admin.put("/v1/limits", json={"admissionPaused": False, "maxWaitingRequests": None})
    assert back.json() == before


@pytest.mark.parametrize("limit", [0, -1, 10_000, "many", None])
def test_a_batch_limit_out_of_bounds_is_refused(server: Server, limit: object) -> None:
    before = server.state()["limits"]
    answer = server.admin.put("/v1/limits", json={"batchLimit": limit})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "batchLimit"
    assert server.state()["limits"] == before


@pytest.mark.parametrize("precision", ["INT8", "int8", "FP8", "BF17"])
def test_a_precision_that_it_cannot_have_is_refused_by_name(server: Server, precision: str) -> None:
    """It was started with float32."""
    answer = server.admin.put("/v1/limits", json={"kvPrecision": precision, "admissionPaused": True})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "kvPrecision"
    assert error["message"].startswith(f"kvPrecision {precision}: KV is stored as BF16")
    assert error["message"].endswith("it may become nothing else")
    assert not server.state()["limits"]["admissionPaused"], "all or nothing"


@pytest.mark.parametrize("precision", [None, 8, ["INT8"]])
def test_what_is_no_name_of_a_precision_is_refused(server: Server, precision: object) -> None:
    answer = server.admin.put("/v1/limits", json={"kvPrecision": precision})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "kvPrecision")


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic abc"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/state"), ("PUT", "/v1/limits"), ("POST", "/v1/drain")])
def test_without_the_token_nothing_is_told_or_done(server: Server, method: str, path: str, header) -> None:
    admin = server.admin
    headers = {} if header is None else {"Authorization": header}
    answer = httpx2.request(method, str(admin.base_url) + path, headers=headers, json={"batchLimit": 1})
    assert answer.status_code == 401
    assert server.get("/ready").status_code == 200


def test_the_admin_endpoints_are_not_on_the_apis_port(server: Server) -> None:
    for path in ("/v1/state", "/v1/limits", "/v1/drain"):
        assert server.get(path).status_code == 404


def samples(server: Server) -> dict[tuple[str, tuple], float]:
    text = server.get("/metrics").text
    return {
        (
            sample.name,
            tuple(sorted((k, v) for k, v in sample.labels.items() if k not in ("model_name", "le"))),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_metrics_that_dashboards_query_are_there(server: Server) -> None:
    server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 3})
    text = server.get("/metrics").text
    # Names that production-stack, KubeAI, KAITO, KServe, AIBrix and llm-d's autoscaler query, and our own.
    for name in (
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc", "vllm:num_preemptions_total", "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket", "vllm:time_per_output_token_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket", "vllm:request_prompt_tokens_bucket",
        "vllm:request_generation_tokens_bucket", "kvtide_kv_capacity_tokens", "kvtide_queued_prompt_tokens",
        "kvtide_batch_limit", "kvtide_recomputed_tokens_total",
    ):  # fmt: skip
        assert re.search(rf'^{name}{{[^}}]*model_name="{MODEL_NAME}"', text, re.MULTILINE), name
    assert re.search(r'^vllm:cache_config_info{[^}]*block_size="16"[^}]*num_gpu_blocks="\d+"', text, re.MULTILINE)
    assert re.search(r'^vllm:request_success_total{finished_reason="length"', text, re.MULTILINE)


def test_the_metrics_say_what_the_state_says(server: Server) -> None:
    eventually(lambda: server.state()["kv"]["liveBlocks"] == 0, 5)
    state, seen = server.state(), samples(server)
    for key in ("live", "cached", "free"):
        assert seen["kvtide_kv_blocks", (("state", key),)] == state["kv"][f"{key}Blocks"]
    assert seen["kvtide_kv_capacity_tokens", ()] == state["kv"]["capacityTokens"]
    assert seen["vllm:prompt_tokens_total", ()] == state["counters"]["promptTokens"]
    assert seen["vllm:generation_tokens_total", ()] == state["counters"]["generationTokens"]
    memory = {
        source: {
            key[1][0][1]: value
            for key, value in seen.items()
            if key[0] == "kvtide_memory_bytes" and ("source", source) in key[1]
        }
        for source in ("predicted", "measured")
    }
    assert set(memory["predicted"]) == set(memory["measured"]) == {"weights", "kv_pool", "activations", "other", "free"}
    assert memory["predicted"]["kv_pool"] == state["memory"]["predicted"]["kvPoolBytes"]
    assert sum(memory["predicted"].values()) == 1500 << 20


def test_tokens_and_requests_are_counted_once(server: Server) -> None:
    before = samples(server)
    server.post("/v1/completions", {"prompt": [300] * 10, "max_tokens": 5, "ignore_eos": True})
    eventually(lambda: server.state()["requests"]["running"] == 0, 5)
    after = samples(server)

    def grew(name: str, *labels: tuple[str, str]) -> float:
        return after[name, labels] - before.get((name, labels), 0)

    assert grew("vllm:prompt_tokens_total") == 10
    assert grew("vllm:generation_tokens_total") == 5
    assert grew("vllm:time_to_first_token_seconds_count") == 1
    assert grew("vllm:inter_token_latency_seconds_count") == 4
    assert grew("vllm:request_success_total", ("finished_reason", "length")) == 1
