"""The plan of this pass: the recorded one, or a new one from the catalogue or from what the inspect pod read."""

import json
from dataclasses import dataclass, replace
from typing import Any

from kvtide_operator.api import names
from kvtide_operator.api.conditions import ConditionType, Reason
from kvtide_operator.api.resource import LLMDeployment
from kvtide_operator.api.spec import DeviceKind
from kvtide_operator.children.inspect_pod import inspect_name, inspect_pod
from kvtide_operator.children.manifest import Manifest, owned_by
from kvtide_operator.children.worker_template import plan_name, worker_template
from kvtide_operator.plan.device import device_warnings, needs_nodes, resolve_device, too_small
from kvtide_operator.plan.intent import intent_hash, model_hash, recorded_intent
from kvtide_operator.plan.overheads import planned_overhead
from kvtide_operator.plan.planner import make_plan
from kvtide_operator.plan.record import Basis, Planned, Record
from kvtide_operator.plan.references import check, references_of
from kvtide_operator.plan.summary import summary
from kvtide_operator.reconcile.observed import Observed, Surroundings
from kvtide_operator.reconcile.pods import Ending
from kvtide_sizing.errors import DoesNotFit, InvalidModel, SizingError
from kvtide_sizing.models.catalog import builtin_for, measured_alike
from kvtide_sizing.models.model_uri import ModelUri
from kvtide_sizing.shape import ModelShape

# A model may be put into place later, so a failed look is repeated.
LOOK_AGAIN_S = 60.0

_REASONS = {
    "InvalidModelUri": Reason.INVALID_SPEC,
    "InvalidQuantity": Reason.INVALID_SPEC,
    "InvalidWorkload": Reason.INVALID_SPEC,
    "InvalidDevice": Reason.INVALID_SPEC,
    "NoDevice": Reason.NO_DEVICE,
    "DeviceMemoryUnknown": Reason.DEVICE_MEMORY_UNKNOWN,
    "UnsupportedPrecision": Reason.NOT_SUPPORTED,
    "UnsupportedPolicy": Reason.NOT_SUPPORTED,
    "UnsupportedModel": Reason.UNSUPPORTED_MODEL,
    "InvalidModel": Reason.INVALID_MODEL,
    "ModelNotFound": Reason.MODEL_NOT_FOUND,
    "ModelDownloadFailed": Reason.MODEL_DOWNLOAD_FAILED,
    "DoesNotFit": Reason.DOES_NOT_FIT,
    "ReferenceMissing": Reason.REFERENCE_MISSING,
}
# What an inspect pod may find wrong.
_MODEL_REASONS = (
    Reason.INVALID_MODEL,
    Reason.MODEL_DOWNLOAD_FAILED,
    Reason.MODEL_NOT_FOUND,
    Reason.UNSUPPORTED_MODEL,
)


@dataclass(frozen=True)
class Planning:
    """Where planning stands.

    planned:  the plan and template for the present intent, None where there is none (yet)
    reason:   FITS with a plan; INSPECTING_MODEL while the model is looked at; else what is wrong
    """

    intent: str
    record: Record
    planned: Planned | None
    reason: Reason
    message: str
    create: tuple[Manifest, ...] = ()
    delete_pods: tuple[str, ...] = ()


def wants_nodes(observed: Observed) -> bool:
    """Whether a plan has to be made for a device that only the nodes tell of."""
    return needs_nodes(observed.resource.spec) and not _is_planned(observed)


def renders_for_devices(observed: Observed) -> bool:
    """Whether a pod template has to be made whose pods may have to keep off nodes with smaller devices."""
    return observed.resource.spec.device.kind is DeviceKind.GPU and not _is_planned(observed)


def plan_workers(observed: Observed, surroundings: Surroundings, now: float) -> Planning:
    """Finds or makes the plan. Starts no worker by itself: without a plan there is nothing to start."""
    record = recorded(observed)
    intent, basis = present_intent(observed, record)
    base = Planning(intent, record, None, Reason.INSPECTING_MODEL, "")

    try:
        if intent in record.planned:
            check(observed.references)
            planned = replace(record.planned[intent], basis=basis)
            known = replace(base, record=record.with_planned(intent, planned))
            return replace(_with(known, planned), delete_pods=_leftover(observed))
        looked, shape = _look(base, observed, surroundings, now)
        if shape is None:
            check(observed.references)  # the pod that looks mounts them too
            return looked
    except SizingError as error:
        return _wrong(base, error)
    try:
        # What cannot fit is said first: no Secret that is made would change it.
        fresh = _fresh(looked, basis, observed, surroundings, shape)
        if fresh.planned is not None:
            check(observed.references)
        return fresh
    except SizingError as error:
        return _wrong(looked, error)


def recorded(observed: Observed) -> Record:
    """The plans and templates that are kept for the resource."""
    config_map = observed.child("ConfigMap", plan_name(observed.resource))
    ours = config_map is not None and owned_by(config_map, observed.resource)
    return Record.from_config_map(config_map if ours else None)


def present_intent(observed: Observed, record: Record | None = None) -> tuple[str, Basis | None]:
    """The intent of the resource as it stands, and what it is made from.

    record: what is kept for the resource; read only where it matters, unless it is given
    """
    resource = observed.resource
    if not references_of(resource.spec):
        return intent_hash(resource), None
    live = observed.child("Deployment", resource.name)
    labels = live["spec"]["template"]["metadata"].get("labels") or {} if live is not None else {}
    running = labels.get(names.INTENT_LABEL, "")
    return recorded_intent(resource, observed.references, record or recorded(observed), running)


