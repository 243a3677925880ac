"""Every kernel as it is launched, for a compiler: arguments' types, constants, warps and stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvtide_kernels.codec import data_bytes
from kvtide_kernels.triton.arena import rotation
from kvtide_kernels.triton.decode import decode_kernel, reduce_kernel
from kvtide_kernels.triton.moves import copy_kernel, reencode_kernel
from kvtide_kernels.triton.prefill import prefill_kernel
from kvtide_kernels.triton.recent import keep_recent_kernel
from kvtide_kernels.triton.shapes import decode_launch, padded, prefill_launch
from kvtide_kernels.triton.write import write_kernel
from kvtide_sizing.formats import BF16, INT8, RECENT_PARTS, RECENT_TOKENS, LayerFormat

KV_HEADS = 8

# What models have beside attention itself, as they have it: Mistral and Gemma 3; Gemma 2; gpt-oss.
EXTRAS = {
    "": {"WINDOWED": False, "CAPPED": False, "SINKS": False},
    "-windowed": {"WINDOWED": True, "CAPPED": False, "SINKS": False},
    "-capped": {"WINDOWED": True, "CAPPED": True, "SINKS": False},
    "-sinks": {"WINDOWED": True, "CAPPED": False, "SINKS": True},
}

# What an argument points to; the rest are int32, or float32 for scores.
_POINTERS = {
    "*u8": ("key_arena", "value_arena", "old", "new", "storage"),
    "*i32": ("tables", "recent_tables", "items", "parts", "slots", "recent_slots", "pairs"),
    "*fp32": ("part_values", "part_tops", "part_totals"),
}
_TYPES = {name: kind for kind, names in _POINTERS.items() for name in names} | {"scale": "fp32", "cap": "fp32"}
_INTEGERS = ("tokens", "window", "first_block")


@dataclass(frozen=True)
class Specimen:
    """One kernel with its constants. tile, data_bytes, tile_bytes: tokens of a KV tile, and what it takes of them."""

    name: str
    kernel: Any
    constants: dict[str, Any]
    warps: int
    stages: int = 3
    tile: int = 0
    data_bytes: int = 0
    tile_bytes: int = 0
    types: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        types = {}
        for name in self.kernel.arg_names:
            if name not in self.constants:
                integer = name in _INTEGERS or name.endswith("_stride")
                types[name] = "i32" if integer else _TYPES.get(name, "*bf16")
        object.__setattr__(self, "types", types)

    @property
    def aligned(self) -> list[str]:
        """Arguments that are multiples of 16 (bytes, for pointers) in every launch."""
        return [name for name, kind in self.types.items() if kind[0] == "*" or name.endswith("_stride")]


def attention_specimens(
    stored: LayerFormat, head_dim: int, group: int, block: int, target: str, extra: str = ""
) -> list[Specimen]:
    """Decode, split and not, and prefill; extra: one of EXTRAS, which their names end in."""
    key, value = stored.key, stored.value
    rows = block // RECENT_PARTS
    shared = _head(head_dim, block) | _sides(stored, head_dim, block) | _kept(stored, block)
    shared |= {"RECENT_BLOCKS": -(-RECENT_TOKENS // rows), "GROUP": group}
    shared |= {"MATH": "plain" if target.startswith("gfx") else "ptx"}
    decode, prefill = decode_launch(stored, head_dim), prefill_launch(group, stored, head_dim, hopper=target == "sm_90")
    # A decode's item says where it begins, whatever the window is.
    scored = {name: EXTRAS[extra][name] for name in ("CAPPED", "SINKS")}
    found = [
        Specimen(
            f"decode{'-split' if split else ''}{extra}",
            decode_kernel,
            shared | scored | {"M": decode.rows, "TILE": decode.tile, "SPLIT": split},
            decode.warps,
            decode.stages,
            decode.tile,
            data_bytes=decode.tile * (data_bytes(key, head_dim) + data_bytes(value, head_dim)),
            tile_bytes=decode.tile * (key.vector_bytes(head_dim) + value.vector_bytes(head_dim)),
        )
        for split in (True, False)
    ]
    size = {"HEADS": prefill.heads, "M": prefill.launch.rows, "TILE": prefill.launch.tile}
    return [
        *found,
        Specimen(
            f"prefill{extra}",
            prefill_kernel,
            shared | EXTRAS[extra] | size,
            prefill.launch.warps,
            prefill.launch.stages,
        ),
    ]


def specimens(stored: LayerFormat, head_dim: int, group: int, block: int, target: str) -> list[Specimen]:
    """All kernels for a layer of such heads; `reencode` where a format is what BF16 or INT8 can become."""
    key, value = stored.key, stored.value
    head, sides, kept = _head(head_dim, block), _sides(stored, head_dim, block), _kept(stored, block)
    found = attention_specimens(stored, head_dim, group, block, target)
    turned = {"QUERY_HEADS": group * KV_HEADS, "ROWS": 1, "ROPE": True, "TURN_QUERY": True, "TURN_KEY": True}
    found.append(
        Specimen("write", write_kernel, head | sides | kept | turned | {"KEY_RUN": rotation(key, head_dim)}, 1)
    )
    merged = {
        "HEADS": group * KV_HEADS,
        "DIM": head_dim,
        "WIDTH": padded(head_dim),
        "PARTS": 16,
        "VALUE_RUN": rotation(value, head_dim),
    }
    found.append(Specimen("reduce", reduce_kernel, merged | {"SINKS": False}, 4))
    if stored.keeps_recent:
        strides = {name: sides[name] for name in ("KEY_HEAD_STRIDE", "VALUE_HEAD_STRIDE")}
        constants = {name: head[name] for name in ("KV_HEADS", "DIM", "WIDTH")} | strides | kept
        constants |= {"RECENT_BLOCKS": -(-RECENT_TOKENS // kept["RECENT_ROWS"])}
        found.append(Specimen("keep-recent", keep_recent_kernel, constants, 4))
    words = KV_HEADS * sides["KEY_HEAD_STRIDE"] // 4
    found.append(Specimen("copy", copy_kernel, {"BLOCK_WORDS": words, "STEP": 1024}, 4))
    if value != BF16:
        old = BF16 if value == INT8 else INT8
        moved = {"OLD_BITS": old.bits, "OLD_HEAD_BYTES": block * old.vector_bytes(head_dim), "BITS": value.bits}
        moved |= {"HEAD_BYTES": block * value.vector_bytes(head_dim), "RUN": rotation(value, head_dim), "ROWS": 16}
        found.append(Specimen("reencode", reencode_kernel, head | moved, 4))
    return found


def _head(head_dim: int, block: int) -> dict[str, Any]:
    return {"KV_HEADS": KV_HEADS, "DIM": head_dim, "WIDTH": padded(head_dim), "BLOCK": block}


def _sides(stored: LayerFormat, head_dim: int, block: int) -> dict[str, Any]:
    return {
        "KEY_BITS": stored.key.bits,
        "KEY_HEAD_STRIDE": block * stored.key.vector_bytes(head_dim),
        "VALUE_BITS": stored.value.bits,
        "VALUE_HEAD_STRIDE": block * stored.value.vector_bytes(head_dim),
        "VALUE_RUN": rotation(stored.value, head_dim),
    }


def _kept(stored: LayerFormat, block: int) -> dict[str, Any]:
    return {"RECENT": RECENT_TOKENS if stored.keeps_recent else 0, "RECENT_ROWS": block // RECENT_PARTS}
