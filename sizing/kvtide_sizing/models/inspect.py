"""A model's shape from its files, reading headers only."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from kvtide_sizing.errors import InvalidModelUri, ModelDownloadFailed, ModelNotFound
from kvtide_sizing.models import catalog
from kvtide_sizing.models.config_json import CONFIG_FILE, shape_of_folder
from kvtide_sizing.models.gguf_shape import shape_of_gguf
from kvtide_sizing.models.model_uri import ModelUri
from kvtide_sizing.shape import ModelShape


def inspect_model(path: str | Path) -> ModelShape:
    """The shape of a safetensors folder or a .gguf file, named after it.

    Raises ModelNotFound where there is neither, ModelDownloadFailed where it cannot be read, InvalidModel and
    UnsupportedModel for what is in it.
    """
    path = Path(path)
    try:
        if path.is_dir() and (path / CONFIG_FILE).is_file():
            return catalog.measured_alike(shape_of_folder(path, path.resolve().name))
        if path.is_file() and path.suffix == ".gguf":
            return catalog.measured_alike(shape_of_gguf(path, path.stem))
        raise ModelNotFound(_what_is_there(path))
    except OSError as error:
        raise ModelDownloadFailed(f"{path} cannot be read: {error.strerror}") from error


def resolve_model(text: str) -> ModelShape:
    """The shape of a built-in name, of a hub repository that is built in, of a folder or a .gguf file.

    Raises as `inspect_model`, and ModelNotFound with the names that come near for what is none of these.
    """
    if text.lower() in catalog.names():
        return catalog.builtin(text)
    if text and Path(text).exists():
        return inspect_model(text)
    known = _known_repository(text)
    if known is not None:
        return known
    if text.lower().endswith(".gguf"):
        raise ModelNotFound(_what_is_there(Path(text)))
    close = get_close_matches(text.lower().rsplit("/", 1)[-1], catalog.names(), n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise ModelNotFound(
        f"'{text}' is neither a file or folder here nor a built-in model; {hint}`kvtide models` lists those that are "
        f"built in: {', '.join(catalog.names()[:3])}, …"
    )


def _known_repository(text: str) -> ModelShape | None:
    try:
        return catalog.builtin_for(ModelUri.parse(text if "://" in text else f"hf://{text}"))
    except InvalidModelUri:
        return None


def _what_is_there(path: Path) -> str:
    if path.is_dir():
        files = sorted(child.name for child in path.iterdir())
        listed = ", ".join(files[:10]) or "nothing"
        return f"no model in the folder {path}: it has no {CONFIG_FILE}, but {listed}; a .gguf file is named itself"
    if path.exists():
        return f"no model at {path}: it is neither a folder with {CONFIG_FILE} nor a .gguf file"
    parent = next(parent for parent in path.absolute().parents if parent.is_dir())
    listed = ", ".join(sorted(child.name for child in parent.iterdir())[:10]) or "nothing"
    return f"no model at {path}: there is no such file or folder; {parent} has {listed}"
