"""The format that a checkpoint is quantised in, from its configuration."""

from __future__ import annotations

from kvtide_sizing.errors import UnsupportedModel
from kvtide_sizing.models.config import Config

_KEY = "quantization_config"
_BY_METHOD = {"fp8": "FP8", "mxfp4": "MXFP4"}
_BY_BITS = {4: "INT4", 8: "INT8"}
_WITH_BITS = ("awq", "gptq")
BITS = {"FP8": 8, "INT8": 8, "INT4": 4, "MXFP4": 4}


def quantized_format(config: Config) -> str | None:
    """FP8, MXFP4, INT8 or INT4; None where nothing is quantised. Raises UnsupportedModel for another method."""
    if not config.get(_KEY):
        return None
    quantization = config.nested(_KEY)
    method = quantization.get("quant_method")
    if method in _BY_METHOD:
        return _BY_METHOD[method]
    bits = quantization.get("bits")
    if method in _WITH_BITS and bits in _BY_BITS:
        return _BY_BITS[bits]
    of_bits = "" if bits is None else f" of {bits} bits"
    raise UnsupportedModel(
        f"{config.name} is quantised by {method}{of_bits}, which is not known; "
        f"{', '.join(_BY_METHOD)}, and {' and '.join(_WITH_BITS)} of {' or '.join(map(str, _BY_BITS))} bits are"
    )
