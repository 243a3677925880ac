"""The plan as a record: what the planner decided, in the keys of the resource's status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvtide_sizing.errors import InvalidPlan

# Keys of a plan that releases before wrote by another name, and read by no other.
EARLIER_KEYS = {"weightPrecision": "weightsFormat"}


@dataclass(frozen=True)
class LayerRun:
    """Neighbouring layers, such as "0-29", whose keys and values are stored alike."""

    layers: str
    key: str
    value: str


@dataclass(frozen=True)
class KvPlan:
    """The KV pool of one device: num_blocks blocks of block_size_tokens, each of all layers.

    bytes_per_token:  of all layers; with several devices, what each of them keeps
    bytes_per_block:  block_size_tokens · bytes_per_token; more where tables of different widths share a pool
    block_tables:     of a sequence; more than one where layers have windows
    tables_bytes:     of a full batch of the longest sequences; counted among the activations
    recent_blocks:    of all layers, that each sequence takes beside its tokens' for the last ones in BF16
    prefix_caching:   whether prompts that begin alike share what was computed
    max_quality_loss_percent:  what storing KV as planned may cost in perplexity, at least
    """

    precision: str
    block_size_tokens: int
    bytes_per_token: int
    bytes_per_block: int
    num_blocks: int
    block_tables: int
    tables_bytes: int
    layers: tuple[LayerRun, ...]
    recent_blocks: int = 0
    prefix_caching: bool = True
    max_quality_loss_percent: float = 1.0

    @property
    def capacity_tokens(self) -> int:
        """Tokens that all blocks hold; sequences longer than a window take less than one token's bytes for each."""
        return self.num_blocks * self.block_size_tokens

    @property
    def pool_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.num_blocks * self.bytes_per_block

    def to_json(self) -> dict[str, Any]:
        """The pool as JSON values."""
        return {
            "precision": self.precision,
            "blockSizeTokens": self.block_size_tokens,
            "bytesPerToken": self.bytes_per_token,
            "bytesPerBlock": self.bytes_per_block,
            "numBlocks": self.num_blocks,
            "capacityTokens": self.capacity_tokens,
            "poolBytes": self.pool_bytes,
            "blockTables": self.block_tables,
            "blockTablesBytes": self.tables_bytes,
            "recentBlocks": self.recent_blocks,
            "prefixCaching": self.prefix_caching,
            "maxQualityLossPercent": self.max_quality_loss_percent,
            "layers": [{"layers": run.layers, "key": run.key, "value": run.value} for run in self.layers],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> KvPlan:
        """The pool that `to_json` wrote."""
        return cls(
            precision=str(data["precision"]),
            block_size_tokens=int(data["blockSizeTokens"]),
            bytes_per_token=int(data["bytesPerToken"]),
            bytes_per_block=int(data["bytesPerBlock"]),
            num_blocks=int(data["numBlocks"]),
            block_tables=int(data.get("blockTables", 1)),
            tables_bytes=int(data.get("blockTablesBytes", 0)),
            layers=tuple(
                LayerRun(str(run["layers"]), str(run["key"]), str(run["value"])) for run in data.get("layers", ())
            ),
            recent_blocks=int(data.get("recentBlocks", 0)),
            prefix_caching=bool(data.get("prefixCaching", True)),
            max_quality_loss_percent=float(data.get("maxQualityLossPercent", 1.0)),
        )


@dataclass(frozen=True)
class MemoryPlan:
    """Where one device's memory goes, in bytes; the parts add up to device_bytes."""

    device_bytes: int
    weights_bytes: int
    activations_bytes: int
    overhead_bytes: int
    reserve_bytes: int
    kv_pool_bytes: int

    def to_json(self) -> dict[str, Any]:
        """The parts as JSON values."""
        return {
            "deviceBytes": self.device_bytes,
            "weightsBytes": self.weights_bytes,
            "activationsBytes": self.activations_bytes,
            "overheadBytes": self.overhead_bytes,
            "reserveBytes": self.reserve_bytes,
            "kvPoolBytes": self.kv_pool_bytes,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> MemoryPlan:
        """The parts that `to_json` wrote."""
        return cls(
            device_bytes=int(data["deviceBytes"]),
            weights_bytes=int(data["weightsBytes"]),
            activations_bytes=int(data["activationsBytes"]),
            overhead_bytes=int(data["overheadBytes"]),
            reserve_bytes=int(data["reserveBytes"]),
            kv_pool_bytes=int(data["kvPoolBytes"]),
        )


@dataclass(frozen=True)
class AttentionPlan:
    """Heads that the worker computes with. kv_heads of native_kv_heads: fewer in a variant, or pooled."""

    query_heads: int
    kv_heads: int
    native_kv_heads: int


@dataclass(frozen=True)
class Alternative:
    """What another choice would have given, all else the same.

    choice:  the field and its value, such as 'blockSizeTokens 16' or 'weightPrecision INT8'
    served:  whether this release's worker runs it
    """

    choice: str
    bytes_per_token: int
    capacity_tokens: int
    max_concurrency: int
    batch_limit: int
    served: bool

    def to_json(self) -> dict[str, Any]:
        """The alternative as JSON values."""
        return {
            "choice": self.choice,
            "bytesPerToken": self.bytes_per_token,
            "capacityTokens": self.capacity_tokens,
            "maxConcurrency": self.max_concurrency,
            "batchLimit": self.batch_limit,
            "served": self.served,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Alternative:
        """The alternative that `to_json` wrote."""
        return cls(
            choice=str(data["choice"]),
            bytes_per_token=int(data.get("bytesPerToken", 0)),
            capacity_tokens=int(data["capacityTokens"]),
            max_concurrency=int(data["maxConcurrency"]),
            batch_limit=int(data["batchLimit"]),
            served=bool(data.get("served", True)),
        )


@dataclass(frozen=True)
class Plan:
    """What one replica holds, and why. Bytes are those of each of its devices.

    weight_precision:        how matrices are served
    overhead_measured:       whether memory.overhead_bytes was measured, or is an estimate from above
    max_concurrency:         sequences of max_context_tokens
    longest_context_tokens:  the longest context of which one sequence would fit
    batch_limit:             sequences of the expected length, at most as many as a step runs
    """

    model: str
    device: str
    device_count: int
    weight_precision: str
    overhead_measured: bool
    kv: KvPlan
    memory: MemoryPlan
    attention: AttentionPlan
    max_context_tokens: int
    longest_context_tokens: int
    max_concurrency: int
    batch_limit: int
    reasons: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values, in the contract's keys."""
        return {
            "model": self.model,
            "device": self.device,
            "deviceCount": self.device_count,
            "weightPrecision": self.weight_precision,
            "overheadMeasured": self.overhead_measured,
            "kv": self.kv.to_json(),
            "memory": self.memory.to_json(),
            "attention": {
                "queryHeads": self.attention.query_heads,
                "kvHeads": self.attention.kv_heads,
                "nativeKvHeads": self.attention.native_kv_heads,
            },
            "maxContextTokens": self.max_context_tokens,
            "longestContextTokens": self.longest_context_tokens,
            "maxConcurrency": self.max_concurrency,
            "batchLimit": self.batch_limit,
            "reasons": list(self.reasons),
            "alternatives": [other.to_json() for other in self.alternatives],
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """The plan that `to_json` wrote, also an earlier release's, whose keys were fewer: it may be kept for years.

        Raises InvalidPlan where a key is missing or of another type.
        """
        try:
            attention = data["attention"]
            return cls(
                model=str(data["model"]),
                device=str(data["device"]),
                device_count=int(data.get("deviceCount", 1)),
                weight_precision=str(data.get("weightPrecision", data.get(EARLIER_KEYS["weightPrecision"], "BF16"))),
                overhead_measured=bool(data.get("overheadMeasured", False)),
                kv=KvPlan.from_json(data["kv"]),
                memory=MemoryPlan.from_json(data["memory"]),
                attention=AttentionPlan(
                    int(attention["queryHeads"]),
                    int(attention["kvHeads"]),
                    int(attention.get("nativeKvHeads", attention["kvHeads"])),
                ),
                max_context_tokens=int(data["maxContextTokens"]),
                longest_context_tokens=int(data.get("longestContextTokens", data["maxContextTokens"])),
                max_concurrency=int(data["maxConcurrency"]),
                batch_limit=int(data["batchLimit"]),
                reasons=tuple(map(str, data["reasons"])),
                alternatives=tuple(map(Alternative.from_json, data["alternatives"])),
                warnings=tuple(map(str, data["warnings"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidPlan(f"not a plan as KVTide writes it: {type(error).__name__} {error}") from error
