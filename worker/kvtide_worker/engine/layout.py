"""How the pool is cut: made anew from the plan and the model's files, and checked against the model as it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from kvtide_sizing import served
from kvtide_sizing.errors import InvalidPlan, UnsupportedPrecision
from kvtide_sizing.formats import (
    BF16,
    FLOAT32,
    INT4,
    INT8,
    LayerFormat,
    Precision,
    VectorFormat,
    layer_formats,
    precision_named,
    stored_bytes_per_token,
)
from kvtide_sizing.memory.budget import STEP_TOKEN_BUDGET
from kvtide_sizing.memory.kv import KvLayout, kv_layout
from kvtide_sizing.memory.sharding import with_kv_heads
from kvtide_sizing.models.inspect import inspect_model
from kvtide_sizing.plan.record import KvPlan, Plan
from kvtide_sizing.shape import ModelShape
from kvtide_worker.models.config import ModelConfig

_FORMATS = {stored.name: stored for stored in (BF16, INT8, INT4)}


@dataclass(frozen=True)
class ServedKv:
    """How the pool is cut, and what each layer stores.

    num_blocks:   in the layout's sense, of all tables together
    batch_limit:  sequences that a step runs at most
    """

    precision: Precision
    shape: ModelShape
    layout: KvLayout
    formats: tuple[LayerFormat, ...]
    num_blocks: int
    batch_limit: int

    @property
    def pool_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.num_blocks * self.layout.block_bytes


def in_planned_bytes(planned: ServedKv, plan: Plan, precision: Precision) -> ServedKv | None:
    """The planned pool's bytes in another precision: as many blocks as fit, and as many sequences as the plan says of
    that choice. None where not one sequence of the plan's context fits: it might never end.
    """
    formats = layer_formats(planned.shape, precision)
    layout = kv_layout(planned.shape, formats, planned.layout.block_size, STEP_TOKEN_BUDGET)
    blocks_of_all = planned.pool_bytes // (layout.block_bytes * len(layout.tables))
    num_blocks = blocks_of_all * len(layout.tables)
    if layout.required_blocks(1, plan.max_context_tokens) > num_blocks:
        return None
    return replace(
        planned,
        precision=precision,
        layout=layout,
        formats=formats,
        num_blocks=num_blocks,
        batch_limit=_batch_limit(plan, precision, blocks_of_all),
    )


def _batch_limit(plan: Plan, precision: Precision, blocks_of_all: int) -> int:
    """The plan's for that choice; where it says nothing of it, fewer in proportion to the blocks, but not more."""
    said = [other.batch_limit for other in plan.alternatives if other.choice == f"precision {precision}"]
    if blocks_of_all < plan.kv.num_blocks:
        cut = said[0] if said else plan.batch_limit * blocks_of_all // plan.kv.num_blocks
        return max(1, min(plan.batch_limit, cut))
    return min(STEP_TOKEN_BUDGET, max([plan.batch_limit, *said]))


def served_kv(path: Path, plan: Plan, model: ModelConfig, *, exact: bool = False) -> ServedKv:
    """What the plan says of the model at `path`; model is what its files say to the forward pass.

    exact: in float32 in place of BF16, for tests. The pool then has as many blocks, of twice the bytes.

    Raises SizingError as `inspect_model`; UnsupportedPrecision for formats that are not served; InvalidPlan where the
    plan counted other blocks, where its pool does not hold one sequence of its context, which might never end, or where
    the two readers of the files disagree about a window.
    """
    shape = with_kv_heads(inspect_model(path), plan.attention.kv_heads)
    formats = _formats(plan.kv, shape)
    layout = kv_layout(shape, formats, plan.kv.block_size_tokens, STEP_TOKEN_BUDGET)
    _check_blocks(plan, layout, stored_bytes_per_token(shape, formats))
    _check_windows(path, layout, model)
    if exact:
        if set(formats) != {LayerFormat(BF16, BF16)}:
            raise UnsupportedPrecision(
                f"float32 is for plans of BF16, but this one stores KV as {plan.kv.precision}; leave the dtype out"
            )
        formats = (LayerFormat(FLOAT32, FLOAT32),) * shape.num_layers
        layout = kv_layout(shape, formats, plan.kv.block_size_tokens, STEP_TOKEN_BUDGET)
    num_blocks = plan.kv.num_blocks * len(layout.tables)
    return ServedKv(Precision(plan.kv.precision), shape, layout, formats, num_blocks, plan.batch_limit)


