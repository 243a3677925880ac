"""From a spec, a model's shape and a device to the plan, through `kvtide_sizing`."""

import functools
from collections.abc import Iterable
from dataclasses import replace

from kvtide_operator.api.spec import LLMDeploymentSpec
from kvtide_sizing.devices.device import Device
from kvtide_sizing.plan import Plan, Policy, Profile, Workload, plan
from kvtide_sizing.shape import ModelShape

# A plan takes ten milliseconds, is the same for the same question, and cannot be changed: many ask alike, and admission
# asks before the pass does.
_planned = functools.lru_cache(maxsize=256)(plan)


def workload_of(spec: LLMDeploymentSpec) -> Workload:
    """The sequences that the spec expects. Raises InvalidWorkload."""
    return Workload(
        profile=Profile(spec.workload.profile.value),
        max_context_tokens=spec.workload.max_context_tokens,
        mean_prompt_tokens=spec.workload.mean_prompt_tokens,
        mean_output_tokens=spec.workload.mean_output_tokens,
        target_concurrency=spec.workload.target_concurrency,
    )


def make_plan(spec: LLMDeploymentSpec, shape: ModelShape, device: Device, warnings: Iterable[str] = ()) -> Plan:
    """The plan of one worker, of what this release's workers run; `warnings` are those of how the device was found.

    Raises a SizingError, whose `reason` and message say what is wrong.
    """
    policy = Policy(
        precision=spec.kv_cache.precision.value,
        block_size_tokens=spec.kv_cache.block_size_tokens,
        kv_heads=spec.attention.kv_heads,
        variants=tuple(variant.kv_heads for variant in spec.attention.variants or ()),
        max_quality_loss_percent=spec.kv_cache.max_quality_loss_percent,
        weights=spec.model.weight_precision.value,
        served_only=True,
        prefix_caching=spec.kv_cache.prefix_caching is not False,
    )
    made = _planned(shape, device, workload_of(spec), policy)
    return replace(made, warnings=(*warnings, *made.warnings))
