"""Gemma 3 270M, real weights in K-quants, against transformers: every tensor, greedy tokens, and what loading takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import Gemma3ForCausalLM

from devcluster.model import gemma3_270m_gguf
from kvtide_worker.models.checkpoint import open_checkpoint
from kvtide_worker.text.tokenizer import Tokenizer
from tests.worker.engine.harness import generate, load
from tests.worker.models.dense import read

# transformers takes half a minute to read the file.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TALE = "The river rose in the night, and by morning the lower fields were under water. "
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8,",
    "Water boils at",
    "Bonjour, je m'appelle",
    "日本の首都は",
    "<start_of_turn>user\nWhat is gravity?<end_of_turn>\n<start_of_turn>model\n",
    "A",
    "Anna lives in Oslo. " + TALE * 40 + "Anna lives in",  # twice as long as the window of 512 tokens
    TALE * 28 + "The lower fields",  # the window's end is passed while tokens are generated
]
NEW_TOKENS = 24

# Loads in a process of its own, where nothing else takes memory; the sampler reads what the process holds itself, as
# mapped pages of the file are the kernel's to take back.
LOAD = """
import json, sys, threading, time
from pathlib import Path
import torch
from kvtide_worker.models.checkpoint import open_checkpoint
from kvtide_worker.models.model import load_model

def held():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024

torch.set_num_threads(1)
before = peak = held()
done = threading.Event()

def sample():
    global peak
    while not done.wait(0.0005):
        peak = max(peak, held())

sampler = threading.Thread(target=sample)
sampler.start()
try:
    model = load_model(open_checkpoint(Path(sys.argv[1])), dtype=torch.bfloat16, device=torch.device("cpu"))
finally:
    done.set()
    sampler.join()
print(json.dumps({"weights": model.weights_bytes, "peak": peak - before}))
"""


@pytest.fixture(scope="module")
def gemma() -> Path:
    """Gemma 3 270M as a GGUF file."""
    return gemma3_270m_gguf()


@pytest.fixture(scope="module")
def reference(gemma: Path) -> Gemma3ForCausalLM:
    """The same file as transformers dequantises it, in float32."""
    return Gemma3ForCausalLM.from_pretrained(gemma.parent, gguf_file=gemma.name, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompts(gemma: Path) -> list[list[int]]:
    tokenizer = Tokenizer.load(gemma)
    return [tokenizer.encode(text, add_special_tokens=True) for text in PROMPTS]


def test_every_tensor_is_what_transformers_reads(gemma: Path, reference: Gemma3ForCausalLM) -> None:
    checkpoint = open_checkpoint(gemma)
    parameters = dict(reference.named_parameters())
    assert len(parameters) == 236  # as the file's header says
    for name, parameter in parameters.items():
        assert torch.equal(read(checkpoint, name), parameter), name


def test_the_configuration(gemma: Path) -> None:
    """google/gemma-3-270m's config.json: 18 layers, every sixth without a window, scores over sqrt(256)."""
    config = open_checkpoint(gemma).config
    assert config.windows == (512, 512, 512, 512, 512, None) * 3
    assert (config.kv_heads, config.head_dim, config.vocab_size) == (1, 256, 262_144)
    assert (config.attention_scale, config.rope.theta) == (1 / 16, 1_000_000.0)
    assert config.window_rope is not None
    assert config.window_rope.theta == 10_000.0
    assert config.tied_embeddings
    assert config.max_position_embeddings == 32_768


@torch.inference_mode()
def test_greedy_tokens_in_float32(gemma: Path, reference: Gemma3ForCausalLM, prompts: list[list[int]]) -> None:
    """transformers generates these tokens where each one is the likeliest after those before it."""
    assert max(map(len, prompts)) > 512
    engine = load(gemma, max_context=1024, num_blocks=256)
    for prompt, tokens in zip(prompts, generate(engine, prompts, NEW_TOKENS), strict=True):
        logits = reference(torch.tensor([prompt + tokens[:-1]]), logits_to_keep=NEW_TOKENS).logits[0]
        assert logits.argmax(-1).tolist() == tokens


def test_bfloat16_tokens_do_not_depend_on_who_shares_the_step(gemma: Path, prompts: list[list[int]]) -> None:
    chosen = [prompts[index] for index in (0, 4, 6, 9)]
    engine = load(gemma, dtype="bfloat16", max_context=1024, num_blocks=256)
    alone = [tokens for prompt in chosen for tokens in generate(engine, [prompt], 8)]
    assert alone == generate(engine, chosen, 8)


def test_loading_takes_little_more_than_the_weights(gemma: Path) -> None:
    """268,098,176 parameters at 2 bytes; the embedding alone would be 671 MB in float32."""
    run = subprocess.run([sys.executable, "-c", LOAD, str(gemma)], capture_output=True, text=True, check=True)
    measured = json.loads(run.stdout)
    assert 536_196_352 <= measured["weights"] < 536_196_352 * 1.001
    assert measured["peak"] - measured["weights"] < 100e6
