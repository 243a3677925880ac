"""How positions are rotated, from a Hugging Face folder's config.json."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtide_sizing.errors import UnsupportedModel
from kvtide_worker.models.rope import LinearScaling, Llama3Scaling, LongScaling, NoScaling, Rope, RopeScaling

# Older files of Phi 3 have other names for it.
_LONG_NAMES = ("longrope", "su", "yarn")
_PHI3_ORIGINAL_CONTEXT = 4096  # where a config does not say it


@dataclass(frozen=True)
class RopeReader:
    """Reads the ropes of one configuration. Raises UnsupportedModel for what the worker does not run.

    config:         all of config.json
    is_phi3:        whether part of a head may be rotated, and contexts stretched by LongRoPE
    """

    folder: Path
    config: dict[str, Any]
    head_dim: int
    is_phi3: bool = False

    def only(self, default_theta: float = 10_000.0) -> Rope:
        """The one rope of all layers. Newer folders say all about it in rope_parameters, older ones in two places."""
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        return self.read({"rope_theta": self.config.get("rope_theta", default_theta), **rope})

    def read(self, rope: dict[str, Any]) -> Rope:
        """A rope as the newer folders write it."""
        part = rope.get("partial_rotary_factor") or self.config.get("partial_rotary_factor") or 1
        if part != 1 and not self.is_phi3:
            raise UnsupportedModel(f"{self.folder} rotates a part of each head; this worker rotates all of it")
        return Rope(rope["rope_theta"], self._scaling(rope), int(self.head_dim * part))

    def _scaling(self, rope: dict[str, Any]) -> RopeScaling:
        kind = rope.get("rope_type") or rope.get("type") or "default"
        known: dict[str, Callable[[dict[str, Any]], RopeScaling]] = {"default": lambda _: NoScaling()}
        if self.is_phi3:
            known |= dict.fromkeys(_LONG_NAMES, self._long)
        else:
            known |= {"linear": lambda rope: LinearScaling(rope["factor"]), "llama3": _llama3}
        if kind not in known:
            raise UnsupportedModel(f"{self.folder} scales RoPE by '{kind}'; this worker knows {', '.join(known)}")
        return known[kind](rope)

    def _long(self, rope: dict[str, Any]) -> LongScaling:
        original = (
            self.config.get("original_max_position_embeddings")
            or rope.get("original_max_position_embeddings")
            or _PHI3_ORIGINAL_CONTEXT
        )
        factor = rope.get("factor") or self.config["max_position_embeddings"] / original
        attention_factor = rope.get("attention_factor")
        if attention_factor is None:
            attention_factor = math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original))
        return LongScaling(tuple(rope["short_factor"]), tuple(rope["long_factor"]), original, attention_factor)


def _llama3(rope: dict[str, Any]) -> Llama3Scaling:
    return Llama3Scaling(
        factor=rope["factor"],
        low_freq_factor=rope["low_freq_factor"],
        high_freq_factor=rope["high_freq_factor"],
        original_max_position_embeddings=rope["original_max_position_embeddings"],
    )
