"""How the worker pods stand against what is wanted: the facts that several conditions judge."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvtide_operator.api.conditions import Reason
from kvtide_operator.reconcile.observed import Answer
from kvtide_operator.reconcile.pods import PodView, Trouble


@dataclass(frozen=True)
class Workforce:
    """Numbers of pods. `current` are those of the present intent that are ready.

    total:     pods that exist and are not on their way out
    answering: those that are ready and were seen to answer, or of which that cannot be told
    silent:    why others that are ready do not answer; what is in neither has yet to be asked
    """

    desired: int
    total: int
    ready: int
    current: int
    terminating: int
    answering: int
    troubles: tuple[Trouble, ...]
    silent: tuple[Trouble, ...] = ()

    @property
    def complete(self) -> bool:
        return self.ready == self.current == self.desired == self.total


def count(workers: tuple[PodView, ...], answers: Mapping[str, Answer], desired: int, intent: str | None) -> Workforce:
    """Counts the pods of a resource that should have `desired` workers of this intent."""
    staying = [pod for pod in workers if not pod.terminating]
    ready = [pod for pod in staying if pod.ready]
    silent = tuple(_silent(ready, answers))
    return Workforce(
        desired=desired,
        total=len(staying),
        ready=len(ready),
        current=len([pod for pod in ready if pod.intent == intent]),
        terminating=len(workers) - len(staying),
        answering=len([pod for pod in ready if pod.name in answers]) - len(silent),
        troubles=tuple(pod.trouble for pod in staying if pod.trouble is not None and not pod.ready) + silent,
        silent=silent,
    )


def _silent(ready: list[PodView], answers: Mapping[str, Answer]) -> Iterator[Trouble]:
    for pod in ready:
        answer = answers.get(pod.name)
        if answer is not None and answer.given is False:
            yield Trouble(Reason.PROBE_FAILED, f"{pod.name}: {answer.message}")


def deployment_trouble(deployment: Mapping[str, Any] | None) -> str | None:
    """Why the Deployment cannot even create pods, such as a quota; None where it can."""
    failure = replica_failure(deployment)
    return str(failure.get("message") or failure.get("reason")) if failure is not None else None


def replica_failure(deployment: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The Deployment's own condition that says that it is refused pods; None where it is not."""
    conditions = ((deployment or {}).get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == "ReplicaFailure" and one["status"] == "True"), None)
