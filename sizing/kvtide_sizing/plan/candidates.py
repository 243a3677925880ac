"""Which KV precisions and KV heads may be chosen, the ones that are tried first before the others."""

from __future__ import annotations

from collections.abc import Iterator

from kvtide_sizing import served
from kvtide_sizing.devices.device import Device
from kvtide_sizing.errors import UnsupportedPolicy, UnsupportedPrecision
from kvtide_sizing.formats import Precision, precision_named
from kvtide_sizing.memory.weights import WeightFormat
from kvtide_sizing.plan.workload import Policy, Profile
from kvtide_sizing.shape import ModelShape

# What each may cost in perplexity, in percent, best first: bounds that the kernels are held to on small models, which
# lose more than large ones.
LOSS_BOUND_PERCENT = {
    Precision.BF16: 0.0,
    Precision.INT8: 0.3,
    Precision.FP8: 1.0,
    Precision.MIXED: 1.0,
    Precision.K8V4: 1.0,
    Precision.INT4: 3.0,
}

# As measured for served models, rounded up: what weights in so many bits may cost beside BF16, in percent.
WEIGHTS_LOSS_BOUND_PERCENT = {WeightFormat.BF16: 0.0, WeightFormat.INT8: 1.0}


def precisions(policy: Policy, device: Device) -> tuple[Precision, ...]:
    """The one that is asked for, or all that Auto may choose, best quality first.

    Raises UnsupportedPrecision for one that the device, or under served_only this release's worker, does not have.
    """
    if policy.precision == "Auto":
        return tuple(
            precision
            for precision, loss in LOSS_BOUND_PERCENT.items()
            # INT8 takes two bytes more a head than FP8, and has a scale for each token.
            if precision is not Precision.FP8
            and loss <= policy.max_quality_loss_percent
            and (precision in served.PRECISIONS or not policy.served_only)
        )
    asked = precision_named(policy.precision)
    if policy.served_only and asked not in served.PRECISIONS:
        known = ", ".join(precision.value for precision in Precision if precision in served.PRECISIONS)
        raise UnsupportedPrecision(f"kvCache.precision {asked} is not served by this release; write {known} or Auto")
    if asked is Precision.FP8 and not device.has_fp8:
        raise UnsupportedPrecision(
            f"FP8 KV needs a device that computes in FP8, and {device.name} does not; write INT8"
        )
    return (asked,)


def kv_heads(shape: ModelShape, policy: Policy) -> tuple[int, ...]:
    """The number that is asked for, or the native one and then the variants, most heads first.

    Pooled heads are never chosen: without training they cost more quality than any bound. A number asks for them, and
    the worker compares them with all heads before it serves. Raises UnsupportedPolicy for a variant, under served_only.
    """
    native = shape.kv_heads
    if policy.kv_heads == "Native" or (policy.kv_heads == "Auto" and policy.served_only):
        return (native,)
    if policy.served_only and policy.kv_heads != native and policy.kv_heads in policy.variants:
        raise UnsupportedPolicy(
            f"attention.kvHeads {policy.kv_heads} is a variant, whose weights this release does not choose: "
            f"{shape.name} has {native} KV heads; write the variant's uri as model.uri, and Native"
        )
    if isinstance(policy.kv_heads, int):
        return (policy.kv_heads,)
    return (native, *sorted((heads for heads in set(policy.variants) if heads < native), reverse=True))


# Models without grouped queries are shown with as many KV heads as most grouped ones have.
_USUAL_KV_HEADS = 8


def fewer_kv_heads(shape: ModelShape, policy: Policy) -> int | None:
    """The number to compare with: the one asked for, the smallest variant, or eight; None where it is not less."""
    asked = policy.kv_heads if isinstance(policy.kv_heads, int) else min(policy.variants, default=_USUAL_KV_HEADS)
    return asked if asked < shape.kv_heads else None


def candidates(
    heads: tuple[int, ...], precisions: tuple[Precision, ...], profile: Profile
) -> Iterator[tuple[int, Precision]]:
    """Pairs of KV heads and precision in the order in which they are tried.

    Documents first takes fewer heads, which a trained variant has without rounding anything; the others first take
    smaller numbers, which need no other weights.
    """
    if profile is Profile.DOCUMENTS:
        yield from ((number, precision) for precision in precisions for number in heads)
    else:
        yield from ((number, precision) for number in heads for precision in precisions)
