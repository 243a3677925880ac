"""From a configuration to an engine that has generated its first token."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvtide_kernels.backends import attention_over, check_served
from kvtide_kernels.key_basis import KeyBasis
from kvtide_kernels.pool import KVPool
from kvtide_sizing.errors import InvalidPlan, UnknownDevice, UnsupportedPrecision
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_sizing.models.model_uri import ModelUri
from kvtide_sizing.plan.record import Plan
from kvtide_worker.engine.cgroup import Cgroup
from kvtide_worker.engine.config import EngineConfig
from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.heap import give_back_heap
from kvtide_worker.engine.key_bases import bases_bytes, fit_key_bases
from kvtide_worker.engine.layout import ServedKv, served_kv
from kvtide_worker.engine.memory import MemoryMeter, usage_reader
from kvtide_worker.engine.messages import AddRequest, SamplingParams
from kvtide_worker.engine.worst_step import WorstStep
from kvtide_worker.models.checkpoint import open_checkpoint
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.model import load_model
from kvtide_worker.models.source import fetch

_DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def load_engine(
    config: EngineConfig, progress: Callable[[str], None], calibration_tokens: Callable[[], list[int]]
) -> Engine:
    """Load the model, take the pool, and generate one token; progress is told each stage before it begins.

    calibration_tokens: what gives the tokens of `calibration_text`; called where the formats need them

    Raises SizingError with a message for a person: no such model, one that is not run, a plan for another model, a
    precision that no kernel here serves.
    """
    torch.set_num_threads(config.threads or Cgroup().cpus())
    device, dtype, plan = torch.device(config.device), _DTYPES[config.dtype], Plan.from_json(config.plan)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UnknownDevice("--device cuda: torch finds no GPU here; look at the driver with nvidia-smi, or use cpu")
    progress("finding the model")
    path = fetch(ModelUri.parse(config.model_uri))
    checkpoint = open_checkpoint(path)
    _check(plan, checkpoint.config)
    kv = served_kv(path, plan, checkpoint.config, exact=dtype is torch.float32)
    progress("preparing the kernels")
    _check_kernels(plan, kv, checkpoint.config, device)
    progress("loading weights")
    model = load_model(
        checkpoint,
        dtype=dtype,
        device=device,
        context_tokens=plan.max_context_tokens,
        weight_format=WeightFormat(plan.weights_format),
    )
    bases: dict[int, KeyBasis] = {}
    if any(stored.has_key_basis for stored in kv.formats):
        # The pool is not there yet: what this takes is its.
        progress("fitting the key bases")
        bases = fit_key_bases(model, kv.formats, calibration_tokens(), device)
        give_back_heap()
    progress("allocating the KV pool")
    pool = KVPool.allocate(
        kv.layout,
        kv.formats,
        num_blocks=plan.kv.num_blocks * len(kv.layout.tables),
        kv_heads=model.config.kv_heads,
        head_dim=model.config.head_dim,
        device=device,
    )
    attention = attention_over(
        pool, query_heads=model.config.query_heads, scale=model.config.attention_scale, bases=bases
    )
    meter = MemoryMeter(
        usage_reader(device, plan.memory.device_bytes),
        weights_bytes=model.weights_bytes + bases_bytes(bases),
        kv_pool_bytes=pool.nbytes,
    )
    engine = Engine(
        model=model,
        pool=pool,
        attention=attention,
        meter=meter,
        max_context_tokens=plan.max_context_tokens,
        max_batch_limit=plan.batch_limit,
        prefix_caching=plan.kv.prefix_caching,
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
    """Refuse a plan that was made for something else than this model."""
    if plan.attention.kv_heads != model.kv_heads or plan.attention.query_heads != model.query_heads:
        raise InvalidPlan(
            f"the plan is for {plan.attention.query_heads} query heads over {plan.attention.kv_heads} KV heads, "
            f"but the model has {model.query_heads} over {model.kv_heads}; make the plan for this model"
        )
    if plan.max_context_tokens > model.max_position_embeddings:
        raise InvalidPlan(
            f"the plan has a context of {plan.max_context_tokens} tokens, but the model was trained for "
            f"{model.max_position_embeddings}; set maxContextTokens to that or less"
        )


def _check_kernels(plan: Plan, kv: ServedKv, model: ModelConfig, device: torch.device) -> None:
    """Refuse what no backend attends to, before the weights are read."""
    try:
        check_served(
            device,
            kv.formats,
            head_dim=model.head_dim,
            query_heads=model.query_heads,
            kv_heads=model.kv_heads,
            block_size=kv.layout.block_size,
        )
    except ValueError as error:
        raise UnsupportedPrecision(f"kvCache.precision {plan.kv.precision} cannot be served here: {error}") from error


def _warm_up(engine: Engine) -> None:
    """One token from end to end. Raises RuntimeError where it does not come."""
    engine.add(AddRequest("warm-up", [0], SamplingParams(max_tokens=1, temperature=0.0)))
    outputs = engine.step()
    if not outputs or outputs[0].error:
        raise RuntimeError(f"the model gave no first token: {outputs[0].error if outputs else 'no output'}")
    engine.reset_counters()
