"""What the compiler makes of every kernel, for devices that are not here: `pytest -s` prints the table."""

from __future__ import annotations

import re
import struct

import pytest

from kvtide_kernels.triton import tiles
from kvtide_kernels.triton.inspect import FORMATS, HEADER, SHARED_LIMITS, Compiled, compile_for, line
from kvtide_kernels.triton.specimens import attention_specimens, specimens

NVIDIA = [target for target in SHARED_LIMITS if target.startswith("sm_")]
TOKEN_BYTES = {"BF16": 512, "INT8": 260, "K8V4": 198, "INT4": 136}  # K and V of 128 elements, fp16 scale and zero


def compiled(
    target: str, name: str, kernels: tuple[str, ...] = (), head_dim: int = 128, block: int = 128
) -> list[Compiled]:
    """A format's kernels, all or those, and their rows printed."""
    found = []
    for specimen in specimens(FORMATS[name], head_dim, 8, block, target):
        if not kernels or specimen.name in kernels:
            found.append(compile_for(specimen, target))
            print(line(name, found[-1]))
    return found


# Instructions that spill: a window's masks are two registers more than there are beside heads of 256 in two formats.
SPILLS = {("sm_86", "prefill-capped", 8, 4, 256): 2}


def check(one: Compiled) -> None:
    """What holds for each kernel."""
    known = one.specimen.constants
    shape = tuple(known.get(name) for name in ("KEY_BITS", "VALUE_BITS", "DIM"))
    assert one.spills <= SPILLS.get((one.target, one.specimen.name, *shape), 0)
    assert one.shared <= SHARED_LIMITS[one.target]
    if one.specimen.name.startswith(("decode", "prefill")):
        assert one.tensor_core > 0


def check_tile(one: Compiled, token_bytes: int) -> None:
    """The decode loop loads what the format has of a tile and no more; all but scales by 128 bits."""
    assert one.tile_bytes == one.specimen.tile * token_bytes
    assert one.wide_bytes == one.specimen.data_bytes


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.slow
def test_decode_on_hopper(name: str) -> None:
    print("\n" + HEADER)
    [one] = compiled("sm_90", name, ("decode-split",))
    check(one)
    check_tile(one, TOKEN_BYTES[name])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("target", NVIDIA)
def test_every_kernel_on_every_architecture(target: str, name: str) -> None:
    print("\n" + HEADER)
    for one in compiled(target, name):
        check(one)
        if one.specimen.tile:
            check_tile(one, TOKEN_BYTES[name])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("target", ["sm_86", "sm_90"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 192, 256])
def test_head_sizes_in_blocks_of_sixteen(target: str, name: str, head_dim: int) -> None:
    print("\n" + HEADER)
    for one in compiled(target, name, ("decode-split", "decode", "prefill", "write"), head_dim, block=16):
        check(one)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("target", ["sm_86", "sm_90"])
@pytest.mark.parametrize(
    ("extra", "head_dim", "group"),
    [("-windowed", 128, 4), ("-capped", 256, 2), ("-sinks", 64, 8)],  # as in Mistral 7B, Gemma 2 9B and gpt-oss
)
def test_windows_caps_and_sinks(target: str, name: str, extra: str, head_dim: int, group: int) -> None:
    print("\n" + HEADER)
    for specimen in attention_specimens(FORMATS[name], head_dim, group, 128, target, extra):
        one = compile_for(specimen, target)
        print(line(name, one))
        check(one)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FORMATS)
def test_cdna3(name: str) -> None:
    print("\n" + HEADER)
    for one in compiled("gfx942", name):
        check(one)


def unpacked(asm: str, register: int) -> int:
    """What the PTX of `_part` makes of a register, by PTX's own definition of lop3."""
    shift, mask, other, table = re.search(r"\$1, (\d+); lop3.b32 \$0, t, (\w+), (\w+), (\w+);", asm).groups()  # type: ignore[union-attr]
    a, b, c, lut = register >> int(shift), int(mask, 16), int(other, 16), int(table, 16)
    bits = (((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) for i in range(32))
    return sum((lut >> index & 1) << i for i, index in enumerate(bits))


@pytest.mark.parametrize("word", [0x0000, 0xFFFF, 0x8001, 0x7F80, 0x1234, 0xFEDC])
def test_unpacked_words_are_the_offset_and_the_level(word: int) -> None:
    """The PTX is not run here: its instructions are, bit by bit, and read as floats by struct."""
    register = word << 16 | 0xA5C3
    for part, asm in enumerate([tiles.INT8_PART_0, tiles.INT8_PART_1]):
        for half, packed in enumerate([0xA5C3, word]):
            bits = unpacked(asm.value, register) >> (16 * half) & 0xFFFF
            level = struct.unpack("b", bytes([packed >> (8 * part) & 0xFF]))[0]
            assert struct.unpack("e", struct.pack("H", bits))[0] == 1152 + level
    parts = [tiles.INT4_PART_0, tiles.INT4_PART_1, tiles.INT4_PART_2, tiles.INT4_PART_3]
    for part, asm in enumerate(parts):
        for half, packed in enumerate([0xA5C3, word]):
            bits = unpacked(asm.value, register) >> (16 * half) & 0xFFFF
            # bfloat16 is the upper half of a float32.
            assert struct.unpack("f", struct.pack("I", bits << 16))[0] == 128 + (packed >> (4 * part) & 15)