def _is_planned(observed: Observed) -> bool:
    record = recorded(observed)
    intent, _ = present_intent(observed, record)
    return intent in record.planned


def _wrong(base: Planning, error: SizingError) -> Planning:
    return replace(base, reason=_REASONS.get(error.reason, Reason.INVALID_SPEC), message=str(error))


def _with(base: Planning, planned: Planned) -> Planning:
    return replace(base, planned=planned, reason=Reason.FITS, message=summary(planned.plan))


def _fresh(
    base: Planning, basis: Basis | None, observed: Observed, surroundings: Surroundings, shape: ModelShape
) -> Planning:
    resource = observed.resource
    spec = resource.spec
    image = spec.worker.image or surroundings.worker_image
    device = resolve_device(spec, surroundings.nodes)
    overhead = planned_overhead(surroundings.overheads or {}, shape.name, device, image)
    device = replace(device, measured_overhead_bytes=overhead)
    warnings = device_warnings(spec, surroundings.nodes)
    try:
        plan = make_plan(spec, shape, device, warnings)
    except DoesNotFit as error:
        # A larger device among the nodes may be the smallest change of all.
        return replace(_wrong(base, error), message="; ".join((str(error), *warnings)))
    avoid = too_small(spec, surroundings.nodes)
    if avoid is not None:
        kept_off = f"workers keep off nodes with {avoid[0]} {', '.join(avoid[1])}: their devices have less memory"
        plan = replace(plan, warnings=(*plan.warnings, kept_off))
    template = worker_template(resource, base.intent, image, plan.memory.weights_bytes, avoid)
    planned = Planned(plan.to_json(), template, basis)
    return _with(replace(base, record=base.record.with_planned(base.intent, planned)), planned)


def _look(
    base: Planning, observed: Observed, surroundings: Surroundings, now: float
) -> tuple[Planning, ModelShape | None]:
    """The model's shape, or None with what to do or say until there is one."""
    resource, pod = observed.resource, observed.inspector
    model = model_hash(resource.spec)
    shape = builtin_for(ModelUri.parse(resource.spec.model.uri)) or _kept_shape(base.record, model)
    if shape is not None:
        return replace(base, delete_pods=_leftover(observed)), shape
    looking = _looking(base, resource)
    if pod is None:
        image = resource.spec.worker.image or surroundings.worker_image
        return replace(looking, create=(inspect_pod(resource, model, image),)), None
    if pod.terminating:
        return looking, None
    if pod.model != model:
        return replace(looking, delete_pods=(pod.name,)), None
    if pod.ending is None:
        return looking, None
    return _after(base, pod.ending, model, resource, now)


def _kept_shape(record: Record, model: str) -> ModelShape | None:
    """What was read of the model before. A shape that an older version wrote in another form is read again."""
    try:
        return _shape(record.shapes[model]) if model in record.shapes else None
    except InvalidModel:
        return None


def _shape(content: dict[str, Any]) -> ModelShape:
    """What an inspect pod wrote, with what was measured of such a model. Raises InvalidModel."""
    return measured_alike(ModelShape.from_json(content))


def _looking(base: Planning, resource: LLMDeployment) -> Planning:
    """While a model is looked at again, what was wrong with it at the last look stays said."""
    for condition in resource.status.conditions or []:
        known = condition.type is ConditionType.PLANNED and condition.observed_generation == resource.generation
        if known and condition.status == "False" and condition.reason in _MODEL_REASONS:
            return replace(base, reason=Reason(condition.reason), message=condition.message)
    return replace(base, message=f"reading the headers of {resource.spec.model.uri}")


def _leftover(observed: Observed) -> tuple[str, ...]:
    """The inspect pod, once what it read is kept."""
    pod = observed.inspector
    return (pod.name,) if pod is not None and not pod.terminating else ()


def _after(
    base: Planning, ending: Ending, model: str, resource: LLMDeployment, now: float
) -> tuple[Planning, ModelShape | None]:
    """What an inspect pod that has ended means. Its pod stays until its answer is kept, or it is time to look again."""
    name = inspect_name(resource)
    if ending.exit_code == 0:
        content = _read_shape(ending.message)
        return replace(base, record=base.record.with_shape(model, content)), _shape(content)
    again = now - ending.finished_at >= LOOK_AGAIN_S
    reason, said = _failure(ending, resource.spec.model.uri)
    waiting = replace(base, reason=reason, message=f"{said}; looking again every {LOOK_AGAIN_S:.0f} s")
    return replace(waiting, delete_pods=(name,) if again else ()), None


def _read_shape(message: str) -> dict[str, Any]:
    content = _json_object(message)
    if content is None:
        raise InvalidModel(f"the inspect pod did not answer with a shape but with '{message[:200]}'")
    return content


def _failure(ending: Ending, uri: str) -> tuple[Reason, str]:
    """What `kvtide inspect` says is wrong; where it could not even say so, the pod's own last words."""
    error = (_json_object(ending.message) or {}).get("error")
    if isinstance(error, dict):
        return _REASONS.get(str(error.get("reason")), Reason.INVALID_MODEL), str(error.get("message"))
    words = f"the inspect pod ended with status {ending.exit_code}"
    reason = Reason.MODEL_DOWNLOAD_FAILED if uri.startswith("hf://") else Reason.INVALID_MODEL
    return reason, f"{words}: {ending.message}" if ending.message else words


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        return None
    return content if isinstance(content, dict) else None
