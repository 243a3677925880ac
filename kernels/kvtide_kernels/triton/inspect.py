"""What the compiler makes of the kernels, for devices that need not be here: `python -m kvtide_kernels.triton.inspect`.

Nothing here runs on a device: what is read is the compiler's own output (TTGIR, PTX, and SASS by way of nvdisasm,
which Triton ships).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvtide_kernels.triton.specimens import EXTRAS, Specimen, attention_specimens, specimens
from kvtide_sizing.formats import BF16, INT4, INT8, LayerFormat

# Shared memory that one program may have, in bytes: CUDA C++ Programming Guide, compute capabilities, "maximum amount
# of shared memory per thread block"; AMD's CDNA 3 ISA, LDS.
SHARED_LIMITS = {
    "sm_80": 163 * 1024,
    "sm_86": 99 * 1024,
    "sm_89": 99 * 1024,
    "sm_90": 227 * 1024,
    "sm_100": 227 * 1024,
    "sm_120": 99 * 1024,
    "gfx942": 64 * 1024,
}
FORMATS = {
    "BF16": LayerFormat(BF16, BF16),
    "INT8": LayerFormat(INT8, INT8),
    "K8V4": LayerFormat(INT8, INT4),
    "INT4": LayerFormat(INT4, INT4),
}


@dataclass(frozen=True)
class Compiled:
    """registers: of a thread; spills: instructions that read or write spilled ones; shared: bytes of a program;
    tensor_core: its matrix instructions; wide_bytes: that one tile's loop copies by 16 bytes at a time; tile_bytes:
    that it loads of the arenas in all; instructions: of a warp in the loop. The last three of the decode kernel only.
    """

    specimen: Specimen
    target: str
    registers: int
    spills: int
    shared: int
    tensor_core: int
    wide_bytes: int
    tile_bytes: int
    instructions: int


def compile_for(specimen: Specimen, target: str) -> Compiled:
    """Compile, and read what came out. Raises what Triton raises where it does not compile."""
    names = list(specimen.kernel.arg_names)
    source = ASTSource(
        specimen.kernel,
        {name: specimen.types.get(name, "constexpr") for name in names},
        {(names.index(name),): constant for name, constant in specimen.constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in specimen.aligned},
    )
    amd = target.startswith("gfx")
    gpu = GPUTarget("hip", target, 64) if amd else GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    # Stages of a pipeline are buffers in shared memory on AMD, of which there is a quarter.
    options = {"num_warps": specimen.warps, "num_stages": 2 if amd else specimen.stages}
    built = triton.compile(source, target=gpu, options=options)
    return _read_amd(specimen, target, built) if amd else _read_nvidia(specimen, target, built)


def _read_amd(specimen: Specimen, target: str, built: Any) -> Compiled:
    asm = built.asm["amdgcn"]
    count = {what: int(re.search(rf"\.{what}:\s+(\d+)", asm)[1]) for what in ("vgpr_count", "vgpr_spill_count")}  # type: ignore[index]
    matrix = len(re.findall(r"v_mfma", asm))
    return Compiled(
        specimen, target, count["vgpr_count"], count["vgpr_spill_count"], built.metadata.shared, matrix, 0, 0, 0
    )


def _read_nvidia(specimen: Specimen, target: str, built: Any) -> Compiled:
    ptx, sass = built.asm["ptx"], _tool("nvdisasm", built.asm["cubin"], "-c")
    usage = _tool("cuobjdump", built.asm["cubin"], "-res-usage")
    registers = re.search(r"REG:(\d+)", usage)
    assert registers is not None
    matrix = len(re.findall(r"^\s*(?:@%?\w+ )?(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)", ptx, re.MULTILINE))
    loop = max(_loops(ptx, r"^(\$L\w+):", r"bra(?:\.uni)?\s+(\$L\w+)"), key=len, default=[])
    wide = sum("cp.async" in line and "0x10," in line for line in loop) * 16 * 32 * specimen.warps
    hot = max(_loops(sass, r"^(\.L\w+):", r"BRA\S* .*\((\.L\w+)\)"), key=len, default=[])
    return Compiled(
        specimen,
        target,
        int(registers[1]),
        len(re.findall(r"\b(?:STL|LDL)\b", sass)),
        built.metadata.shared,
        matrix,
        wide if specimen.tile else 0,
        _tile_bytes(built.asm["ttgir"]) if specimen.tile else 0,
        sum(line.strip().startswith("/*") for line in hot) if specimen.tile else 0,
    )


def _tool(name: str, cubin: bytes, *options: str) -> str:
    """The output of one of the CUDA tools that Triton ships."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, *options, file.name], check=True, capture_output=True, text=True).stdout


def _loops(text: str, label: str, branch: str) -> Iterator[list[str]]:
    """The lines between each label and a branch back to it."""
    lines = text.splitlines()
    labels = {found[1]: number for number, line in enumerate(lines) if (found := re.match(label, line))}
    for number, line in enumerate(lines):
        found = re.search(branch, line)
        if found and labels.get(found[1], number) < number:
            yield lines[labels[found[1]] : number + 1]


def _tile_bytes(ttgir: str) -> int:
    """Bytes that the loop loads of the arenas; the block table is what it loads one element of."""
    loop = ttgir[ttgir.index("scf.for") : ttgir.index("scf.yield")]
    loads = re.findall(r"(?:async_copy_global_to_local|tt\.load).*?tensor<([\dx]+)x!tt\.ptr<[a-z]+(\d+)>", loop)
    total = 0
    for shape, bits in loads:
        elements = 1
        for extent in shape.split("x"):
            elements *= int(extent)
        total += elements * int(bits) // 8 if elements > 1 else 0
    return total


def rows(targets: list[str], head_dim: int = 128, group: int = 8, block: int = 128) -> Iterator[tuple[str, Compiled]]:
    """(format, what came out) of every kernel; a kernel that no format changes once."""
    for target in targets:
        for name, stored in FORMATS.items():
            shape = stored, head_dim, group, block, target
            extra = [one for name in EXTRAS if name for one in attention_specimens(*shape, name)]
            for specimen in [*specimens(*shape), *extra]:
                if name == "BF16" or specimen.name != "copy":
                    yield name, compile_for(specimen, target)


def line(name: str, one: Compiled) -> str:
    """A row of the table."""
    per_kib = one.instructions * one.specimen.warps / (one.tile_bytes / 1024) if one.tile_bytes else 0
    loop = f"{one.tile_bytes:7d} {one.wide_bytes:7d} {per_kib:10.0f}" if one.tile_bytes else ""
    return (
        f"{one.target:8}{one.specimen.name:22}{name:6}{one.registers:6d}{one.spills:8d}{one.shared:9d}"
        f"{SHARED_LIMITS[one.target]:9d}{one.tensor_core:6d} {loop}"
    )


HEADER = "target  kernel                format  regs  spills   shared    limit   mma    tile  wide16  instr/KiB"


def main(targets: list[str]) -> None:
    """Print the table for the targets, or for all."""
    print(HEADER)
    for name, compiled in rows(targets or list(SHARED_LIMITS)):
        print(line(name, compiled), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
