"""Every KV precision from end to end, in tiny models whose heads the kernels serve."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Gemma3ForCausalLM, LlamaForCausalLM

from kvtide_sizing.models.inspect import inspect_model
from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.messages import AddRequest
from kvtide_worker.models.checkpoint import open_checkpoint
from kvtide_worker.models.model import load_model
from tests.worker.engine.forced import CPU, Forced, reference
from tests.worker.engine.harness import generate, greedy, load, run, some_tokens
from tests.worker.models.tiny import save_tiny_gemma3, save_tiny_llama

# Most can go wrong in the first and the last: `make test-fast` leaves the others to `make test`.
PRECISIONS = [
    "BF16",
    *(pytest.param(between, marks=pytest.mark.slow) for between in ("INT8", "K8V4", "Mixed")),
    "INT4",
]
PROMPTS = [[7, 8, 9], list(range(20, 60)), [300], list(range(100, 116)), list(range(250, 150, -3))]
TOKENS = torch.randint(0, 320, (150,), generator=torch.Generator().manual_seed(4)).tolist()
NEW_TOKENS = 40

# A token that is drawn at random is about 3 standard deviations below the likeliest. Measured: 0.03 for BF16, 0.05 for
# INT8 and Mixed, 0.5 with sides of 4 bits; rounding decides between tokens that are about as likely.
MOST_REGRET = {"BF16": 0.15, "INT8": 0.15, "Mixed": 0.15, "K8V4": 1.0, "INT4": 1.0}


class Tiny:
    """A random model in its folder, and transformers' own forward pass of it."""

    def __init__(self, folder: Path, model: LlamaForCausalLM | Gemma3ForCausalLM) -> None:
        self.folder, self._model = folder, model
        self.exact = self._logits(torch.float32)
        self.rounded = self._logits(torch.bfloat16)

    def _logits(self, dtype: torch.dtype) -> torch.Tensor:
        """Of each of TOKENS."""
        model = type(self._model).from_pretrained(self.folder, dtype=dtype).eval()
        with torch.inference_mode():
            return model(torch.tensor([TOKENS])).logits[0].float()

    @torch.inference_mode()
    def regret(self, prompt: list[int], output: list[int]) -> float:
        """How far a generated token's logit is below the largest one at most: in float32, by their deviation."""
        logits = self._model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        return ((logits.max(-1).values - chosen) / logits.std(-1)).max().item()


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Six layers, of which Mixed packs two; or seven, of which all but one see the last 24 tokens. Heads of 64.

    Weights are such that logits differ clearly, and that BF16's rounding is not the whole of them.
    """
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "llama":
        return Tiny(folder, save_tiny_llama(folder, num_hidden_layers=6, head_dim=64, initializer_range=0.15))
    return Tiny(folder, save_tiny_gemma3(folder, head_dim=64, query_pre_attn_scalar=64, tie_word_embeddings=False))


def forced(tiny: Tiny, precision: str) -> Forced:
    model = load_model(open_checkpoint(tiny.folder), dtype=torch.bfloat16, device=CPU)
    return Forced(model, inspect_model(tiny.folder), precision, some_tokens())


def error(logits: torch.Tensor, exact: torch.Tensor) -> float:
    """Root of the mean square, over that of what is exact; NaN where anything is."""
    return ((logits - exact).square().mean() / exact.square().mean()).sqrt().item()


def check_tokens(tiny: Tiny, precision: str, outputs: list[list[int]]) -> None:
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert len(output) == NEW_TOKENS
        assert tiny.regret(prompt, output) < MOST_REGRET[precision]


def all_free(engine: Engine) -> bool:
    state = engine.state()
    return state.live_blocks == state.live_tokens == state.running == state.waiting == 0


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_batch_changes_no_token(tiny: Tiny, precision: str) -> None:
    engine = load(tiny.folder, dtype="auto", precision=precision, num_blocks=300)
    alone = [generate(engine, [prompt], NEW_TOKENS)[0] for prompt in PROMPTS]
    check_tokens(tiny, precision, alone)
    assert generate(engine, PROMPTS, NEW_TOKENS) == alone
    assert all_free(engine)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_was_put_back_goes_on(tiny: Tiny, precision: str) -> None:
    """A lower limit takes the newest ones' blocks, whose tokens are computed again: in chunks, which are rounded
    otherwise than decodes."""
    engine = load(tiny.folder, dtype="auto", precision=precision, num_blocks=300)
    for index, prompt in enumerate(PROMPTS):
        engine.add(AddRequest(str(index), prompt, greedy(NEW_TOKENS)))
    steps = []
    for limit in (5, 1, 2, 1, 3, 5):
        engine.set_batch_limit(limit)
        for _ in range(5):
            steps += engine.step()
    steps += run(engine)
    outputs: list[list[int]] = [[] for _ in PROMPTS]
    for step in steps:
        assert step.error is None
        outputs[int(step.request_id)] += step.token_ids
    check_tokens(tiny, precision, outputs)
    assert all_free(engine)


@pytest.mark.parametrize(
    ("precision", "recent_blocks"), [("BF16", 0), ("INT8", 0), ("K8V4", 8), ("INT4", 8), ("Mixed", 8)]
)
@pytest.mark.slow
def test_preemption(tmp_path: Path, precision: str, recent_blocks: int) -> None:
    """The longest sequence has 74 tokens in 5 blocks, beside those of its last 32 tokens: a quarter of 16 in each."""
    tiny = Tiny(tmp_path, save_tiny_llama(tmp_path, num_hidden_layers=6, head_dim=64, initializer_range=0.15))
    num_blocks = 7 + 2 * recent_blocks
    engine = load(tmp_path, dtype="auto", precision=precision, num_blocks=num_blocks, max_context=80)
    check_tokens(tiny, precision, generate(engine, PROMPTS, NEW_TOKENS))
    assert engine.state().preemptions > 0
    assert all_free(engine)


@pytest.mark.parametrize("chunks", [[150], [60, 1, 1, 37, 20], [3]], ids=str)
def test_bf16_is_as_near_as_transformers_is(tiny: Tiny, chunks: list[int]) -> None:
    """It rounds elsewhere, but by no more than a fifth as much again."""
    logits = forced(tiny, "BF16").logits(TOKENS, chunks)
    assert error(logits, tiny.exact) < 1.2 * error(tiny.rounded, tiny.exact)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_whole_prompt_is_attended_to_as_it_came(tiny: Tiny, precision: str) -> None:
    """Nothing that is stored is read: the same as with BF16."""
    logits = forced(tiny, precision).logits(TOKENS, [150])
    assert error(logits, tiny.exact) < 1.2 * error(tiny.rounded, tiny.exact)


@pytest.mark.parametrize("chunks", [[60, 1, 1, 37, 20], [3]], ids=str)
@pytest.mark.parametrize(("precision", "most"), [("INT8", 0.03), ("Mixed", 0.03), ("K8V4", 0.04), ("INT4", 0.06)])
@pytest.mark.slow
def test_what_is_stored_is_what_the_formats_mean(tiny: Tiny, precision: str, most: float, chunks: list[int]) -> None:
    """The reference attends in float64 and rounds nothing but what it stores: half of what is allowed here is BF16's
    noise. Measured with 4 bits: a third of what these bits cost."""
    model = forced(tiny, precision)
    assert error(model.logits(TOKENS, chunks), model.logits(TOKENS, chunks, reference)) < most
