"""What one pass sees, and what it is told beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.plan.nodes import NodeDevices
from kvtide_operator.plan.overheads import Overheads
from kvtide_operator.plan.references import References
from kvtide_operator.plan.room import Claim
from kvtide_operator.reconcile.pods import PodView

Live = Mapping[str, Any]


@dataclass(frozen=True)
class Sample:
    """A worker's answer and how old its numbers are, in seconds by the worker's own clock.

    late:  it has been asked since, and has yet to answer
    """

    state: WorkerState
    age_s: float
    late: bool = False


@dataclass(frozen=True)
class Answer:
    """What became of the last request of one token that a worker was asked.

    given:    None where that cannot be told, such as where clients need a key that the operator does not have
    message:  why none was given
    """

    given: bool | None
    message: str = ""


@dataclass(frozen=True)
class Observed:
    """The resource and everything that belongs to it, as read just now.

    children:   live objects by (kind, name), absent where there is none
    lost:       children, by (kind, name), that were there when the operator last looked and are not any more
    workers:    the worker pods
    inspector:  the inspect pod
    samples:    workers' accounts of themselves by pod name, absent where one gave none
    answers:    whether ready workers answer requests, by pod name; absent for one that was not asked yet
    references: what the Secrets and ConfigMaps hold that the spec names
    """

    resource: LLMDeployment
    children: Mapping[tuple[str, str], Live] = field(default_factory=dict)
    workers: tuple[PodView, ...] = ()
    inspector: PodView | None = None
    samples: Mapping[str, Sample] = field(default_factory=dict)
    answers: Mapping[str, Answer] = field(default_factory=dict)
    references: References = field(default_factory=dict)
    lost: frozenset[tuple[str, str]] = frozenset()

    def child(self, kind: str, name: str) -> Live | None:
        """A live child, None where there is none."""
        return self.children.get((kind, name))

    @property
    def ready(self) -> tuple[PodView, ...]:
        """Workers that serve and are to go on serving."""
        return tuple(pod for pod in self.workers if pod.ready and not pod.terminating)


@dataclass(frozen=True)
class Surroundings:
    """What the operator brings to a pass.

    nodes:       all of the cluster; None where they were not, or may not be, read
    claims:      what pods take of them; None where that was not, or may not be, read
    overheads:   what was measured of workers before; None where it could not be read
    fresh_token: a random token, for the Secret of a resource that has none yet
    resync_s:    how soon a resource with workers is looked at again
    """

    worker_image: str
    operator_namespace: str
    fresh_token: str
    resync_s: float = 2.0
    nodes: tuple[NodeDevices, ...] | None = None
    claims: tuple[Claim, ...] | None = None
    overheads: Overheads | None = None
