"""What `kvtide plan` and two public estimators say of the same seven models, beside the arithmetic.

    python -m bench.estimators              installs the estimators into a venv of their own, prints docs' table

No model is downloaded: every model is a folder with the config.json's fields that sizes depend on, as published, and
a model.safetensors of the published tensors' names, types and shapes, whose data is a hole in a sparse file. hf-mem
asks the hub; its HTTP client is given these folders instead. hf-vram-calc reads the folder itself.
"""

import argparse
import asyncio
import contextlib
import io
import json
import math
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ESTIMATORS = {"hf-mem": "hf-mem==0.5.6", "hf-vram-calc": "hf-vram-calc==1.0.9"}
BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1}

Tensor = tuple[str, str, tuple[int, ...]]  # name, safetensors type, shape


@dataclass(frozen=True)
class Case:
    """A model as published, what is asked of it, and the KV bytes that this takes, with the arithmetic."""

    name: str
    config: dict[str, Any]
    tokens: int
    batch: int
    kv_bytes: int
    arithmetic: str


def _config(architecture: str, model_type: str, layers: int, hidden: int, mlp: int, heads: str, vocab: int,
            context: int, **more: Any) -> dict[str, Any]:  # fmt: skip
    query, kv = map(int, heads.split("/"))
    return {
        "architectures": [architecture], "model_type": model_type, "num_hidden_layers": layers,
        "hidden_size": hidden, "intermediate_size": mlp, "num_attention_heads": query, "num_key_value_heads": kv,
        "vocab_size": vocab, "max_position_embeddings": context, "torch_dtype": "bfloat16", **more,
    }  # fmt: skip


