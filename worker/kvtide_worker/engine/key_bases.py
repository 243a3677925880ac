"""The bases that keys are stored in, fitted to the model as it is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from kvtide_kernels.calibration import Calibration
from kvtide_kernels.key_basis import KeyBasis
from kvtide_sizing.formats import LayerFormat
from kvtide_worker.models.model import Model


def fit_key_bases(
    model: Model, formats: Sequence[LayerFormat], token_ids: Sequence[int], device: torch.device
) -> dict[int, KeyBasis]:
    """Of every layer that stores its keys in one: the model reads a text's tokens once, in one step without a pool.

    token_ids: as much of them as the model takes is read, at least some hundred for directions to be seen
    """
    read = token_ids[: model.config.max_position_embeddings]
    calibration = Calibration(
        formats,
        windows=model.config.windows,
        scale=model.config.attention_scale,
        centred=True,  # no family that is run has soft-capping or sinks
    )
    positions = torch.arange(len(read), device=device)
    # No row of logits is wanted: what is fitted are the layers.
    model.forward(torch.tensor(read, dtype=torch.int64, device=device), positions, calibration, positions[:0])
    return calibration.bases


def bases_bytes(bases: Mapping[int, KeyBasis]) -> int:
    """What they take of the device."""
    return sum(tensor.nbytes for basis in bases.values() for tensor in vars(basis).values())
