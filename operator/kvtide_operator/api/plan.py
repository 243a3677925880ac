"""The plan as the status shows it: the keys of `kvtide plan -o json`.

A key that may be absent is one that plans of an earlier version, which workers still run, do not have.
"""

from pydantic import AliasChoices, Field

from kvtide_operator.api.fields import Api


class PlanLayers(Api):
    """Neighbouring layers whose keys and values are stored alike."""

    layers: str = Field(description="The first and the last of them, such as 0-29.")
    key: str = Field(description="Storage of keys.")
    value: str = Field(description="Storage of values.")


class PlanKV(Api):
    """The KV pool of one worker."""

    precision: str = Field(description="Storage of keys and values.")
    block_size_tokens: int = Field(description="Tokens of one block.")
    bytes_per_token: int = Field(description="What one token of context costs, all layers together.")
    bytes_per_block: int = Field(description="What one block costs.")
    num_blocks: int = Field(description="Blocks of the pool.")
    capacity_tokens: int = Field(description="Tokens that fit the pool.")
    pool_bytes: int = Field(description="Size of the pool.")
    block_tables: int | None = Field(
        default=None, description="Block tables of a sequence: more than one where layers have windows."
    )
    block_tables_bytes: int | None = Field(
        default=None, description="Block tables of a full batch; they are counted with the activations."
    )
    recent_blocks: int | None = Field(
        default=None, description="Blocks that each sequence takes beside its tokens' for the last ones in BF16."
    )
    prefix_caching: bool | None = Field(
        default=None, description="Whether prompts that begin alike share what was computed."
    )
    max_quality_loss_percent: float | None = Field(
        default=None, description="What storing KV may cost in perplexity, which the worker checks when it loads."
    )
    layers: list[PlanLayers] | None = Field(default=None, description="How each layer's keys and values are stored.")


class PlanMemory(Api):
    """Where the device's memory goes, in bytes."""

    device_bytes: int = Field(description="All of it.")
    weights_bytes: int = Field(description="Weights.")
    activations_bytes: int = Field(description="Activations of one step.")
    overhead_bytes: int = Field(description="Runtime and libraries.")
    reserve_bytes: int = Field(description="Left free on purpose.")
    kv_pool_bytes: int = Field(description="The pool of KV blocks.")


class PlanAttention(Api):
    """Heads of the model as served."""

    query_heads: int = Field(description="Query heads of a layer.")
    kv_heads: int = Field(description="KV heads of a layer.")
    native_kv_heads: int | None = Field(default=None, description="KV heads of a layer of the model itself.")


class PlanAlternative(Api):
    """What another choice would have given."""

    choice: str = Field(description="The field and its value.")
    bytes_per_token: int | None = Field(default=None, description="What one token of context would cost.")
    capacity_tokens: int = Field(description="Tokens that would fit the pool.")
    max_concurrency: int = Field(description="Sequences of full length that would fit at once.")
    batch_limit: int = Field(description="Sequences that would run at once.")
    served: bool | None = Field(default=None, description="Whether workers of this release run it.")


class Plan(Api):
    """What was chosen for this model on this device, and why."""

    model: str = Field(description="The model as the plan knows it.")
    device: str = Field(description="The device as the plan knows it.")
    device_count: int | None = Field(default=None, description="Devices of one worker; all bytes are those of each.")
    weight_precision: str | None = Field(
        default=None,
        validation_alias=AliasChoices("weightPrecision", "weightsFormat"),
        description="How the model's matrices are held.",
    )
    overhead_measured: bool | None = Field(
        default=None, description="Whether the overhead was measured on workers, or is an estimate from above."
    )
    kv: PlanKV = Field(description="The KV pool of one worker.")
    memory: PlanMemory = Field(description="Where the device's memory goes, in bytes.")
    attention: PlanAttention = Field(description="Heads of the model as served.")
    max_context_tokens: int = Field(description="Longest prompt plus answer of one request.")
    longest_context_tokens: int | None = Field(
        default=None, description="Longest context of which one sequence would fit."
    )
    max_concurrency: int = Field(description="Sequences of full length that fit at once.")
    batch_limit: int = Field(description="Sequences that run at once at the expected lengths.")
    reasons: list[str] = Field(default_factory=list, description="Why each choice.")
    alternatives: list[PlanAlternative] = Field(
        default_factory=list, description="What each other choice would have given."
    )
    warnings: list[str] = Field(default_factory=list, description="What to know about it.")
