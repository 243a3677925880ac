"""What workers really run, beside what their plan says: nothing falls back in silence."""

from collections.abc import Iterable, Iterator

from kvtide_operator.api.conditions import Reason
from kvtide_operator.api.plan import Plan
from kvtide_operator.api.spec import DeviceKind
from kvtide_operator.api.status import WorkerStatus
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.reconcile.observed import Observed
from kvtide_operator.reconcile.pods import Trouble

# What computes without kernels of its own, for want of a compiler or a driver, is several times slower.
_SLOW_KERNELS = ("torch", "reference")
_DEVICES = {DeviceKind.CPU: "cpu", DeviceKind.GPU: "cuda"}


def described(workers: Iterable[WorkerStatus], observed: Observed) -> tuple[WorkerStatus, ...]:
    """The workers of the status with what each runs, as far as it says so, and whether it answers."""
    found = []
    for worker in workers:
        answer, sample = observed.answers.get(worker.name), observed.samples.get(worker.name)
        update: dict[str, object] = {"answers": answer.given if answer else None}
        if sample is not None:
            state = sample.state
            update |= {
                "device": state.device or None,
                "kernels": (state.engine and state.engine.kernels) or None,
                "precision": state.kv.precision,
                "weight_precision": (state.engine and state.engine.weight_precision) or None,
                "block_size_tokens": state.kv.block_size_tokens,
                "num_blocks": state.kv.num_blocks,
            }
        found.append(worker.model_copy(update=update))
    return tuple(found)


def run_otherwise(observed: Observed, intent: str, plan: Plan, asked_precision: str | None) -> Iterator[Trouble]:
    """Why the ready workers of this plan are not what it says, worker by worker.

    asked_precision: what the operator itself had their pools re-encoded to, None where it did not
    """
    for pod in sorted(observed.ready, key=lambda pod: pod.name):
        sample = observed.samples.get(pod.name)
        if sample is None or pod.intent != intent:
            continue
        state = sample.state
        if state.kv.fallback:
            yield Trouble(Reason.PRECISION_FALLBACK, f"{pod.name}: {state.kv.fallback}")
        told = ", ".join(_differences(observed.resource.spec.device.kind, plan, state, asked_precision))
        if told:
            yield Trouble(Reason.NOT_AS_PLANNED, f"{pod.name}: {told}")


def _differences(kind: DeviceKind, plan: Plan, state: WorkerState, asked_precision: str | None) -> Iterator[str]:
    """Each difference with both sides. What a worker does not say is not judged."""
    kv, planned, engine = state.kv, plan.kv, state.engine
    if state.device and not state.device.startswith(_DEVICES[kind]):
        yield f"computes on {state.device}, planned for {kind.value}"
    if engine and engine.kernels in _SLOW_KERNELS:
        yield f"attention by {engine.kernels}, which is several times slower than this device's own kernels"
    # While the lever is at work, workers follow it one by one.
    judged = kv.precision is not None and asked_precision is None and not kv.fallback
    if judged and kv.precision != planned.precision:
        yield f"KV cache in {kv.precision}, planned {planned.precision}"
    if kv.block_size_tokens is not None and kv.block_size_tokens != planned.block_size_tokens:
        yield f"blocks of {kv.block_size_tokens} tokens, planned {planned.block_size_tokens}"
    # Re-encoded, a pool of the same bytes has more blocks, or fewer.
    same_format = kv.precision in (None, planned.precision)
    if kv.num_blocks is not None and same_format and kv.num_blocks != planned.num_blocks:
        yield f"{kv.num_blocks} KV blocks, planned {planned.num_blocks}"
    wanted = plan.weight_precision
    if engine and engine.weight_precision and wanted and engine.weight_precision != wanted:
        yield f"weights in {engine.weight_precision}, planned {wanted}"
