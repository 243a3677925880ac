"""What the schema knows and this version does not do yet. Refused by name, never ignored.

What the planner knows of, such as a precision that no worker runs, it refuses itself.
"""

from kvtide_operator.api.spec import LLMDeploymentSpec


def unsupported(spec: LLMDeploymentSpec) -> list[str]:
    """One sentence for each field whose value this version cannot honour, with what to write instead."""
    if spec.kv_cache.prefix_caching:
        return ["kvCache.prefixCaching true is not supported by this version: leave it out or use false"]
    return []
