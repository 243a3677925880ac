"""How positions are rotated, from a Hugging Face folder's config.json."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtide_sizing.errors import UnsupportedModel
from kvtide_worker.models.rope import LinearScaling, Llama3Scaling, LongScaling, NoScaling, Rope, RopeScaling

_ORIGINAL_CONTEXT = 4096  # of Phi 3, where a config does not say it


@dataclass(frozen=True)
class RopeReader:
    """Reads the ropes of one configuration. Raises UnsupportedModel for what the worker does not run.

    config:        all of config.json
    scalings:      those that the family knows
    rotates_part:  whether it may rotate a part of each head
    """

    folder: Path
    config: dict[str, Any]
    head_dim: int
    scalings: tuple[str, ...]
    rotates_part: bool = False

    def only(self, default_theta: float = 10_000.0) -> Rope:
        """The one rope of all layers. Newer folders say all about it in rope_parameters, older ones in two places."""
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        return self.read({"rope_theta": self.config.get("rope_theta", default_theta), **rope})

    def read(self, rope: dict[str, Any]) -> Rope:
        """A rope as the newer folders write it."""
        part = rope.get("partial_rotary_factor") or self.config.get("partial_rotary_factor") or 1
        if part != 1 and not self.rotates_part:
            raise UnsupportedModel(f"{self.folder} rotates a part of each head; this worker rotates all of it")
        return Rope(rope["rope_theta"], self._scaling(rope), int(self.head_dim * part))

    def _scaling(self, rope: dict[str, Any]) -> RopeScaling:
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind not in self.scalings:
            raise UnsupportedModel(
                f"{self.folder} scales RoPE by '{kind}'; this worker knows {', '.join(self.scalings)} here"
            )
        try:
            return self._of_kind(kind, rope)
        except KeyError as missing:
            raise UnsupportedModel(f"{self.folder} scales RoPE by '{kind}', but does not say its {missing}") from None

    def _of_kind(self, kind: str, rope: dict[str, Any]) -> RopeScaling:
        match kind:
            case "linear":
                return LinearScaling(rope["factor"])
            case "llama3":
                return Llama3Scaling(
                    factor=rope["factor"],
                    low_freq_factor=rope["low_freq_factor"],
                    high_freq_factor=rope["high_freq_factor"],
                    original_max_position_embeddings=rope["original_max_position_embeddings"],
                )
            case "longrope" | "su":  # as older files of Phi 3 call it
                return self._long(rope)
            case _:
                return NoScaling()

    def _long(self, rope: dict[str, Any]) -> LongScaling:
        original = (
            self.config.get("original_max_position_embeddings")
            or rope.get("original_max_position_embeddings")
            or _ORIGINAL_CONTEXT
        )
        factor = rope.get("factor") or self.config["max_position_embeddings"] / original
        attention_factor = rope.get("attention_factor")
        if attention_factor is None:
            attention_factor = math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original))
        return LongScaling(tuple(rope["short_factor"]), tuple(rope["long_factor"]), original, attention_factor)
