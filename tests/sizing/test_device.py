import pytest

from kvtide_sizing.devices.device import Device, DeviceKind, device_named
from kvtide_sizing.errors import InvalidQuantity, UnknownDevice


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a100-80gb", Device("a100-80gb", DeviceKind.GPU, 80 * 1024**3)),
        ("A100-40GB", Device("a100-40gb", DeviceKind.GPU, 40 * 1024**3)),
        ("h200", Device("h200", DeviceKind.GPU, 143_771 * 1024**2)),  # nvidia-smi's memory.total
        ("mygpu:48GiB", Device("mygpu", DeviceKind.GPU, 48 * 1024**3)),
        ("l4:20Gi", Device("l4", DeviceKind.GPU, 20 * 1024**3)),
        ("cpu:2GiB", Device("cpu", DeviceKind.CPU, 2 * 1024**3)),
        ("cpu:500M", Device("cpu", DeviceKind.CPU, 500_000_000)),
    ],
)
def test_devices_are_named_or_described(text: str, expected: Device) -> None:
    assert device_named(text) == expected


@pytest.mark.parametrize(
    ("text", "error", "remedy"),
    [
        ("cpu", UnknownDevice, "cpu:MEMORY"),
        ("b9000", UnknownDevice, "h100-80gb"),
        ("", UnknownDevice, "NAME:MEMORY"),
        (":4Gi", UnknownDevice, "NAME:MEMORY"),
        ("cpu:", InvalidQuantity, "40Gi"),
        ("mygpu:lots", InvalidQuantity, "40Gi"),
    ],
)
def test_an_unknown_device_is_refused_with_what_would_work(text: str, error: type[Exception], remedy: str) -> None:
    with pytest.raises(error, match=remedy):
        device_named(text)
