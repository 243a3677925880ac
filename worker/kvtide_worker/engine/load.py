"""From a configuration to an engine that has generated its first token."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvtide_kernels.pool import KVPool
from kvtide_kernels.torch_attention import TorchAttention
from kvtide_sizing.errors import InvalidPlan, UnsupportedPrecision
from kvtide_sizing.models.model_uri import ModelUri
from kvtide_sizing.plan.record import Plan
from kvtide_worker.engine.cgroup import Cgroup
from kvtide_worker.engine.config import EngineConfig
from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.heap import give_back_heap
from kvtide_worker.engine.layout import served_layout
from kvtide_worker.engine.memory import MemoryMeter, usage_reader
from kvtide_worker.engine.messages import AddRequest, SamplingParams
from kvtide_worker.engine.worst_step import WorstStep
from kvtide_worker.models.checkpoint import open_checkpoint
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.model import load_model
from kvtide_worker.models.source import fetch

_DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def load_engine(config: EngineConfig, progress: Callable[[str], None]) -> Engine:
    """Load the model, take the pool, and generate one token; progress is told each stage before it begins.

    Raises SizingError with a message for a person: no such model, one that is not run, a plan for another model.
    """
    torch.set_num_threads(config.threads or Cgroup().cpus())
    device, dtype, plan = torch.device(config.device), _DTYPES[config.dtype], Plan.from_json(config.plan)
    progress("finding the model")
    path = fetch(ModelUri.parse(config.model_uri))
    checkpoint = open_checkpoint(path)
    _check(plan, checkpoint.config)
    progress("loading weights")
    model = load_model(checkpoint, dtype=dtype, device=device)
    progress("allocating the KV pool")
    layout = served_layout(path, plan, model.config)
    pool = KVPool.allocate(
        layout,
        num_blocks=plan.kv.num_blocks * len(layout.tables),
        kv_heads=model.config.kv_heads,
        head_dim=model.config.head_dim,
        dtype=dtype,
        device=device,
    )
    attention = TorchAttention(pool, scale=model.config.attention_scale)
    meter = MemoryMeter(
        usage_reader(device, plan.memory.device_bytes), weights_bytes=model.weights_bytes, kv_pool_bytes=pool.nbytes
    )
    engine = Engine(
        model=model,
        pool=pool,
        attention=attention,
        meter=meter,
        max_context_tokens=plan.max_context_tokens,
        max_batch_limit=plan.batch_limit,
    )
    progress("measuring a full step")
    worst = WorstStep(model, attention, pool, max_context_tokens=plan.max_context_tokens, batch=plan.batch_limit)
    peak_bytes = worst.measure_bytes()
    give_back_heap()
    meter.rest(peak_bytes)
    progress("generating the first token")
    _warm_up(engine)
    return engine


def _check(plan: Plan, model: ModelConfig) -> None:
    """Refuse a plan that was made for something else than this model and this engine."""
    if plan.kv.precision != "BF16":
        raise UnsupportedPrecision(f"the plan stores KV as {plan.kv.precision}; this worker stores BF16")
    if plan.attention.kv_heads != model.kv_heads or plan.attention.query_heads != model.query_heads:
        raise InvalidPlan(
            f"the plan is for {plan.attention.query_heads} query heads over {plan.attention.kv_heads} KV heads, "
            f"but the model has {model.query_heads} over {model.kv_heads}; make the plan for this model"
        )
    bytes_per_token = 4 * model.num_layers * model.kv_heads * model.head_dim
    if plan.kv.bytes_per_token != bytes_per_token:
        raise InvalidPlan(
            f"the plan is for {plan.kv.bytes_per_token} bytes of KV a token, but the model takes {bytes_per_token}; "
            f"make the plan for this model"
        )
    if plan.max_context_tokens > model.max_position_embeddings:
        raise InvalidPlan(
            f"the plan has a context of {plan.max_context_tokens} tokens, but the model was trained for "
            f"{model.max_position_embeddings}; set maxContextTokens to that or less"
        )


def _warm_up(engine: Engine) -> None:
    """One token from end to end. Raises RuntimeError where it does not come."""
    engine.add(AddRequest("warm-up", [0], SamplingParams(max_tokens=1, temperature=0.0)))
    outputs = engine.step()
    if not outputs or outputs[0].error:
        raise RuntimeError(f"the model gave no first token: {outputs[0].error if outputs else 'no output'}")
    engine.reset_counters()
