"""What the schema knows and this version does not do yet. Refused by name, never ignored."""

from kvtide_operator.api.spec import LLMDeploymentSpec, Precision

SUPPORTED_PRECISIONS = (Precision.AUTO, Precision.BF16)


def unsupported(spec: LLMDeploymentSpec) -> list[str]:
    """One sentence for each field whose value this version cannot honour, with what to write instead."""
    found = []
    precision = spec.kv_cache.precision
    if precision not in SUPPORTED_PRECISIONS:
        found.append(f"kvCache.precision {precision} is not supported by this version: use BF16 or Auto")
    if spec.kv_cache.prefix_caching:
        found.append("kvCache.prefixCaching true is not supported by this version: leave it out or use false")
    if spec.attention.kv_heads != "Native":
        found.append(f"attention.kvHeads {spec.attention.kv_heads} is not supported by this version: use Native")
    if spec.attention.variants:
        found.append("attention.variants is not supported by this version: leave it out")
    if spec.device.count > 1:
        found.append(f"device.count {spec.device.count} is not supported by this version: use 1")
    return found
