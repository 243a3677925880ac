"""The condition MemoryWithinPlan: what each worker measures against what its plan predicts, part by part."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvtide_operator.api.conditions import ConditionType, Reason
from kvtide_operator.api.plan import PlanMemory
from kvtide_operator.api.status import MeasuredMemory
from kvtide_operator.reconcile.conditions import Verdict
from kvtide_sizing.quantity import format_bytes

# Weights and pool are sums of tensors: they are what was planned, or the plan was wrong.
_EXACT_PERCENT = 1
# More threads, or a processor without bfloat16, take a little more for a step than was counted. That comes out of the
# reserve, which is there for it (docs/sizing.md); the total, which the reserve is no part of, is judged to the byte.
_ACTIVATIONS_PERCENT = 10
_ACTIVATIONS_LEAST_BYTES = 64 << 20


@dataclass(frozen=True)
class _Part:
    """One part of a worker's memory, in bytes.

    tolerance:  what it may be off by
    exact:      less than planned is as wrong as more
    """

    name: str
    planned: int
    measured: int
    tolerance: int
    exact: bool = False

    @property
    def above(self) -> bool:
        return self.measured > self.planned + self.tolerance

    @property
    def below(self) -> bool:
        return self.exact and self.measured < self.planned - self.tolerance

    def __str__(self) -> str:
        return f"{self.name} {format_bytes(self.measured)} of {format_bytes(self.planned)}"

    def deviation(self) -> str:
        """Both numbers and by how much they differ, in bytes and in percent of what was planned."""
        difference = abs(self.measured - self.planned)
        percent = f" ({difference / self.planned:.1%})" if self.planned else ""
        side = "above" if self.above else "below"
        return (
            f"{self.name} {format_bytes(self.measured)} is {format_bytes(difference)}{percent} {side}"
            f" the planned {format_bytes(self.planned)}"
        )


def used_bytes(measured: MeasuredMemory) -> int | None:
    """What a worker's device holds, None where it does not say."""
    if not measured.device_bytes or measured.free_bytes is None:
        return None
    return measured.device_bytes - measured.free_bytes


def memory_within_plan(plan: PlanMemory | None, workers: Mapping[str, MeasuredMemory]) -> Verdict:
    """Whether every worker takes what was planned, its reserve left alone, and every known part of it too.

    workers: what the ready workers of this plan measure, by name; what one does not know is not judged.
    """
    kind = ConditionType.MEMORY_WITHIN_PLAN
    judged = {name: list(_parts(plan, workers[name])) for name in sorted(workers)} if plan else {}
    known = {name: parts for name, parts in judged.items() if parts}
    if not known:
        return Verdict(kind, "Unknown", Reason.NOT_MEASURED, "no worker of this plan has reported its memory")
    off = {name: [part for part in parts if part.above or part.below] for name, parts in known.items()}
    told = [f"{name}: {', '.join(part.deviation() for part in parts)}" for name, parts in off.items() if parts]
    if told:
        above = any(part.above for parts in off.values() for part in parts)
        return Verdict(kind, "False", Reason.ABOVE_PLAN if above else Reason.BELOW_PLAN, "; ".join(told))
    fullest = max(known, key=lambda name: used_bytes(workers[name]) or 0)
    return Verdict(kind, "True", Reason.WITHIN_PLAN, f"{fullest}: {', '.join(map(str, known[fullest]))}")


def _parts(plan: PlanMemory, measured: MeasuredMemory) -> Iterator[_Part]:
    """What a worker measured of what was planned. No part that is there takes nothing: 0 is not measured either."""
    total, activations = plan.device_bytes - plan.reserve_bytes, plan.activations_bytes
    leeway = max(activations * _ACTIVATIONS_PERCENT // 100, _ACTIVATIONS_LEAST_BYTES)
    if used := used_bytes(measured):
        yield _Part("total", total, used, 0)
    for name, planned, found in (
        ("weights", plan.weights_bytes, measured.weights_bytes),
        ("KV pool", plan.kv_pool_bytes, measured.kv_pool_bytes),
    ):
        if found:
            yield _Part(name, planned, found, planned * _EXACT_PERCENT // 100, exact=True)
    if measured.activations_bytes:
        yield _Part("activations", activations, measured.activations_bytes, leeway)
