"""What this pass teaches about overheads: the measurements of settled workers, as the next plans may use them."""

from collections.abc import Iterator

from kvtide_operator.autoscale.fleet import STALE_AFTER_S
from kvtide_operator.plan.overheads import SETTLED_AFTER_S, Overhead, Sighting, learn
from kvtide_operator.plan.record import Record
from kvtide_operator.reconcile.observed import Observed, Surroundings
from kvtide_operator.reconcile.pods import PodView, timestamp


def learn_overheads(observed: Observed, record: Record, surroundings: Surroundings, now: float) -> dict[str, Overhead]:
    """The entries that this pass changes, by key. None of them where what is remembered could not be read."""
    if surroundings.overheads is None:
        return {}
    return learn(surroundings.overheads, _sightings(observed, record, surroundings.worker_image, now), timestamp(now))


def _sightings(observed: Observed, record: Record, worker_image: str, now: float) -> Iterator[Sighting]:
    for pod in observed.ready:
        planned, sample = record.planned.get(pod.intent or ""), observed.samples.get(pod.name)
        if planned is None or sample is None or sample.age_s > STALE_AFTER_S or not _settled(pod, now):
            continue
        # An image of the user's own is other software. It could also tell every namespace's plans what it liked.
        if planned.image != worker_image:
            continue
        state, measured = sample.state, sample.state.memory.measured
        if measured.other_bytes and measured.other_bytes <= (measured.device_bytes or 0):
            yield Sighting(
                model=planned.plan["model"],
                device=planned.plan["device"],
                overhead_bytes=measured.other_bytes,
                version=state.version,
                started_at=state.started_at,
            )


def _settled(pod: PodView, now: float) -> bool:
    return pod.ready_since is not None and now - pod.ready_since >= SETTLED_AFTER_S
