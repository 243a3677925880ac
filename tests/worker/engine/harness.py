"""An engine without its process: load it, give it requests, collect tokens."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from kvtide_sizing.devices.device import Device, DeviceKind
from kvtide_sizing.models.inspect import inspect_model
from kvtide_sizing.plan import Policy, Workload, plan
from kvtide_worker.engine.config import DType, EngineConfig
from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.load import load_engine
from kvtide_worker.engine.messages import AddRequest, CalibrationTokens, SamplingParams, TokenOutput

# In percent of perplexity: a tiny model's random weights lose without end, and their formats are to be served.
ANY_LOSS = 1e9


def plan_for(
    model: Path,
    *,
    num_blocks: int,
    block_size: int,
    max_context: int,
    batch_limit: int,
    precision: str = "BF16",
    max_loss: float = ANY_LOSS,
) -> dict[str, Any]:
    """The planner's plan for the model, with another pool than its device would hold."""
    planned = plan(
        inspect_model(model),
        Device("some", DeviceKind.CPU, 1 << 36),
        Workload(max_context_tokens=max_context),
        Policy(precision=precision, block_size_tokens=block_size, max_quality_loss_percent=max_loss),
    ).to_json()
    planned["kv"]["numBlocks"] = num_blocks
    planned["batchLimit"] = batch_limit
    return planned


def load(
    model: Path,
    *,
    dtype: DType = "float32",
    num_blocks: int = 64,
    block_size: int = 16,
    max_context: int = 256,
    batch_limit: int = 16,
    precision: str = "BF16",
    prefix_caching: bool = True,
) -> Engine:
    """An engine that has generated its warm-up token."""
    planned = plan_for(
        model,
        num_blocks=num_blocks,
        block_size=block_size,
        max_context=max_context,
        batch_limit=batch_limit,
        precision=precision,
    )
    planned["kv"]["prefixCaching"] = prefix_caching
    engine, _ = load_engine(EngineConfig(f"file://{model}", planned, dtype=dtype), lambda stage: None, calibration)
    return engine


def some_tokens() -> list[int]:
    """What a tiny model, which has no tokenizer, may be calibrated with."""
    return random.Random(3).choices(range(320), k=1024)


def calibration() -> CalibrationTokens:
    """The same, as the engine is given them."""
    tokens = some_tokens()
    return CalibrationTokens(fitted=tokens, checked=tokens[-512:], start=[1])


def greedy(max_tokens: int, **changes: Any) -> SamplingParams:
    """Exactly max_tokens tokens, the likeliest at each place."""
    return SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, **changes})


def run(engine: Engine) -> list[TokenOutput]:
    """Step until there is nothing to do; all outputs in order."""
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    return outputs


def generate(engine: Engine, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Greedy tokens of all prompts, which are queued at once."""
    for index, prompt in enumerate(prompts):
        engine.add(AddRequest(str(index), prompt, greedy(max_tokens)))
    tokens: list[list[int]] = [[] for _ in prompts]
    for output in run(engine):
        assert output.error is None
        tokens[int(output.request_id)] += output.token_ids
    return tokens