def _formats(kv: KvPlan, shape: ModelShape) -> tuple[LayerFormat, ...]:
    """The layers' formats as the plan lists them; of a plan that lists none, its precision's."""
    precision = precision_named(kv.precision)
    if precision not in served.PRECISIONS:
        known = ", ".join(other for other in Precision if other in served.PRECISIONS)
        raise UnsupportedPrecision(f"the plan stores KV as {precision}; this worker stores {known}")
    usual = layer_formats(shape, precision)
    if not kv.layers:
        return usual
    formats: list[LayerFormat] = []
    for run in kv.layers:
        first, last = _run_ends(run.layers)
        if first != len(formats) or last < first:
            raise InvalidPlan(
                f"the plan's layers {run.layers} stand where layer {len(formats)} is next; runs must follow one another"
            )
        formats += [LayerFormat(_format(run.key), _format(run.value))] * (last - first + 1)
    if len(formats) != shape.num_layers:
        raise InvalidPlan(f"the plan has {len(formats)} layers, but the model {shape.num_layers}; plan for this model")
    if precision is not Precision.MIXED and tuple(formats) != usual:
        raise InvalidPlan(
            f"the plan's precision is {precision}, but not all of its layers are stored so; Mixed is what allows others"
        )
    return tuple(formats)


def _run_ends(layers: str) -> tuple[int, int]:
    """ "3-7", or "3" for one."""
    first, _, last = layers.partition("-")
    try:
        return int(first), int(last or first)
    except ValueError:
        raise InvalidPlan(f"the plan's layers '{layers}' are not written as 3-7, nor as 3") from None


def _format(name: str) -> VectorFormat:
    if name not in _FORMATS:
        raise UnsupportedPrecision(f"the plan stores vectors as {name}; this worker stores {', '.join(_FORMATS)}")
    return _FORMATS[name]


def _check_blocks(plan: Plan, layout: KvLayout, bytes_per_token: int) -> None:
    planned, tables = plan.kv, len(layout.tables)
    if planned.bytes_per_token != bytes_per_token:
        raise InvalidPlan(
            f"the plan is for {planned.bytes_per_token} bytes of KV a token, but the model takes {bytes_per_token}; "
            f"make the plan for this model"
        )
    if (planned.block_tables, planned.bytes_per_block) != (tables, tables * layout.block_bytes):
        raise InvalidPlan(
            f"the plan has {planned.block_tables} block tables and blocks of {planned.bytes_per_block} bytes, but the "
            f"model takes {tables} and {tables * layout.block_bytes}; make the plan for this model"
        )
    needed = layout.required_blocks(1, plan.max_context_tokens)
    if needed > planned.num_blocks * tables:
        raise InvalidPlan(
            f"one sequence of {plan.max_context_tokens} tokens needs {-(-needed // tables)} blocks of "
            f"{layout.block_size}, but the plan's pool has {planned.num_blocks}; lower maxContextTokens, or plan for "
            f"more memory"
        )


def _check_windows(path: Path, layout: KvLayout, model: ModelConfig) -> None:
    for table in layout.tables:
        for layer in table.layers:
            window = model.windows[layer]
            # A window as long as the context is none.
            if window is not None and window >= model.max_position_embeddings:
                window = None
            if window != table.window:
                raise InvalidPlan(
                    f"layer {layer} of {path.name} was planned with a window of {table.window} tokens, but the model "
                    f"runs with {window}"
                )
