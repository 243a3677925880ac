"""What can be wrong with a model, a device or a wish. `reason` is the word that a condition or an exit carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class SizingError(Exception):
    """Base of all: the message says what was asked, what there is and what would work."""

    reason: ClassVar[str] = "SizingError"


class InvalidModelUri(SizingError):
    """A model URI that cannot be read."""

    reason = "InvalidModelUri"


class InvalidQuantity(SizingError):
    """An amount of memory that cannot be read."""

    reason = "InvalidQuantity"


class InvalidWorkload(SizingError):
    """A wish that contradicts itself or the model: a context beyond the model's, zero sequences."""

    reason = "InvalidWorkload"


class InvalidPlan(SizingError):
    """A plan's JSON that is not one."""

    reason = "InvalidPlan"


class UnknownDevice(SizingError):
    """A device name that is not built in and has no memory beside it."""

    reason = "UnknownDevice"


class ModelNotFound(SizingError):
    """No model at that place, or no built-in model of that name."""

    reason = "ModelNotFound"


class ModelDownloadFailed(SizingError):
    """The model may be there, but could not be read: no access, no network."""

    reason = "ModelDownloadFailed"


class InvalidModel(SizingError):
    """A model's files contradict themselves or are cut short."""

    reason = "InvalidModel"


class UnsupportedModel(SizingError):
    """A kind of model or attention that is not served."""

    reason = "UnsupportedModel"


class UnsupportedPrecision(SizingError):
    """A KV precision that is not served."""

    reason = "UnsupportedPrecision"


class UnsupportedPolicy(SizingError):
    """A choice that is not served: a KV head count that is not the model's, more than one device."""

    reason = "UnsupportedPolicy"


class DoesNotFit(SizingError):
    """The device does not hold what was asked. `changes` are the smallest that would fit, each one enough."""

    reason = "DoesNotFit"

    def __init__(self, message: str, *, needed_bytes: int, device_bytes: int, changes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.device_bytes = device_bytes
        self.changes = tuple(changes)
