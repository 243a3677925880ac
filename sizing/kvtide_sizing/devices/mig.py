"""NVIDIA MIG: the slices of a GPU that a pod can have, by profile.

A profile's name is COMPUTE.MEMORY, such as 1g.5gb, and its GB are nominal: a 1g.5gb slice has 4.75 GiB. Slices are in
NVIDIA's MIG user guide (Supported MIG Profiles). Memory is what `nvidia-smi mig -lgip` lists, in steps of 128 MiB;
drivers differ by a step, the smallest listing seen counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from kvtide_sizing.errors import UnknownDevice


@dataclass(frozen=True)
class MigProfile:
    """One slice. memory_mib is None where no public listing is known: a node's label or a person must give it."""

    compute_slices: int
    memory_slices: int
    memory_mib: int | None


@dataclass(frozen=True)
class MigGeometry:
    """How a GPU is cut: its slices of compute and of memory in all, and the profiles made of them."""

    compute_slices: int
    memory_slices: int
    profiles: MappingProxyType[str, MigProfile]


def _sevenths(names: str, memory_mib: tuple[int, ...] | None) -> MigGeometry:
    """A GPU of 7 compute and 8 memory slices: all but the A30 have the same six profiles, smallest first."""
    slices = ((1, 1), (1, 2), (2, 2), (3, 4), (4, 4), (7, 8))
    memories = memory_mib or (None,) * len(slices)
    profiles = {
        name: MigProfile(compute, memory, mib)
        for name, (compute, memory), mib in zip(names.split(), slices, memories, strict=True)
    }
    return MigGeometry(7, 8, MappingProxyType(profiles))


_A100_80GB = _sevenths(
    "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    (9728, 19968, 19968, 40192, 40192, 80896),  # 9.50 19.50 19.50 39.25 39.25 79.00 GiB
)
_H100_80GB = _sevenths(
    "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    (9984, 20096, 20096, 40448, 40448, 81152),  # 9.75 19.62 19.62 39.50 39.50 79.25 GiB
)
_H200 = _sevenths(
    "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
    (16384, 33280, 33280, 66560, 66560, 143360),  # 16.00 32.50 32.50 65.00 65.00 140.00 GiB
)

GEOMETRIES = MappingProxyType(
    {
        "a30": MigGeometry(
            4,
            4,
            MappingProxyType(
                {
                    "1g.6gb": MigProfile(1, 1, 5952),  # 5.81 GiB
                    "2g.12gb": MigProfile(2, 2, 11968),  # 11.69 GiB
                    "4g.24gb": MigProfile(4, 4, 24000),  # 23.44 GiB
                }
            ),
        ),
        "a100-40gb": _sevenths(
            "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
            (4864, 9856, 9856, 19968, 19968, 40192),  # 4.75 9.62 9.62 19.50 19.50 39.25 GiB
        ),
        "a100-80gb": _A100_80GB,
        "a100-80gb-pcie": _A100_80GB,
        "h100-80gb": _H100_80GB,
        "h100-pcie": _H100_80GB,
        "h100-94gb": _sevenths("1g.12gb 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb", None),
        "h200": _H200,
        "h200-nvl": _H200,
        "b200": _sevenths("1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb", None),
    }
)


def without_media_extension(profile: str) -> str:
    """'1g.5gb' of '1g.5gb+me' and of Kubernetes' '1g.5gb.me': a media engine more, the same memory and compute."""
    return profile.removesuffix("+me").removesuffix(".me")


def mig_geometry(gpu: str, profile: str) -> tuple[MigGeometry, MigProfile]:
    """A built-in GPU's geometry, and its profile of this name.

    Raises UnknownDevice, which lists the profiles that the GPU has, or the GPUs that can be sliced.
    """
    geometry = GEOMETRIES.get(gpu)
    if geometry is None:
        raise UnknownDevice(f"device '{gpu}' has no MIG slices in the list; {', '.join(GEOMETRIES)} have")
    found = geometry.profiles.get(without_media_extension(profile))
    if found is None:
        raise UnknownDevice(
            f"device '{gpu}' has no MIG profile '{profile}'; its profiles are {', '.join(geometry.profiles)}"
        )
    return geometry, found
