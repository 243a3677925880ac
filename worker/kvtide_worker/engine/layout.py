"""The layout that a plan was sized with, made anew from the model's files and checked against the model as it runs."""

from __future__ import annotations

from pathlib import Path

from kvtide_sizing.errors import InvalidPlan
from kvtide_sizing.formats import precision_named
from kvtide_sizing.memory.budget import STEP_TOKEN_BUDGET
from kvtide_sizing.memory.kv import KvLayout, kv_layout
from kvtide_sizing.models.inspect import inspect_model
from kvtide_sizing.plan.record import Plan
from kvtide_worker.models.config import ModelConfig


def served_layout(path: Path, plan: Plan, model: ModelConfig) -> KvLayout:
    """The layout of the model at `path` in the plan's precision and block size.

    Raises SizingError as `inspect_model`; InvalidPlan where the plan counted other blocks, where its pool does not hold
    one sequence of its context, which might never end, or where the two readers of the files disagree about a window.
    """
    layout = kv_layout(
        inspect_model(path), precision_named(plan.kv.precision), plan.kv.block_size_tokens, STEP_TOKEN_BUDGET
    )
    _check_blocks(plan, layout)
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
    return layout


def _check_blocks(plan: Plan, layout: KvLayout) -> None:
    planned, tables = plan.kv, len(layout.tables)
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
