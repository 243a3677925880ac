"""The plan as the status shows it: the keys of `kvtide plan -o json`."""

from pydantic import Field

from kvtide_operator.api.fields import Api


class PlanKV(Api):
    """The KV pool of one worker."""

    precision: str = Field(description="Storage of keys and values.")
    block_size_tokens: int = Field(description="Tokens of one block.")
    bytes_per_token: int = Field(description="What one token of context costs, all layers together.")
    bytes_per_block: int = Field(description="What one block costs.")
    num_blocks: int = Field(description="Blocks of the pool.")
    capacity_tokens: int = Field(description="Tokens that fit the pool.")
    pool_bytes: int = Field(description="Size of the pool.")


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


class PlanAlternative(Api):
    """What another choice would have given."""

    choice: str = Field(description="The field and its value.")
    capacity_tokens: int = Field(description="Tokens that would fit the pool.")
    max_concurrency: int = Field(description="Sequences of full length that would fit at once.")
    batch_limit: int = Field(description="Sequences that would run at once.")


class Plan(Api):
    """What was chosen for this model on this device, and why."""

    model: str = Field(description="The model as the plan knows it.")
    device: str = Field(description="The device as the plan knows it.")
    kv: PlanKV = Field(description="The KV pool of one worker.")
    memory: PlanMemory = Field(description="Where the device's memory goes, in bytes.")
    attention: PlanAttention = Field(description="Heads of the model as served.")
    max_context_tokens: int = Field(description="Longest prompt plus answer of one request.")
    max_concurrency: int = Field(description="Sequences of full length that fit at once.")
    batch_limit: int = Field(description="Sequences that run at once at the expected lengths.")
    reasons: list[str] = Field(default_factory=list, description="Why each choice.")
    alternatives: list[PlanAlternative] = Field(
        default_factory=list, description="What each other choice would have given."
    )
    warnings: list[str] = Field(default_factory=list, description="What to know about it.")
