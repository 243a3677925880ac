"""A model's shape from the hub: its config.json, and the index of its shards. HF_TOKEN opens private repositories."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from kvtide_sizing.errors import ModelDownloadFailed, ModelNotFound, SizingError
from kvtide_sizing.models.config_json import CONFIG_FILE, json_object, shape_of_config
from kvtide_sizing.models.model_uri import ModelUri
from kvtide_sizing.models.safetensors_header import INDEX_FILE, total_size
from kvtide_sizing.shape import ModelShape


def shape_from_hub(uri: ModelUri) -> ModelShape:
    """Download a repository's configuration and read its shape; its bytes too, where it has an index of shards.

    Raises ModelNotFound where the hub says that there is no such repository, revision or configuration;
    ModelDownloadFailed where it refuses or cannot be reached; InvalidModel and UnsupportedModel for what it says.
    Needs the package huggingface_hub, of the worker's extra.
    """
    shape = shape_of_config(_download(uri, CONFIG_FILE), str(uri.repo))
    try:
        index = _download(uri, INDEX_FILE)
    except ModelNotFound:
        return shape  # one file, which is only read where it lies
    return dataclasses.replace(shape, stored_bytes=total_size(index))


def _download(uri: ModelUri, file: str) -> dict[str, Any]:
    from huggingface_hub import hf_hub_download  # not at the top: only this command needs it, and it is slow

    assert uri.repo is not None
    try:
        path = hf_hub_download(uri.repo, file, revision=uri.revision)
    except Exception as error:
        raise _failure(uri, error) from error
    return json_object(Path(path).read_bytes(), str(uri))


def _failure(uri: ModelUri, error: Exception) -> SizingError:
    """What a failed download means: the hub's answer, if it gave one, else that it could not be asked."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 404:
        return ModelNotFound(
            f"the hub has no {CONFIG_FILE} of {uri}; check the repository's name and the revision: "
            f"a repository with GGUF files only is not served from the hub"
        )
    if status in (401, 403):
        return ModelDownloadFailed(
            f"the hub refuses {uri} with status {status}: it is not there, or needs a token that may read it; "
            f"name a Secret with one in model.authSecretRef (HF_TOKEN outside Kubernetes)"
        )
    answer = f"the hub answered with status {status}" if status else "the hub cannot be reached"
    return ModelDownloadFailed(f"{uri} could not be downloaded: {answer} ({type(error).__name__})")
