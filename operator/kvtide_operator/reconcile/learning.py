"""What this pass teaches about overheads: the measurements of settled workers, as the next plans may use them."""

from collections.abc import Iterator

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.status import MeasuredMemory
from kvtide_operator.autoscale.fleet import STALE_AFTER_S
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.plan.overheads import SETTLED_AFTER_S, Kill, Overhead, Sighting, learn
from kvtide_operator.plan.record import Planned, Record
from kvtide_operator.reconcile.observed import Observed, Surroundings
from kvtide_operator.reconcile.planning import present_intent
from kvtide_operator.reconcile.pods import PodView, timestamp

# A device that measures otherwise is shared with somebody, or another than was planned for.
_DEVICE_PERCENT = 5
# The name of a GPU of which only the memory is known: many cards are called so.
_ANY_GPU = "gpu"
# More tokens than the operator's own requests come to (edge/prober.py): some while a worker starts, then two a minute.
_PROBES_AT_LEAST = 32
_PROBE_EVERY_S = 20.0


def learn_overheads(observed: Observed, record: Record, surroundings: Surroundings, now: float) -> dict[str, Overhead]:
    """The entries that this pass changes, by key. None of them where what is remembered could not be read."""
    if surroundings.overheads is None:
        return {}
    seen = () if _altered(observed.resource) else _sightings(observed, record, surroundings.worker_image, now)
    kills = _kills(observed, record, surroundings.worker_image)
    return learn(surroundings.overheads, seen, kills, timestamp(now))


def _altered(resource: LLMDeployment) -> bool:
    """Whether the user puts something of their own into the worker, which may take memory of its own."""
    worker = resource.spec.worker
    return bool(worker.env or worker.volumes or worker.volume_mounts)


def _sightings(observed: Observed, record: Record, worker_image: str, now: float) -> Iterator[Sighting]:
    # Pods of an earlier intent may carry what the present spec no longer says.
    intent, _ = present_intent(observed, record)
    planned = record.planned.get(intent)
    # An image of the user's own is other software. It could also tell every namespace's plans what it liked.
    if planned is None or planned.image != worker_image or planned.plan["device"] == _ANY_GPU:
        return
    for pod in observed.ready:
        sample = observed.samples.get(pod.name)
        if pod.intent != intent or sample is None or sample.age_s > STALE_AFTER_S or not _settled(pod, now):
            continue
        taken = _overhead(sample.state, planned)
        if taken:
            yield Sighting(
                model=planned.plan["model"],
                device=planned.plan["device"],
                overhead_bytes=taken,
                image=worker_image,
                version=sample.state.version,
                created_at=pod.created_at,
            )


def _kills(observed: Observed, record: Record, worker_image: str) -> Iterator[Kill]:
    for pod in observed.workers:
        planned = record.planned.get(pod.intent or "")
        if pod.oom_killed_at is not None and planned is not None and planned.image == worker_image:
            yield Kill(planned.plan["model"], planned.plan["device"], worker_image, pod.oom_killed_at)


def _settled(pod: PodView, now: float) -> bool:
    return pod.ready_since is not None and now - pod.ready_since >= SETTLED_AFTER_S


def _overhead(state: WorkerState, planned: Planned) -> int | None:
    """What the worker took at most beside weights, pool and activations; None where that cannot be relied on."""
    # One that has computed nothing but the operator's own requests has not taken yet what requests make it take.
    asked = _PROBES_AT_LEAST + (state.sampled_at - state.started_at) / _PROBE_EVERY_S
    if min(state.counters.prompt_tokens, state.counters.generation_tokens) <= asked:
        return None
    measured, planned_bytes = state.memory.measured, planned.plan["memory"]["deviceBytes"]
    device_bytes = measured.device_bytes or 0
    if abs(device_bytes - planned_bytes) * 100 > planned_bytes * _DEVICE_PERCENT:
        return None
    if not measured.other_bytes:
        return None
    taken = max(measured.other_bytes, _highest(measured))
    return taken if taken <= device_bytes else None


def _highest(measured: MeasuredMemory) -> int:
    """The same by the worker's highest reading, 0 where it does not say."""
    parts = (measured.weights_bytes, measured.kv_pool_bytes, measured.activations_bytes)
    known = [part for part in parts if part is not None]
    if measured.peak_bytes is None or len(known) < len(parts):
        return 0
    return measured.peak_bytes - sum(known)
