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

    Raises SizingError as `inspect_model`; InvalidPlan where the two readers of the files disagree about a window.
    """
    layout = kv_layout(
        inspect_model(path), precision_named(plan.kv.precision), plan.kv.block_size_tokens, STEP_TOKEN_BUDGET
    )
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
