"""From a model URI to files on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from kvtide_sizing.errors import ModelDownloadFailed, ModelNotFound
from kvtide_sizing.models.model_uri import ModelUri

CACHE_VARIABLE = "KVTIDE_MODEL_CACHE"

# What the worker reads: weights, configuration, tokenizer.
_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model"]


def fetch(uri: ModelUri) -> Path:
    """The model's file or folder; hf:// is downloaded to $KVTIDE_MODEL_CACHE, or Hugging Face's own cache, once.

    Raises ModelNotFound where there is nothing at the URI, ModelDownloadFailed where it could not be read.
    """
    local = uri.local_path()
    if local is not None:
        if not Path(local).exists():
            raise ModelNotFound(f"{uri}: there is nothing at {local}")
        return Path(local)
    try:
        folder = snapshot_download(
            str(uri.repo),
            revision=uri.revision,
            allow_patterns=_FILES,
            cache_dir=os.environ.get(CACHE_VARIABLE),
        )
    except GatedRepoError as error:
        raise ModelDownloadFailed(f"{uri}: accept its licence, then set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(f"{uri}: Hugging Face has no such model, or HF_TOKEN may not see it") from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(f"{uri}: the model has no revision '{uri.revision}'") from error
    except Exception as error:  # the network's many ways to fail
        raise ModelDownloadFailed(f"{uri}: the download failed: {error}") from error
    return Path(folder)
