"""What of a choice this release's worker does not run, one sentence for each."""

from __future__ import annotations

from collections.abc import Iterator

from kvtide_sizing import served
from kvtide_sizing.plan.case import Case
from kvtide_sizing.shape import ModelShape


def unserved(case: Case, native: ModelShape) -> Iterator[str]:
    """Nothing where the worker runs all of it; native is the model as it is trained."""
    if native.unserved is not None:
        yield native.unserved
    if case.precision not in served.PRECISIONS:
        yield f"{case.precision} KV is planned, and not served by this release"
    if case.shape.kv_heads != native.kv_heads and case.shape.pooled_from is None:
        yield f"a variant of {case.shape.kv_heads} KV heads is planned, and served by its own uri alone"
    if case.weights not in served.WEIGHT_FORMATS:
        yield f"weights in {case.weights} are planned, and not served by this release"
    if case.device.count > served.MAX_DEVICES:
        yield f"{case.device.count} devices are planned, and not served by this release: a worker runs on one"