CASES = [
    Case(
        "llama-2-7b",
        _config("LlamaForCausalLM", "llama", 32, 4096, 11008, "32/32", 32000, 4096,
                tie_word_embeddings=False, torch_dtype="float16"),
        4096, 8, 17_179_869_184, "2 · 32 layers · 32 heads · 128 · 2 B · 4096 · 8",
    ),
    Case(
        "llama-3.1-8b",
        _config("LlamaForCausalLM", "llama", 32, 4096, 14336, "32/8", 128256, 131072, tie_word_embeddings=False),
        8192, 1, 1_073_741_824, "2 · 32 layers · 8 heads · 128 · 2 B · 8192",
    ),
    Case(
        "gemma-3-270m",
        _config("Gemma3ForCausalLM", "gemma3_text", 18, 640, 2048, "4/1", 262144, 32768, head_dim=256,
                sliding_window=512, layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 3),
        32768, 1, 108_527_616, "2 · 256 · 2 B · (3 layers · 32768 + 15 layers · 512)",
    ),
    Case(
        "mistral-nemo-12b",
        _config("MistralForCausalLM", "mistral", 40, 5120, 14336, "32/8", 131072, 131072, head_dim=128,
                sliding_window=None, tie_word_embeddings=False),
        8192, 1, 1_342_177_280, "2 · 40 layers · 8 heads · 128 · 2 B · 8192",
    ),
    Case(
        "deepseek-v3",
        _config("DeepseekV3ForCausalLM", "deepseek_v3", 61, 7168, 18432, "128/128", 129280, 163840,
                tie_word_embeddings=False, q_lora_rank=1536, kv_lora_rank=512, qk_rope_head_dim=64,
                qk_nope_head_dim=128, v_head_dim=128, first_k_dense_replace=3, n_routed_experts=256,
                n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048, num_nextn_predict_layers=1,
                quantization_config={"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}),
        4096, 1, 287_834_112, "61 layers · (512 latent + 64 RoPE) · 2 B · 4096",
    ),
    Case(
        "mixtral-8x7b",
        _config("MixtralForCausalLM", "mixtral", 32, 4096, 14336, "32/8", 32000, 32768, sliding_window=None,
                tie_word_embeddings=False, num_local_experts=8, num_experts_per_tok=2),
        8192, 1, 1_073_741_824, "2 · 32 layers · 8 heads · 128 · 2 B · 8192",
    ),
    Case(
        "gpt-oss-20b",
        _config("GptOssForCausalLM", "gpt_oss", 24, 2880, 2880, "64/8", 201088, 131072, head_dim=64,
                sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 12, attention_bias=True,
                tie_word_embeddings=False, num_local_experts=32, num_experts_per_tok=4,
                quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": [
                    "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}),
        32768, 1, 808_452_096, "2 · 8 heads · 64 · 2 B · (12 layers · 32768 + 12 layers · 128)",
    ),
]  # fmt: skip


def published_tensors(config: dict[str, Any]) -> Iterator[Tensor]:
    """The checkpoint's tensors, named as in the published files."""
    kind, hidden, vocab = config["model_type"], config["hidden_size"], config["vocab_size"]
    dtype = "F16" if config["torch_dtype"] == "float16" else "BF16"
    yield "model.embed_tokens.weight", dtype, (vocab, hidden)
    yield "model.norm.weight", dtype, (hidden,)
    if config.get("tie_word_embeddings") is False:
        yield "lm_head.weight", dtype, (vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        parts = {"deepseek_v3": _deepseek_layer, "gpt_oss": _gpt_oss_layer}.get(kind, _llama_layer)(config, layer)
        for name, part_dtype, shape in parts:
            yield f"model.layers.{layer}.{name}", part_dtype or dtype, shape
    if kind == "deepseek_v3":  # the layer that predicts a second token: embedding and head of its own
        last = config["num_hidden_layers"]
        yield f"model.layers.{last}.embed_tokens.weight", "BF16", (vocab, hidden)
        yield f"model.layers.{last}.shared_head.head.weight", "BF16", (vocab, hidden)
        yield f"model.layers.{last}.eh_proj.weight", "BF16", (hidden, 2 * hidden)
        for norm in ("enorm", "hnorm", "shared_head.norm"):
            yield f"model.layers.{last}.{norm}.weight", "BF16", (hidden,)
        for name, part_dtype, shape in _deepseek_layer(config, last):
            yield f"model.layers.{last}.{name}", part_dtype, shape


def _llama_layer(config: dict[str, Any], layer: int) -> Iterator[Tensor]:
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    yield "self_attn.q_proj.weight", "", (config["num_attention_heads"] * head, hidden)
    yield "self_attn.k_proj.weight", "", (config["num_key_value_heads"] * head, hidden)
    yield "self_attn.v_proj.weight", "", (config["num_key_value_heads"] * head, hidden)
    yield "self_attn.o_proj.weight", "", (hidden, config["num_attention_heads"] * head)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config["model_type"] == "gemma3_text":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        yield "self_attn.q_norm.weight", "", (head,)
        yield "self_attn.k_norm.weight", "", (head,)
    yield from ((f"{norm}.weight", "", (hidden,)) for norm in norms)
    experts = config.get("num_local_experts")
    if not experts:
        yield from _gated_mlp("mlp", ("gate_proj", "down_proj", "up_proj"), hidden, mlp)
        return
    yield "block_sparse_moe.gate.weight", "", (experts, hidden)
    for expert in range(experts):
        yield from _gated_mlp(f"block_sparse_moe.experts.{expert}", ("w1", "w2", "w3"), hidden, mlp)


def _gated_mlp(prefix: str, names: tuple[str, str, str], hidden: int, mlp: int) -> Iterator[Tensor]:
    gate, down, up = names
    yield f"{prefix}.{gate}.weight", "", (mlp, hidden)
    yield f"{prefix}.{up}.weight", "", (mlp, hidden)
    yield f"{prefix}.{down}.weight", "", (hidden, mlp)


def _deepseek_layer(config: dict[str, Any], layer: int) -> Iterator[Tensor]:
    hidden, heads, latent = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    query = config["q_lora_rank"]
    in_fp8 = {
        "self_attn.q_a_proj": (query, hidden),
        "self_attn.q_b_proj": (heads * (nope + rope), query),
        "self_attn.kv_a_proj_with_mqa": (latent + rope, hidden),
        "self_attn.kv_b_proj": (heads * (nope + value), latent),
        "self_attn.o_proj": (hidden, heads * value),
    }
    mlps = {"mlp": config["intermediate_size"]}
    if layer >= config["first_k_dense_replace"]:
        experts = [f"experts.{expert}" for expert in range(config["n_routed_experts"])]
        mlps = {f"mlp.{name}": config["moe_intermediate_size"] for name in [*experts, "shared_experts"]}
        yield "mlp.gate.weight", "BF16", (config["n_routed_experts"], hidden)
        yield "mlp.gate.e_score_correction_bias", "F32", (config["n_routed_experts"],)
    for prefix, mlp in mlps.items():
        in_fp8 |= {f"{prefix}.gate_proj": (mlp, hidden), f"{prefix}.up_proj": (mlp, hidden)}
        in_fp8[f"{prefix}.down_proj"] = (hidden, mlp)
    for name, (rows, columns) in in_fp8.items():
        yield f"{name}.weight", "F8_E4M3", (rows, columns)
        yield f"{name}.weight_scale_inv", "F32", (-(-rows // 128), -(-columns // 128))
    for norm, size in (("q_a_layernorm", query), ("kv_a_layernorm", latent)):
        yield f"self_attn.{norm}.weight", "BF16", (size,)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{norm}.weight", "BF16", (hidden,)


def _gpt_oss_layer(config: dict[str, Any], layer: int) -> Iterator[Tensor]:
    hidden, mlp, experts = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    head, heads, kv = config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"]
    for name, rows in (("q_proj", heads * head), ("k_proj", kv * head), ("v_proj", kv * head)):
        yield f"self_attn.{name}.weight", "BF16", (rows, hidden)
        yield f"self_attn.{name}.bias", "BF16", (rows,)
    yield "self_attn.o_proj.weight", "BF16", (hidden, heads * head)
    yield "self_attn.o_proj.bias", "BF16", (hidden,)
    yield "self_attn.sinks", "BF16", (heads,)
    yield "mlp.router.weight", "BF16", (experts, hidden)
    yield "mlp.router.bias", "BF16", (experts,)
    for name, rows, columns in (("gate_up_proj", 2 * mlp, hidden), ("down_proj", hidden, mlp)):
        # 4 bits a value, in blocks of 32 with a scale of 8 bits each
        yield f"mlp.experts.{name}_blocks", "U8", (experts, rows, columns // 32, 16)
        yield f"mlp.experts.{name}_scales", "U8", (experts, rows, columns // 32)
        yield f"mlp.experts.{name}_bias", "BF16", (experts, rows)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{norm}.weight", "BF16", (hidden,)


def write_model(folder: Path, config: dict[str, Any]) -> int:
    """A model's config.json and sparse model.safetensors; returns the tensors' bytes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, offset = {}, 0
    for name, dtype, shape in published_tensors(config):
        end = offset + math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + offset)
    return offset


def ask_hf_mem(folder: Path, tokens: int, batch: int) -> tuple[int, int]:
    """Weights and KV in bytes, from hf-mem's own code over a transport that answers as the hub does."""
    import httpx2
    from hf_mem import arun

    def hub(request: httpx2.Request) -> httpx2.Response:
        if "/tree/" in request.url.path:
            return httpx2.Response(200, json=[{"path": file.name, "type": "file"} for file in folder.iterdir()])
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", "bytes=0-1000000"))
        assert span is not None
        first, last = int(span[1]), int(span[2])
        with (folder / request.url.path.rsplit("/", 1)[1]).open("rb") as file:
            file.seek(first)
            return httpx2.Response(200, content=file.read(last - first + 1))

    client = httpx2.AsyncClient
    httpx2.AsyncClient = lambda **_: client(transport=httpx2.MockTransport(hub))  # type: ignore[misc, assignment]
    result = asyncio.run(
        arun("any/model", experimental=True, max_model_len=tokens, batch_size=batch,
                        kv_cache_dtype="bfloat16")
    )  # fmt: skip
    return result.memory, result.kv_cache


def ask_hf_vram_calc(folder: Path, tokens: int, batch: int) -> tuple[int, int]:
    """Weights in the type that it recommends, and KV in BF16, in bytes."""
    from hf_vram_calc import ConfigManager, ConfigParser, VRAMCalculator
    from hf_vram_calc.calculator import ParameterCalculator

    calculator = VRAMCalculator(ConfigManager())
    config = ConfigParser.load_and_parse_config(folder.name, str(folder))
    parameters = ParameterCalculator.calculate_transformer_params(config)
    weights_gib = calculator.calculate_model_memory(parameters, config.recommended_dtype)
    kv_gib = calculator.calculate_kv_cache_memory(config, "bf16", batch, tokens)
    ConfigParser.cleanup_global_cache()
    return round(weights_gib * 2**30), round(kv_gib * 2**30)


def ask_kvtide(folder: Path, tokens: int, batch: int) -> tuple[int, int]:
    """Weights and the blocks of so many sequences, in bytes, by the plan for a device that holds any of these."""
    from kvtide_sizing.devices.device import device_named
    from kvtide_sizing.formats import Precision, layer_formats
    from kvtide_sizing.memory.kv import kv_layout
    from kvtide_sizing.models.inspect import inspect_model
    from kvtide_sizing.plan import Policy, Workload, plan

    shape = inspect_model(str(folder))
    workload = Workload(max_context_tokens=tokens, target_concurrency=batch)
    made = plan(shape, device_named("any:2TiB"), workload, Policy(precision="BF16"))
    formats = layer_formats(shape, Precision.BF16)
    layout = kv_layout(shape, formats, made.kv.block_size_tokens, step_tokens=1)
    return made.memory.weights_bytes, layout.required_blocks(batch, tokens) * layout.block_bytes


ASK = {"hf-mem": ask_hf_mem, "hf-vram-calc": ask_hf_vram_calc, "kvtide": ask_kvtide}


def _ask(python: Path, estimator: str, folder: Path, case: Case) -> tuple[int, int] | str:
    """The answer of an estimator in a process of its own, or the last line of its complaint."""
    asked = ("--ask", estimator, str(folder), str(case.tokens), str(case.batch))
    command = [str(python), "-m", "bench.estimators", *asked]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode:
        return (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
    weights, kv = json.loads(done.stdout)
    return int(weights), int(kv)


def main() -> None:
    """Without arguments: the table. With --ask: one estimator's answer as JSON, in the interpreter that has it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ask", nargs=4, metavar=("ESTIMATOR", "FOLDER", "TOKENS", "BATCH"))
    asked = parser.parse_args().ask
    if asked:
        with contextlib.redirect_stdout(io.StringIO()):
            answer = ASK[asked[0]](Path(asked[1]), int(asked[2]), int(asked[3]))
        print(json.dumps(answer))
        return
    with tempfile.TemporaryDirectory() as scratch:
        venv = Path(scratch, "venv")
        subprocess.run([sys.executable, "-m", "uv", "venv", "-q", venv], check=True)
        python = venv / "bin" / "python"
        subprocess.run([sys.executable, "-m", "uv", "pip", "install", "-q", "--python", python, *ESTIMATORS.values()],
                       check=True)  # fmt: skip
        for case in CASES:
            folder = Path(scratch, case.name)
            print(f"{case.name} @{case.tokens} x{case.batch}")
            print(f"  {'arithmetic':14}{write_model(folder, case.config):>20,}{case.kv_bytes:>20,}  {case.arithmetic}")
            for estimator in ASK:
                interpreter = python if estimator in ESTIMATORS else Path(sys.executable)
                said = _ask(interpreter, estimator, folder, case)
                row = said if isinstance(said, str) else "".join(f"{number:>20,}" for number in said)
                print(f"  {estimator:14}{row}", flush=True)


if __name__ == "__main__":
    main()
