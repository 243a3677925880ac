"""The plan as a record: what the planner decided, in the keys of the resource's status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvtide_sizing.errors import InvalidPlan


@dataclass(frozen=True)
class KvPlan:
    """The KV pool: num_blocks blocks of block_size_tokens."""

    precision: str
    block_size_tokens: int
    bytes_per_token: int
    num_blocks: int

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers."""
        return self.block_size_tokens * self.bytes_per_token

    @property
    def capacity_tokens(self) -> int:
        """Tokens that all blocks hold."""
        return self.num_blocks * self.block_size_tokens

    @property
    def pool_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.num_blocks * self.bytes_per_block


@dataclass(frozen=True)
class MemoryPlan:
    """Where the device's memory goes, in bytes; the parts add up to device_bytes."""

    device_bytes: int
    weights_bytes: int
    activations_bytes: int
    overhead_bytes: int
    reserve_bytes: int
    kv_pool_bytes: int


@dataclass(frozen=True)
class AttentionPlan:
    """Heads that the worker computes with."""

    query_heads: int
    kv_heads: int


@dataclass(frozen=True)
class Alternative:
    """What another choice would have given; choice is the field and its value, such as 'blockSizeTokens 16'."""

    choice: str
    capacity_tokens: int
    max_concurrency: int
    batch_limit: int


@dataclass(frozen=True)
class Plan:
    """What one replica holds, and why.

    max_concurrency:  sequences of max_context_tokens
    batch_limit:      sequences of the expected length, at most as many as a step runs
    """

    model: str
    device: str
    kv: KvPlan
    memory: MemoryPlan
    attention: AttentionPlan
    max_context_tokens: int
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
            "kv": {
                "precision": self.kv.precision,
                "blockSizeTokens": self.kv.block_size_tokens,
                "bytesPerToken": self.kv.bytes_per_token,
                "bytesPerBlock": self.kv.bytes_per_block,
                "numBlocks": self.kv.num_blocks,
                "capacityTokens": self.kv.capacity_tokens,
                "poolBytes": self.kv.pool_bytes,
            },
            "memory": {
                "deviceBytes": self.memory.device_bytes,
                "weightsBytes": self.memory.weights_bytes,
                "activationsBytes": self.memory.activations_bytes,
                "overheadBytes": self.memory.overhead_bytes,
                "reserveBytes": self.memory.reserve_bytes,
                "kvPoolBytes": self.memory.kv_pool_bytes,
            },
            "attention": {
                "queryHeads": self.attention.query_heads,
                "kvHeads": self.attention.kv_heads,
            },
            "maxContextTokens": self.max_context_tokens,
            "maxConcurrency": self.max_concurrency,
            "batchLimit": self.batch_limit,
            "reasons": list(self.reasons),
            "alternatives": [
                {
                    "choice": other.choice,
                    "capacityTokens": other.capacity_tokens,
                    "maxConcurrency": other.max_concurrency,
                    "batchLimit": other.batch_limit,
                }
                for other in self.alternatives
            ],
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """The plan that `to_json` wrote. Raises InvalidPlan where a key is missing or of another type."""
        try:
            kv, memory, attention = data["kv"], data["memory"], data["attention"]
            return cls(
                model=str(data["model"]),
                device=str(data["device"]),
                kv=KvPlan(
                    precision=str(kv["precision"]),
                    block_size_tokens=int(kv["blockSizeTokens"]),
                    bytes_per_token=int(kv["bytesPerToken"]),
                    num_blocks=int(kv["numBlocks"]),
                ),
                memory=MemoryPlan(
                    device_bytes=int(memory["deviceBytes"]),
                    weights_bytes=int(memory["weightsBytes"]),
                    activations_bytes=int(memory["activationsBytes"]),
                    overhead_bytes=int(memory["overheadBytes"]),
                    reserve_bytes=int(memory["reserveBytes"]),
                    kv_pool_bytes=int(memory["kvPoolBytes"]),
                ),
                attention=AttentionPlan(query_heads=int(attention["queryHeads"]), kv_heads=int(attention["kvHeads"])),
                max_context_tokens=int(data["maxContextTokens"]),
                max_concurrency=int(data["maxConcurrency"]),
                batch_limit=int(data["batchLimit"]),
                reasons=tuple(map(str, data["reasons"])),
                alternatives=tuple(
                    Alternative(
                        choice=str(other["choice"]),
                        capacity_tokens=int(other["capacityTokens"]),
                        max_concurrency=int(other["maxConcurrency"]),
                        batch_limit=int(other["batchLimit"]),
                    )
                    for other in data["alternatives"]
                ),
                warnings=tuple(map(str, data["warnings"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidPlan(f"not a plan as KVTide writes it: {type(error).__name__} {error}") from error
