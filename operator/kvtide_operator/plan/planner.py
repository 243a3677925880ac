"""From a spec and a model's shape to the plan, through `kvtide_sizing`."""

from kvtide_operator.api.spec import LLMDeploymentSpec
from kvtide_sizing.devices.device import Device, DeviceKind
from kvtide_sizing.plan import Plan, Policy, Profile, Workload, plan
from kvtide_sizing.quantity import parse_quantity
from kvtide_sizing.shape import ModelShape


def _device(spec: LLMDeploymentSpec) -> Device:
    kind = DeviceKind(spec.device.kind.value)
    return Device(kind.lower(), kind, parse_quantity(spec.device.memory), spec.device.count)


def _workload(spec: LLMDeploymentSpec) -> Workload:
    return Workload(
        profile=Profile(spec.workload.profile.value),
        max_context_tokens=spec.workload.max_context_tokens,
        mean_prompt_tokens=spec.workload.mean_prompt_tokens,
        mean_output_tokens=spec.workload.mean_output_tokens,
        target_concurrency=spec.workload.target_concurrency,
    )


def make_plan(spec: LLMDeploymentSpec, shape: ModelShape) -> Plan:
    """The plan of one worker. Raises a SizingError, whose `reason` and message say what is wrong."""
    policy = Policy(
        precision=spec.kv_cache.precision.value,
        block_size_tokens=spec.kv_cache.block_size_tokens,
        kv_heads=spec.attention.kv_heads,
    )
    return plan(shape, _device(spec), _workload(spec), policy)


def mean_output_tokens(spec: LLMDeploymentSpec) -> int:
    """Tokens of an expected answer: the workload's own mean, or its profile's."""
    if spec.workload.mean_output_tokens is not None:
        return spec.workload.mean_output_tokens
    # With prompts of one token, the rest of a sequence is its output.
    return Workload(Profile(spec.workload.profile.value), mean_prompt_tokens=1).mean_sequence_tokens - 1
