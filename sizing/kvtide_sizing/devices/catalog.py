"""The built-in GPUs: their memory, bandwidth and compute, and the product names under which nodes report them.

Memory is what nvidia-smi shows as memory.total, or rocm-smi as VRAM Total Memory: a little under the name where ECC or
the driver keeps some. Bandwidth and compute are the vendor's data sheets: peak memory bandwidth, and BF16 on matrix
units without sparsity and with float32 accumulation. NVIDIA's data sheets of the A30, H100 and later print compute
with sparsity, twice these numbers; GeForce cards are in the GA102, Ada and RTX Blackwell whitepapers.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class GpuSpec:
    """One GPU. memory_mib in MiB; bandwidth in 10^9 bytes/s; bf16_tflops in 10^12 operations/s, dense.

    products: names as the driver gives them, spaces as dashes, in lower case, without the vendor.
    """

    memory_mib: int
    bandwidth_gb_per_s: int
    bf16_tflops: float
    has_fp8: bool
    products: tuple[str, ...]


# Grouped by architecture. Turing and Volta have no BF16: theirs is the FP16 rate.
GPUS = MappingProxyType(
    {
        # Volta: V100 data sheet (SXM2; the PCIe card computes 112)
        "v100-16gb": GpuSpec(16384, 900, 125, False, ("v100-sxm2-16gb", "v100-pcie-16gb")),
        "v100-32gb": GpuSpec(32768, 900, 125, False, ("v100-sxm2-32gb", "v100-sxm3-32gb", "v100-pcie-32gb")),
        # Turing: T4 data sheet
        "t4": GpuSpec(15360, 300, 65, False, ("t4",)),
        # Ampere: A100, A30, A10, RTX A6000 data sheets; A10G as AWS's G5 has it; GA102 whitepaper
        "a100-40gb": GpuSpec(40960, 1555, 312, False, ("a100-sxm4-40gb", "a100-pcie-40gb")),
        "a100-80gb": GpuSpec(81920, 2039, 312, False, ("a100-sxm4-80gb",)),
        "a100-80gb-pcie": GpuSpec(81920, 1935, 312, False, ("a100-80gb-pcie", "a100-pcie-80gb")),
        "a30": GpuSpec(24576, 933, 165, False, ("a30",)),
        "a10": GpuSpec(23028, 600, 125, False, ("a10",)),
        "a10g": GpuSpec(23028, 600, 70, False, ("a10g",)),
        "a6000": GpuSpec(49140, 768, 154.8, False, ("rtx-a6000",)),
        "rtx-3090": GpuSpec(24576, 936, 71, False, ("rtx-3090",)),
        # Ada: L4, L40, L40S data sheets; Ada whitepaper
        "l4": GpuSpec(23034, 300, 121, True, ("l4",)),
        "l40": GpuSpec(46068, 864, 181, True, ("l40",)),
        "l40s": GpuSpec(46068, 864, 362, True, ("l40s",)),
        "rtx-4090": GpuSpec(24564, 1008, 165.2, True, ("rtx-4090",)),
        # Hopper: H100 (SXM, PCIe, NVL), H200 (SXM, NVL), GH200 data sheets; H20 as its resellers' data sheets have it
        "h20": GpuSpec(97871, 4000, 148, True, ("h20",)),
        "h100-80gb": GpuSpec(81559, 3350, 989.5, True, ("h100-80gb-hbm3",)),
        "h100-pcie": GpuSpec(81559, 2000, 756.5, True, ("h100-pcie",)),
        "h100-94gb": GpuSpec(95830, 3900, 835.5, True, ("h100-nvl",)),
        "gh200-96gb": GpuSpec(97871, 4000, 990, True, ("gh200-480gb",)),
        "h200": GpuSpec(143771, 4800, 989.5, True, ("h200",)),
        "h200-nvl": GpuSpec(143771, 4800, 835.5, True, ("h200-nvl",)),
        # Blackwell: HGX B200 data sheet; RTX Blackwell whitepaper
        "b200": GpuSpec(183359, 8000, 2250, True, ("b200",)),
        "rtx-5090": GpuSpec(32607, 1792, 209.5, True, ("rtx-5090",)),
        # CDNA 3: MI300X data sheet; rocm-smi's 206,141,652,992 bytes
        "mi300x": GpuSpec(196592, 5300, 1307.4, True, ("mi300x", "mi300x-oam")),
    }
)

_VENDOR_WORDS = ("nvidia", "tesla", "geforce", "amd", "instinct")
_NAME_OF_PRODUCT = {product: name for name, spec in GPUS.items() for product in spec.products}


def name_of_product(product: str) -> str | None:
    """The built-in name of a product such as 'NVIDIA-A100-SXM4-40GB' or 'AMD_Instinct_MI300X_OAM', None if not one."""
    words = product.lower().replace("_", "-").replace(" ", "-").split("-")
    while words and words[0] in _VENDOR_WORDS:
        del words[0]
    return _NAME_OF_PRODUCT.get("-".join(words))
