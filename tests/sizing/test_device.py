import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide_sizing.devices.device import Device, DeviceKind, builtin_gpus, device_named
from kvtide_sizing.errors import InvalidQuantity, UnknownDevice

GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "name", "kind", "memory_bytes"),
    [
        ("a100-80gb", "a100-80gb", DeviceKind.GPU, 80 * GIB),
        ("A100-40GB", "a100-40gb", DeviceKind.GPU, 40 * GIB),
        ("h200", "h200", DeviceKind.GPU, 143_771 * 1024**2),  # nvidia-smi's memory.total
        ("mi300x", "mi300x", DeviceKind.GPU, 206_141_652_992),  # rocm-smi's VRAM Total Memory
        ("mygpu:48GiB", "mygpu", DeviceKind.GPU, 48 * GIB),
        ("l4:20Gi", "l4", DeviceKind.GPU, 20 * GIB),
        ("cpu:2GiB", "cpu", DeviceKind.CPU, 2 * GIB),
        ("cpu:500M", "cpu", DeviceKind.CPU, 500_000_000),
        ("a100-40gb/1g.5gb", "a100-40gb/1g.5gb", DeviceKind.GPU, 4_864 * 1024**2),  # 4.75 GiB
        ("b200/1g.23gb:21GiB", "b200/1g.23gb", DeviceKind.GPU, 21 * GIB),
    ],
)
def test_devices_are_named_or_described(text: str, name: str, kind: DeviceKind, memory_bytes: int) -> None:
    device = device_named(text)

    assert (device.name, device.kind, device.memory_bytes, device.count) == (name, kind, memory_bytes, 1)


def test_a_memory_beside_a_built_in_name_changes_nothing_else() -> None:
    l4 = device_named("l4:20Gi")

    assert (l4.bandwidth_bytes_per_s, l4.bf16_flops_per_s, l4.has_fp8) == (300 * 10**9, 121 * 10**12, True)


def test_of_a_device_that_is_only_described_nothing_is_made_up() -> None:
    assert device_named("mygpu:48GiB") == Device("mygpu", DeviceKind.GPU, 48 * GIB)


@pytest.mark.parametrize(
    ("text", "error", "remedy"),
    [
        ("cpu", UnknownDevice, "cpu:MEMORY"),
        ("b9000", UnknownDevice, "h100-80gb"),
        ("h100", UnknownDevice, "did you mean .*h100-80gb"),
        ("a100-80g", UnknownDevice, "did you mean a100-80gb"),
        ("mygpu/1g.5gb", UnknownDevice, "NAME:MEMORY"),
        ("", UnknownDevice, "NAME:MEMORY"),
        (":4Gi", UnknownDevice, "NAME:MEMORY"),
        ("cpu:", InvalidQuantity, "40Gi"),
        ("mygpu:lots", InvalidQuantity, "40Gi"),
    ],
)
def test_an_unknown_device_is_refused_with_what_would_work(text: str, error: type[Exception], remedy: str) -> None:
    with pytest.raises(error, match=remedy):
        device_named(text)


@given(
    name=st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True).filter(lambda name: name not in builtin_gpus()),
    memory_mib=st.integers(1, 1 << 20),
)
def test_any_name_and_memory_is_read_back(name: str, memory_mib: int) -> None:
    device = device_named(f"{name}:{memory_mib}MiB")

    assert (device.name, device.memory_bytes) == (name, memory_mib * 1024**2)


@given(st.sampled_from(sorted(builtin_gpus())))
def test_a_built_in_name_leads_to_its_own_device(name: str) -> None:
    assert device_named(name) == device_named(name.upper()) == builtin_gpus()[name]
    assert builtin_gpus()[name].name == name
