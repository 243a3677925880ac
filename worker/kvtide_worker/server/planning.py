"""The plan that a worker serves by: the operator's from a file, or one made here from the memory there is."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from kvtide_sizing.devices.device import Device, DeviceKind
from kvtide_sizing.errors import InvalidPlan, InvalidWorkload, ModelNotFound, UnknownDevice
from kvtide_sizing.models.inspect import inspect_model
from kvtide_sizing.models.model_uri import ModelUri
from kvtide_sizing.plan import Plan, Policy, Workload, plan
from kvtide_worker.engine.cgroup import Cgroup
from kvtide_worker.server.settings import ServeSettings

_MEMORY_INFO = Path("/proc/meminfo")


def model_uri(text: str) -> ModelUri:
    """The URI of a model that is written as a URI, as a path, or as ORG/NAME on Hugging Face.

    Raises InvalidModelUri, and ModelNotFound for what is none of these.
    """
    if "://" in text:
        return ModelUri.parse(text)
    if Path(text).exists():
        # Links stay as they are: a hub's cache links model.gguf to a file without that ending.
        return ModelUri.parse(f"file://{os.path.abspath(text)}")
    if text.count("/") == 1 and not text.startswith((".", "/")):
        return ModelUri.parse(f"hf://{text}")
    raise ModelNotFound(
        f"'{text}' is neither a file or folder here, nor hf://ORG/NAME[@REVISION], pvc://CLAIM/PATH or file:///PATH"
    )


def model_name(uri: ModelUri) -> str:
    """What a model is called where nobody said: the last part of where it is."""
    last = str(uri.repo or uri.path).rstrip("/").rsplit("/", 1)[-1]
    return last.removesuffix(".gguf")


def plan_for(settings: ServeSettings, path: Path) -> Plan:
    """Read the plan's file, or make a plan for the model at `path` of what this worker runs.

    Raises SizingError: DoesNotFit, UnsupportedModel with the reason why a model is not served, and others.
    """
    if settings.plan_file is not None:
        return _read(settings.plan_file)
    kind = DeviceKind.GPU if settings.device == "cuda" else DeviceKind.CPU
    device = Device(settings.device, kind, settings.memory_bytes or _memory_bytes(settings.device))
    workload = Workload(max_context_tokens=settings.max_context_tokens, target_concurrency=settings.max_batch)
    precision = settings.precision or ("BF16" if settings.dtype == "float32" else "Auto")
    policy = Policy(
        precision=precision,
        block_size_tokens=settings.block_size_tokens,
        kv_heads=settings.kv_heads or "Native",
        weights=settings.weights or "BF16",
        served_only=True,
    )
    made = plan(inspect_model(path), device, workload, policy)
    if settings.max_batch is not None:
        most = settings.max_batch
        made = dataclasses.replace(
            made,
            batch_limit=min(made.batch_limit, most),
            alternatives=tuple(
                dataclasses.replace(other, batch_limit=min(other.batch_limit, most)) for other in made.alternatives
            ),
        )
    return made


def check_plan_options(settings: ServeSettings) -> None:
    """Raise InvalidWorkload where an option contradicts the plan's file, which has fixed it."""
    fixed = {
        "--memory": settings.memory_bytes,
        "--max-context": settings.max_context_tokens,
        "--precision": settings.precision,
        "--kv-heads": settings.kv_heads,
        "--weights": settings.weights,
        "--block-size": settings.block_size_tokens,
        "--max-batch": settings.max_batch,
    }
    given = [name for name, value in fixed.items() if value is not None]
    if settings.plan_file is not None and given:
        raise InvalidWorkload(f"{', '.join(given)} cannot go with --plan: the plan has fixed it; leave one of them out")


def _read(file: Path) -> Plan:
    try:
        return Plan.from_json(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise InvalidPlan(f"the plan {file} cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise InvalidPlan(f"the plan {file} is not JSON: {error}") from error


def _memory_bytes(device: str) -> int:
    """What a worker on the CPU may take where nobody said: the cgroup's limit, or half of what is available.

    Raises UnknownDevice for a GPU: only the engine process, which needs the plan first, can ask it.
    """
    if device != "cpu":
        raise UnknownDevice(f"--device {device} without --plan needs --memory, such as --memory 80Gi")
    limit = Cgroup().memory()
    if limit is not None:
        return limit.limit_bytes
    fields = dict(line.split(":", 1) for line in _MEMORY_INFO.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024 // 2
