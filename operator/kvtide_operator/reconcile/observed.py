"""What one pass sees, and what it is told beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.autoscale.worker_state import WorkerState
from kvtide_operator.plan.nodes import NodeDevices
from kvtide_operator.plan.overheads import Overheads
from kvtide_operator.reconcile.pods import PodView

Live = Mapping[str, Any]


@dataclass(frozen=True)
class Sample:
    """A worker's answer and how old its numbers were when it came, in seconds by the worker's own clock."""

    state: WorkerState
    age_s: float


@dataclass(frozen=True)
class Observed:
    """The resource and everything that belongs to it, as read just now.

    children:  live objects by (kind, name), absent where there is none
    workers:   the worker pods
    inspector: the inspect pod
    samples:   answers of workers by pod name, absent where one did not answer
    """

    resource: LLMDeployment
    children: Mapping[tuple[str, str], Live] = field(default_factory=dict)
    workers: tuple[PodView, ...] = ()
    inspector: PodView | None = None
    samples: Mapping[str, Sample] = field(default_factory=dict)

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
    overheads:   what was measured of workers before; None where it could not be read
    fresh_token: a random token, for the Secret of a resource that has none yet
    resync_s:    how soon a resource with workers is looked at again
    """

    worker_image: str
    operator_namespace: str
    fresh_token: str
    resync_s: float = 2.0
    nodes: tuple[NodeDevices, ...] | None = None
    overheads: Overheads | None = None
