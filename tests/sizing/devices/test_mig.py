import pytest

from kvtide_sizing.devices.device import device_named
from kvtide_sizing.devices.mig import GEOMETRIES
from kvtide_sizing.errors import UnknownDevice

A100_BANDWIDTH, A100_FLOPS = 1_555 * 10**9, 312 * 10**12


@pytest.mark.parametrize(
    ("name", "memory_gib"),
    [
        # `nvidia-smi mig -lgip`, to two digits
        ("a100-40gb/1g.5gb", 4.75),
        ("a100-40gb/2g.10gb", 9.62),
        ("a100-40gb/3g.20gb", 19.50),
        ("a100-40gb/7g.40gb", 39.25),
        ("a100-80gb/1g.10gb", 9.50),
        ("a100-80gb/1g.20gb", 19.50),
        ("a100-80gb/3g.40gb", 39.25),
        ("a100-80gb/7g.80gb", 79.00),
        ("h100-80gb/1g.10gb", 9.75),
        ("h100-80gb/2g.20gb", 19.62),
        ("h100-80gb/3g.40gb", 39.50),
        ("h200/1g.18gb", 16.00),
        ("h200/2g.35gb", 32.50),
        ("h200/7g.141gb", 140.00),
        ("a30/1g.6gb", 5.81),
        ("a30/2g.12gb", 11.69),
    ],
)
def test_a_slice_has_the_memory_that_the_driver_lists_not_its_name_s(name: str, memory_gib: float) -> None:
    memory_bytes = device_named(name).memory_bytes

    assert memory_bytes / 2**30 == pytest.approx(memory_gib, abs=0.0051)
    assert memory_bytes % (64 * 2**20) == 0


@pytest.mark.parametrize(
    ("profile", "compute_sevenths", "memory_eighths"),
    # NVIDIA's MIG user guide, the A100's table: fraction of SMs, fraction of memory
    [("1g.5gb", 1, 1), ("2g.10gb", 2, 2), ("3g.20gb", 3, 4), ("4g.20gb", 4, 4), ("7g.40gb", 7, 8)],
)
def test_a_slice_has_its_share_of_compute_and_bandwidth(
    profile: str, compute_sevenths: int, memory_eighths: int
) -> None:
    device = device_named(f"a100-40gb/{profile}")

    assert device.bf16_flops_per_s == A100_FLOPS * compute_sevenths // 7
    assert device.bandwidth_bytes_per_s == A100_BANDWIDTH * memory_eighths // 8


@pytest.mark.parametrize("gpu", sorted(GEOMETRIES))
def test_slices_that_fit_on_a_gpu_at_once_do_not_hold_more_than_it(gpu: str) -> None:
    whole, geometry = device_named(gpu), GEOMETRIES[gpu]
    for name, profile in geometry.profiles.items():
        at_once = min(
            geometry.compute_slices // profile.compute_slices, geometry.memory_slices // profile.memory_slices
        )
        if profile.memory_mib is not None:
            assert at_once * device_named(f"{gpu}/{name}").memory_bytes <= whole.memory_bytes


def test_a_media_engine_changes_no_memory() -> None:
    assert device_named("a100-40gb/1g.5gb+me").memory_bytes == device_named("a100-40gb/1g.5gb").memory_bytes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a100-40gb/1g.6gb", "'a100-40gb' has no MIG profile '1g.6gb'; its profiles are 1g.5gb, 1g.10gb, 2g.10gb"),
        ("a100-40gb/", "has no MIG profile ''"),
        ("l4/1g.5gb", "'l4' has no MIG slices in the list; a30, a100-40gb"),
        ("b200/1g.23gb", "write b200/1g.23gb:MEMORY with what `nvidia-smi mig -lgip` shows"),
    ],
)
def test_a_slice_that_is_not_known_is_refused_with_those_that_are(text: str, says: str) -> None:
    with pytest.raises(UnknownDevice, match=says):
        device_named(text)
