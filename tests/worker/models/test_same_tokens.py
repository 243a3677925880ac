"""Greedy tokens against transformers on the same real weights: alone, in a batch, from both file formats.

float32 is compared token for token. bfloat16 keeps 8 bits of a logit, so that two tokens whose logits are that close
are a tie, which the order of a sum decides: there a difference must be such a tie, and is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from kvtide_worker.engine.engine import Engine
from kvtide_worker.text.tokenizer import Tokenizer
from tests.worker.engine.harness import generate, load

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "1, 1, 2, 3, 5, 8,",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a haiku about the tide.<|im_end|>\n<|im_start|>assistant\n",
    "SELECT name, COUNT(*) FROM users",
    "Dear Sir or Madam,",
    "The three laws of thermodynamics are",
    "In 1969,",
    "Bonjour, je m'appelle",
    "#include <stdio.h>\n\nint main() {",
    "A",
    "To be, or not to be, that is",
    "The mitochondria is the powerhouse of the cell. " * 12,
    "Ingredients:\n- 2 eggs\n- 100 g flour\n- ",
    '{"name": "kvtide", "version": ',
    "Why did the chicken cross the road?",
    "import numpy as np\n\nx = np.",
    "The quick brown fox jumps over the lazy dog. " * 7 + "The",
    "Question: If a train travels 60 km in 45 minutes, how fast is it?\nAnswer:",
    "日本の首都は",
    "Roses are red,\nViolets are blue,",
]
NEW_TOKENS = 32

# A bfloat16 has 8 significant bits: its steps are at most 2^-7 of its value. Two steps of the best logit are a tie;
# measured, the first difference was never more than one: 10 of 24 prompts had one within 48 tokens.
BFLOAT16_TIE = 2**-6


@pytest.fixture(scope="module")
def prompts(smollm2: Path) -> list[list[int]]:
    tokenizer = Tokenizer.load(smollm2)
    return [tokenizer.encode(text, add_special_tokens=False) for text in PROMPTS]


def in_batches(engine: Engine, prompts: list[list[int]], batch: int, new_tokens: int) -> list[list[int]]:
    starts = range(0, len(prompts), batch)
    return [tokens for start in starts for tokens in generate(engine, prompts[start : start + batch], new_tokens)]


@torch.inference_mode()
def reference_logits(model: LlamaForCausalLM, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """transformers' logits for each place of `tokens`, given the ones before it: [len(tokens), vocab_size].

    Its own greedy generation gives `tokens` exactly where the best logit of every place is the token's: each token is
    the next one's context. One pass says so in a small part of the time that a generation takes.
    """
    return model(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]


def generated(model: LlamaForCausalLM, prompt: list[int]) -> tuple[list[int], torch.Tensor]:
    """transformers' own greedy tokens, with its cache, and their logits [new tokens, vocab_size]."""
    result = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        min_new_tokens=NEW_TOKENS,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return result.sequences[0, len(prompt) :].tolist(), torch.cat(result.logits)


@pytest.mark.slow
def test_a_few_prompts_alone_and_together_in_bfloat16(smollm2: Path, prompts: list[list[int]]) -> None:
    """A request's tokens do not depend on who shares the step, though bfloat16 rounds."""
    chosen, engine = [prompts[index] for index in (0, 5, 13, 15)], load(smollm2, dtype="bfloat16")
    assert in_batches(engine, chosen, 1, 8) == in_batches(engine, chosen, 4, 8)


@pytest.fixture(scope="module")
def smollm2_folder(smollm2_float32: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same weights as a Hugging Face folder, written by transformers."""
    folder = tmp_path_factory.mktemp("smollm2")
    smollm2_float32.save_pretrained(folder)
    yield folder
    # Half a gigabyte, which pytest would keep for three runs.
    for file in folder.glob("*.safetensors"):
        file.unlink()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_prompts_in_float32(
    smollm2: Path, smollm2_folder: Path, smollm2_float32: LlamaForCausalLM, prompts: list[list[int]]
) -> None:
    engine = load(smollm2)
    together = in_batches(engine, prompts, 16, NEW_TOKENS)
    for prompt, tokens in zip(prompts, together, strict=True):
        assert reference_logits(smollm2_float32, prompt, tokens).argmax(-1).tolist() == tokens
    assert in_batches(engine, prompts, 1, NEW_TOKENS) == together
    assert in_batches(load(smollm2_folder), prompts, 16, NEW_TOKENS) == together


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_prompts_in_bfloat16(smollm2: Path, smollm2_folder: Path, prompts: list[list[int]]) -> None:
    reference = LlamaForCausalLM.from_pretrained(smollm2_folder, dtype=torch.bfloat16).eval()
    engine = load(smollm2, dtype="bfloat16")
    together = in_batches(engine, prompts, 16, NEW_TOKENS)
    assert in_batches(engine, prompts, 1, NEW_TOKENS) == together

    diverged = []
    for prompt, tokens in zip(prompts, together, strict=True):
        expected, logits = generated(reference, prompt)
        first = next((place for place in range(NEW_TOKENS) if tokens[place] != expected[place]), None)
        if first is not None:
            best, ours = logits[first, expected[first]].item(), logits[first, tokens[first]].item()
            diverged.append((best - ours) / abs(best))
    print(f"{len(diverged)} of {len(prompts)} prompts differ from transformers in bfloat16, by {diverged}")
    assert all(gap <= BFLOAT16_TIE for gap in diverged)
