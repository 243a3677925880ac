"""From a configuration to an engine that has generated its first token."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import torch

from kvtide_kernels.attention import PagedAttention
from kvtide_kernels.backends import check_served
from kvtide_kernels.cpu.attention import CpuAttention
from kvtide_kernels.pool import KVPool
from kvtide_kernels.torch_attention import TorchAttention
from kvtide_sizing.errors import InvalidPlan, UnknownDevice, UnsupportedPrecision
from kvtide_sizing.memory.overhead import GRAPHS_BYTES
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_sizing.models.model_uri import ModelUri
from kvtide_sizing.plan.record import Plan
from kvtide_worker.engine.busy_memory import wait_for_memory
from kvtide_worker.engine.cgroup import Cgroup
from kvtide_worker.engine.config import EngineConfig
from kvtide_worker.engine.decode_graphs import DecodeGraphs, GraphAttention
from kvtide_worker.engine.engine import Engine
from kvtide_worker.engine.gpu_memory import device_memory
from kvtide_worker.engine.heap import give_back_heap
from kvtide_worker.engine.key_bases import bases_bytes
from kvtide_worker.engine.kv_choice import KvChoice, choose_kv
from kvtide_worker.engine.kv_formats import KvFormats
from kvtide_worker.engine.layout import ServedKv, served_kv
from kvtide_worker.engine.memory import MemoryMeter, usage_reader
from kvtide_worker.engine.messages import AddRequest, CalibrationTokens, KvQuality, LoadReport, SamplingParams
from kvtide_worker.engine.pooled_heads import load_pooled
from kvtide_worker.engine.worst_step import WorstStep
from kvtide_worker.models.checkpoint import open_checkpoint
from kvtide_worker.models.config import ModelConfig
from kvtide_worker.models.model import Model, load_model
from kvtide_worker.models.pooled import PooledCheckpoint
from kvtide_worker.models.source import fetch
from kvtide_worker.quality.subject import Subject

_DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def load_engine(
    config: EngineConfig, progress: Callable[[str], None], calibration: Callable[[], CalibrationTokens]
) -> tuple[Engine, LoadReport]:
    """Load the model, take the pool, and generate one token; progress is told each stage before it begins.

    calibration: what gives the tokens of `calibration_text`; called where formats are fitted to them and checked

    Raises SizingError with a message for a person: no such model, one that is not run, a plan for another model, a
    precision that no kernel here serves, or one that loses too much where nothing better fits; GPUMemoryBusy where
    others hold the device's memory for too long.
    """
    torch.set_num_threads(config.threads or Cgroup().cpus())
    device, dtype, plan = torch.device(config.device), _DTYPES[config.dtype], Plan.from_json(config.plan)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UnknownDevice("--device cuda: torch finds no GPU here; look at the driver with nvidia-smi, or use cpu")
    progress("finding the model")
    path = fetch(ModelUri.parse(config.model_uri))
    native = open_checkpoint(path)
    _check(plan, native.config)
    pooled = None
    if plan.attention.kv_heads != native.config.kv_heads:
        pooled = PooledCheckpoint(native, plan.attention.kv_heads)
        calibration = cache(calibration)  # the text is sent once
    checkpoint = pooled or native
    planned = served_kv(path, plan, checkpoint.config, exact=dtype is torch.float32)
    progress("preparing the kernels")
    _check_kernels(plan, planned, checkpoint.config, device)
    if device.type == "cuda":
        _wait_for_memory(plan, config, device, progress)
    progress("loading weights")
    load = partial(
        load_model,
        dtype=dtype,
        device=device,
        context_tokens=plan.max_context_tokens,
        weight_format=WeightFormat(plan.weight_precision),
    )
    if pooled is None:
        model = load(native)
    else:
        text, allowed = calibration(), plan.kv.max_quality_loss_percent
        progress("comparing pooled heads with all")
        model = load_pooled(pooled, native, load, text, max_loss_percent=allowed, device=device)
    give_back_heap()  # what matrices took until they were quantised
    subject = Subject(planned.shape, model, {}, device, block_size=plan.kv.block_size_tokens)
    choice = choose_kv(planned, plan, subject, calibration, progress, reencodable=config.reencodable)
    served = choice.served
    progress("allocating the KV pool")
    pool = KVPool.allocate(
        served.layout,
        served.formats,
        num_blocks=served.num_blocks,
        kv_heads=model.config.kv_heads,
        head_dim=model.config.head_dim,
        device=device,
    )
    formats = KvFormats(choice, query_heads=model.config.query_heads, scale=model.config.attention_scale)
    attention = formats.attention(pool)
    graphs = _graphs(config, model, attention, choice, plan, progress)
    meter = MemoryMeter(
        usage_reader(device, plan.memory.device_bytes),
        # Those of formats that the pool may become are in nobody's plan: they come out of the reserve, and are "other".
        weights_bytes=model.weights_bytes
        + bases_bytes({layer: basis for layer, basis in choice.bases.items() if planned.formats[layer].has_key_basis}),
        kv_pool_bytes=pool.nbytes,
    )
    engine = Engine(
        model=model,
        pool=pool,
        attention=attention,
        meter=meter,
        max_context_tokens=plan.max_context_tokens,
        max_batch_limit=served.batch_limit,
        prefix_caching=plan.kv.prefix_caching,
        formats=formats,
        graphs=graphs,
    )
    progress("measuring a full step")
    # What a step takes hangs on how many sequences it runs, and these on how many the pool holds.
    limits = {served.batch_limit, max(other.batch_limit for other in (served, *choice.others.values()))}
    peaks = {
        limit: WorstStep(
            model, attention, pool, max_context_tokens=plan.max_context_tokens, batch=limit
        ).measure_bytes()
        for limit in sorted(limits)
    }
    give_back_heap()
    meter.rest(peaks)
    progress("generating the first token")
    _warm_up(engine)
    return engine, _report(plan, choice, attention, dtype)


def _wait_for_memory(plan: Plan, config: EngineConfig, device: torch.device, progress: Callable[[str], None]) -> None:
    """Until the model, its pool and its steps have room. Of the overhead some may be taken by this process already."""
    memory = plan.memory
    wait_for_memory(
        memory.weights_bytes + memory.kv_pool_bytes + memory.activations_bytes,
        partial(device_memory, device),
        timeout_s=config.gpu_memory_wait_s,
        progress=progress,
    )


def _graphs(
    config: EngineConfig,
    model: Model,
    attention: PagedAttention,
    choice: KvChoice,
    plan: Plan,
    progress: Callable[[str], None],
) -> DecodeGraphs | None:
    """Graphs of decode steps over the pool as it begins; None on a CPU, where none are wanted, and where plain torch
    attends, which cannot be recorded."""
    if config.device != "cuda" or config.enforce_eager or not isinstance(attention, GraphAttention):
        return None
    from kvtide_worker.engine.cuda_recorder import CudaRecorder

    served, device = choice.served, torch.device("cuda")
    graphs = DecodeGraphs(
        model,
        CudaRecorder(device),
        device,
        _DTYPES[config.dtype],
        layout=served.layout,
        max_context_tokens=plan.max_context_tokens,
        most_sequences=max(kv.batch_limit for kv in (served, *choice.others.values())),
        most_bytes=GRAPHS_BYTES,
    )
    graphs.record(attention, layout=served.layout, batch_limit=served.batch_limit, progress=progress)
    return graphs


def _report(plan: Plan, choice: KvChoice, attention: PagedAttention, dtype: torch.dtype) -> LoadReport:
    return LoadReport(
        kernels=_kernels(attention),
        weight_precision=plan.weight_precision,
        dtype=str(dtype).removeprefix("torch."),
        quality=[
            KvQuality(
                check.precision.value,
                check.divergence if math.isfinite(check.divergence) else None,
                check.limit,
                check.passed,
            )
            for check in choice.checks
        ],
        fallback=choice.fallback,
    )


def _kernels(attention: PagedAttention) -> str:
    if isinstance(attention, TorchAttention):
        return "torch"
    return f"cpu-{attention.library.instruction_set}" if isinstance(attention, CpuAttention) else "triton"


def _check(plan: Plan, model: ModelConfig) -> None:
    """Refuse a plan that was made for something else than this model."""
    planned = plan.attention
    if model.kv_heads not in (planned.kv_heads, planned.native_kv_heads) or planned.query_heads != model.query_heads:
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
