"""Which precision the pool begins in and which it may become, chosen while the model is there and the pool is not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvtide_kernels.backends import check_served
from kvtide_kernels.key_basis import KeyBasis
from kvtide_kernels.reencode import check_reencodable
from kvtide_sizing.errors import UnsupportedPrecision
from kvtide_sizing.formats import FLOAT32, Precision, layer_formats
from kvtide_sizing.memory.key_bases import calibration_bytes, key_bases_bytes
from kvtide_sizing.plan.record import Plan
from kvtide_worker.engine.heap import give_back_heap
from kvtide_worker.engine.key_bases import fit_key_bases
from kvtide_worker.engine.kv_quality import (
    QualityCheck,
    better_than,
    fallback_sentence,
    limit_nats,
    precision_to_serve,
)
from kvtide_worker.engine.layout import ServedKv, in_planned_bytes
from kvtide_worker.engine.messages import CalibrationTokens
from kvtide_worker.engine.quality_check import divergences
from kvtide_worker.quality.subject import Subject

# What a live pool may become, if it loses bytes by it.
_SMALLER = (Precision.INT8, Precision.K8V4, Precision.INT4)

# Of the plan's reserve, one part in so many may go to key bases that a plan of BF16 has not counted.
_BASES_PARTS = 4

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class KvChoice:
    """served: what the pool begins in; others: what it may become besides, the largest first; all of them passed.

    bases: of the layers that need one in any of these
    """

    served: ServedKv
    others: Mapping[Precision, ServedKv]
    checks: Sequence[QualityCheck]
    bases: Mapping[int, KeyBasis]
    fallback: str | None


def choose_kv(
    planned: ServedKv,
    plan: Plan,
    subject: Subject,
    calibration: Callable[[], CalibrationTokens],
    progress: Callable[[str], None],
    *,
    reencodable: bool = True,
) -> KvChoice:
    """Check the planned precision, and those that the pool may become, against BF16; where the planned one loses too
    much, the next better one that holds a sequence in the same bytes takes its place.

    subject:      its bases are fitted here
    reencodable:  whether the pool may become anything at all
    Raises UnsupportedPrecision where none is left: the plan's bytes hold no sequence of anything better.
    """
    allowed = plan.kv.max_quality_loss_percent
    candidates = _candidates(planned, plan, subject)
    smaller = _smaller(planned, plan, candidates) if reencodable else []
    first = [precision for precision in (planned.precision, *smaller) if precision is not Precision.BF16]
    if not first:
        return KvChoice(planned, {}, (), {}, None)
    progress("fitting the key bases")
    text = calibration()
    # Of every layer: what is fallen back to may have bases where the planned formats have none.
    int8 = layer_formats(planned.shape, Precision.INT8)
    subject = replace(subject, bases=fit_key_bases(subject.model, int8, text.fitted, subject.device))
    give_back_heap()
    progress("checking the KV formats")
    checks: dict[Precision, QualityCheck] = {}

    def check(precisions: Iterable[Precision]) -> None:
        formats = {precision: candidates[precision].formats for precision in precisions}
        found = divergences(subject, formats, text, memory_bytes=planned.pool_bytes)
        for precision, divergence in found.items():
            checks[precision] = QualityCheck(precision, divergence, limit_nats(precision, allowed))
            logger.log(
                logging.INFO if checks[precision].passed else logging.WARNING,
                "KV in %s: its predictions are %.4f nats from those of BF16, of %.4f that are allowed",
                *(precision, divergence, checks[precision].limit),
            )

    check(first)
    chosen = precision_to_serve(planned.precision, checks, candidates)
    while chosen is not None and chosen is not Precision.BF16 and chosen not in checks:
        check([chosen])
        chosen = precision_to_serve(planned.precision, checks, candidates)
    give_back_heap()
    fallback = None
    if chosen is not planned.precision:
        fallback = fallback_sentence(planned.precision, chosen, checks, allowed)
        logger.warning("%s", fallback)
    if chosen is None:
        raise UnsupportedPrecision(
            f"{fallback}; its {planned.pool_bytes} bytes hold no sequence of {plan.max_context_tokens} tokens in a "
            f"better precision; lower maxContextTokens, plan for more memory, or allow more maxQualityLossPercent"
        )
    served = candidates[chosen]
    passed = [
        precision
        for precision in candidates
        if precision is not chosen
        and (precision is Precision.BF16 or (precision in checks and checks[precision].passed))
    ]
    others = {precision: candidates[precision] for precision in sorted(passed, key=lambda one: _size(candidates[one]))}
    return KvChoice(
        served, others, tuple(checks.values()), _needed(subject.bases, (served, *others.values())), fallback
    )


def _size(kv: ServedKv) -> int:
    """Less for more bytes a block."""
    return -kv.layout.block_bytes * len(kv.layout.tables)


def _candidates(planned: ServedKv, plan: Plan, subject: Subject) -> dict[Precision, ServedKv]:
    """The planned precision, better ones and smaller ones, if the device's kernels serve them and a sequence fits."""
    found = {planned.precision: planned}
    if FLOAT32 in {side for each in planned.formats for side in (each.key, each.value)}:
        return found
    for precision in (*better_than(planned.precision), *_SMALLER):
        other = in_planned_bytes(planned, plan, precision)
        if other is not None and _is_served(other, subject):
            found.setdefault(precision, other)
    return found


def _smaller(planned: ServedKv, plan: Plan, candidates: Mapping[Precision, ServedKv]) -> list[Precision]:
    """What the planned pool may become where it lies. A plan of BF16 has no key bases: there must be room for them."""
    if planned.precision is Precision.BF16:
        taken = key_bases_bytes(planned.shape, layer_formats(planned.shape, Precision.INT8))
        memory = plan.memory
        loading = memory.device_bytes - memory.weights_bytes - memory.overhead_bytes  # the pool is not there yet
        if taken > memory.reserve_bytes // _BASES_PARTS or taken + calibration_bytes(planned.shape) > loading:
            logger.info("key bases take %d bytes, for which there is no room: KV stays in BF16", taken)
            return []
    return [precision for precision, other in candidates.items() if becomes(planned, other)]


def becomes(old: ServedKv, new: ServedKv) -> bool:
    """Whether a pool can become another one where it lies, with blocks to spare."""
    try:
        check_reencodable(old.layout, old.formats, new.layout, new.formats)
    except ValueError:
        return False
    return new.num_blocks > old.num_blocks


def _is_served(kv: ServedKv, subject: Subject) -> bool:
    config = subject.model.config
    try:
        check_served(
            subject.device,
            kv.formats,
            head_dim=config.head_dim,
            query_heads=config.query_heads,
            kv_heads=config.kv_heads,
            block_size=kv.layout.block_size,
        )
    except ValueError:
        return False
    return True


def _needed(bases: Mapping[int, KeyBasis], pools: Iterable[ServedKv]) -> dict[int, KeyBasis]:
    with_basis = {layer for kv in pools for layer, stored in enumerate(kv.formats) if stored.has_key_basis}
    return {layer: basis for layer, basis in bases.items() if layer in with_basis}
