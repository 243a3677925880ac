import pytest

from kvtide_sizing.devices.catalog import name_of_product
from kvtide_sizing.devices.device import device_named


@pytest.mark.parametrize(
    ("name", "memory_mib", "bandwidth_gb_per_s", "bf16_tflops", "has_fp8"),
    [
        # memory.total of nvidia-smi; bandwidth and dense compute of the data sheets, halved where those count sparsity
        ("a100-40gb", 40_960, 1_555, 312, False),
        ("a100-80gb", 81_920, 2_039, 312, False),  # SXM
        ("h100-80gb", 81_559, 3_350, 989.5, True),  # SXM: 1,979 with sparsity
        ("h200", 143_771, 4_800, 989.5, True),
        ("b200", 183_359, 8_000, 2_250, True),  # 4.5 PFLOPS with sparsity
        ("l4", 23_034, 300, 121, True),  # 242 with sparsity
        ("l40s", 46_068, 864, 362, True),
        ("a10g", 23_028, 600, 70, False),
        ("t4", 15_360, 300, 65, False),  # FP16: Turing has no BF16
        ("v100-16gb", 16_384, 900, 125, False),  # FP16
        ("v100-32gb", 32_768, 900, 125, False),
        ("rtx-3090", 24_576, 936, 71, False),
        ("rtx-4090", 24_564, 1_008, 165.2, True),
        ("rtx-5090", 32_607, 1_792, 209.5, True),
        ("mi300x", 196_592, 5_300, 1_307.4, True),
    ],
)
def test_the_data_sheets_are_in_the_list(
    name: str, memory_mib: int, bandwidth_gb_per_s: int, bf16_tflops: float, has_fp8: bool
) -> None:
    device = device_named(name)

    assert device.memory_bytes == memory_mib * 2**20
    assert device.bandwidth_bytes_per_s == bandwidth_gb_per_s * 10**9
    assert device.bf16_flops_per_s == pytest.approx(bf16_tflops * 10**12)
    assert device.has_fp8 is has_fp8


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA-A100-SXM4-40GB", "a100-40gb"),
        ("A100-SXM4-40GB", "a100-40gb"),  # drivers before 470 leave the vendor out
        ("NVIDIA-A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA-A100-80GB-PCIe", "a100-80gb-pcie"),
        ("NVIDIA-H100-80GB-HBM3", "h100-80gb"),
        ("NVIDIA-H100-PCIe", "h100-pcie"),
        ("NVIDIA-H100-NVL", "h100-94gb"),
        ("NVIDIA-H200", "h200"),
        ("NVIDIA-B200", "b200"),
        ("NVIDIA-L4", "l4"),
        ("NVIDIA-L40S", "l40s"),
        ("NVIDIA-A10G", "a10g"),
        ("Tesla-T4", "t4"),
        ("Tesla-V100-SXM2-16GB", "v100-16gb"),
        ("NVIDIA-GeForce-RTX-4090", "rtx-4090"),
        ("NVIDIA-RTX-A6000", "a6000"),
        ("AMD_Instinct_MI300X_OAM", "mi300x"),
        ("NVIDIA-A100-SXM-64GB", None),  # a custom card: no neighbour's numbers for it
        ("Tesla-P4", None),
        ("", None),
    ],
)
def test_a_driver_s_product_name_is_found(product: str, name: str | None) -> None:
    assert name_of_product(product) == name
