"""What one pass wants done, in the order in which it is done."""

from dataclasses import dataclass, field

from kvtide_operator.api.status import ScalingDecision, Status
from kvtide_operator.children.manifest import Manifest
from kvtide_operator.plan.overheads import Overheads


@dataclass(frozen=True)
class LimitPush:
    """A new batch limit for one worker."""

    pod: str
    ip: str
    batch_limit: int


@dataclass(frozen=True)
class PrecisionPush:
    """Another precision for one worker's pool."""

    pod: str
    ip: str
    precision: str


@dataclass(frozen=True)
class Event:
    """A Kubernetes event on the resource. Those of one reason about the same thing are one object that counts."""

    type: str
    reason: str
    message: str
    about: str = ""


@dataclass(frozen=True)
class Actions:
    """Deletion costs come before the Deployment, if possible some passes, so that the right pod goes; the status last.

    deletion_costs: by pod name
    decision:       a change of replicas that this pass decided, for the metrics
    learned:        measured overheads that are to be remembered, by their key
    """

    status: Status
    requeue_s: float
    deletion_costs: dict[str, int] = field(default_factory=dict)
    apply: tuple[Manifest, ...] = ()
    create: tuple[Manifest, ...] = ()
    delete_pods: tuple[str, ...] = ()
    limits: tuple[LimitPush, ...] = ()
    precisions: tuple[PrecisionPush, ...] = ()
    events: tuple[Event, ...] = ()
    decision: ScalingDecision | None = None
    learned: Overheads = field(default_factory=dict)
