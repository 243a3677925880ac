"""What the server process and the engine process say to each other: msgpack over two ZeroMQ pipes.

The server sends one of `Command`, the engine answers with one of `Event`. Nothing else crosses the border, so that
neither process ever waits for the other's CPU work.
"""

import enum

import msgspec


class FinishReason(enum.StrEnum):
    """Why a request ended. `STOP` and `LENGTH` are OpenAI's words; the others become an error for the client."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class SamplingParams(msgspec.Struct, frozen=True):
    """How the next token is chosen. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 keep every token.

    repetition_penalty:  divides what a token of prompt or output has, 1 changes nothing
    frequency_penalty:   taken off for each time that a token was generated; presence_penalty once
    logit_bias:          token id → what is added; -100 bans
    min_tokens:          as many are generated before a token may end the answer
    logprobs:            of the chosen token and of so many likeliest ones; None gives none
    prompt_logprobs:     the same for the prompt's own tokens
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class AddRequest(msgspec.Struct, frozen=True):
    """A new request; the ids are unique for the life of the engine process.

    grammar:        what the answer must match, as llguidance writes it; needs a `SetVocabulary` before it
    same_prompt_as: an earlier request; where that one has yet to compute the same prompt, this one waits for it
    priority:       lower ones are served first, and of one priority in the order of their arrival
    cache_salt:     prompts of another salt are not found, and this one is not found with another
    timeout_s:      after so many seconds it ends with an error, however far it is
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    grammar: str | None = None
    same_prompt_as: str | None = None
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None


class AddRequests(msgspec.Struct, frozen=True, tag=True):
    """New requests between which no step lies: one can follow another's prompt however soon the engine begins."""

    requests: list[AddRequest]


class SetVocabulary(msgspec.Struct, frozen=True, tag=True):
    """What grammars are about: the bytes of each token id, those that are no text, and those that end an answer.

    The engine reads no tokenizer; the server sends this before the first request with a grammar.
    """

    token_bytes: list[bytes]
    special_ids: list[int]
    eos_token_ids: list[int]


class AbortRequest(msgspec.Struct, frozen=True, tag=True):
    """Forget a request and free its blocks before the next step. Unknown ids are ignored: it may just have finished."""

    request_id: str


class SetLimits(msgspec.Struct, frozen=True, tag=True):
    """The most sequences that one step may run, from the next step on."""

    batch_limit: int


class DescribePool(msgspec.Struct, frozen=True, tag=True):
    """Draw the pool between two steps: a `PoolMap` follows."""


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End the engine process. Requests that still run are answered with `FinishReason.ABORT`."""


class CalibrationTokens(msgspec.Struct, frozen=True, tag=True):
    """The tokens of `calibration_text`: the first command, sent as soon as the server has read the tokenizer.

    An engine that stores no keys or values in few bits ignores it.

    fitted:   what key bases are fitted to, what the model wants before a text included
    checked:  a later part of it, which formats are checked on
    start:    what the model wants before a text
    """

    fitted: list[int]
    checked: list[int]
    start: list[int] = []


class Reencode(msgspec.Struct, frozen=True, tag=True):
    """Store KV in another precision from now on, as `Precision` spells it: a `Reencoded` follows."""

    precision: str


Command = (
    CalibrationTokens | AddRequests | SetVocabulary | AbortRequest | SetLimits | Reencode | DescribePool | Shutdown
)


class ErrorKind(enum.StrEnum):
    """Whose fault an error is, so that a client is told the right status."""

    ENGINE = "engine_error"
    NOT_FINITE = "not_finite"
    GRAMMAR = "invalid_grammar"
    GRAMMAR_TIMEOUT = "grammar_timeout"
    DEADLINE = "deadline_exceeded"


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities at one place: of the token that stands there, and of the likeliest ones, best first.

    All are the model's own: before temperature, penalties, biases and grammars.
    rank: 1 where no token is likelier
    """

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


class TokenOutput(msgspec.Struct, frozen=True):
    """What one step gave one request; a token that ends it, such as the end-of-sequence one, is among token_ids.

    On the last one `finish_reason` is set, and for `FinishReason.ERROR` `error` says why.

    logprobs:         one entry for each of token_ids, where they were asked for
    prompt_logprobs:  with the first token; one entry for each prompt token but the first, which nothing predicts
    cached_tokens:    with the first token: of the prompt, those that were not computed for this request
    """

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    error: str | None = None
    kind: ErrorKind = ErrorKind.ENGINE
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    cached_tokens: int = 0


class MeasuredMemory(msgspec.Struct, frozen=True):
    """Where the device's memory is, in bytes. The parts, from weights to free, add up to `device_bytes`.

    activations:  the measured peak of a step, kept free for the next one
    other:        what no part explains
    free:         negative where the parts claim more than the device has
    peak:         the most that was taken at any reading, of those once a second
    """

    weights_bytes: int
    kv_pool_bytes: int
    activations_bytes: int
    other_bytes: int
    free_bytes: int
    device_bytes: int
    peak_bytes: int


class KvFormat(msgspec.Struct, frozen=True):
    """How KV is stored now.

    layers:       runs of layers that are stored alike: which ones ("0-29"), keys, values
    reencodable:  precisions of fewer bytes that the pool may become as it stands, the largest first
    larger:       those of more bytes, which it may become once nothing is live
    """

    precision: str
    layers: list[tuple[str, str, str]]
    reencodable: list[str] = []
    larger: list[str] = []


class EngineState(msgspec.Struct, frozen=True):
    """The numbers of `/v1/state` and `/metrics`, taken between two steps. `sampled_at` is Unix time in seconds.

    Blocks: live + cached + free = num_blocks, in all tables; a sequence has block_tables of these. The last seven
    count since the start: preemptions for want of blocks, tokens of prompts that were computed, tokens generated,
    requests that were not refused, tokens of prompts that were looked for in the prefix cache, those of them found
    there, and tokens that were computed again after their blocks were lost.
    """

    sampled_at: float
    kv: KvFormat
    num_blocks: int
    block_tables: int
    block_size_tokens: int
    live_blocks: int
    cached_blocks: int
    free_blocks: int
    live_tokens: int
    running: int
    waiting: int
    queued_prompt_tokens: int
    expected_output_tokens: int
    batch_limit: int
    max_batch_limit: int
    last_step_seconds: float
    memory: MeasuredMemory
    preemptions: int
    prompt_tokens: int
    generation_tokens: int
    requests: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    recomputed_tokens: int = 0

    @property
    def capacity_tokens(self) -> int:
        """Tokens that all blocks hold, in every table: the plan's capacity."""
        return self.tokens_of(self.num_blocks)

    def tokens_of(self, blocks: int) -> int:
        """Tokens that so many blocks hold where each table has its share of them."""
        return blocks * self.block_size_tokens // self.block_tables


class KvQuality(msgspec.Struct, frozen=True):
    """A precision's check at load; kld is in nats, None where logits were not finite."""

    precision: str
    kld: float | None
    limit: float
    passed: bool


class LoadReport(msgspec.Struct, frozen=True):
    """What was found and chosen while loading.

    kernels:   what attends: "torch", "triton", or "cpu-" and an instruction set
    fallback:  why KV is not stored as planned, as a sentence; None where it is
    """

    kernels: str
    weight_precision: str
    dtype: str
    quality: list[KvQuality] = []
    fallback: str | None = None


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Weights are loaded, the pool is allocated and touched, and one token was generated."""

    state: EngineState
    load_seconds: float
    report: LoadReport


class LoadProgress(msgspec.Struct, frozen=True, tag=True):
    """A line for a person who waits: `stage` is a verb phrase, such as 'loading weights'."""

    stage: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot go on; the process exits after this. `message` is for a person."""

    message: str


class StepOutputs(msgspec.Struct, frozen=True, tag=True):
    """After a step, or while idle with no outputs: what came out and how things stand."""

    outputs: list[TokenOutput]
    state: EngineState


class SequenceMap(msgspec.Struct, frozen=True):
    """One request and its blocks. A request that waits has none.

    written_tokens:  whose keys and values are in its blocks
    cached_tokens:   of its prompt, those that were found when it was first let in
    first_blocks:    of each table, how many blocks it gave back because they left the window
    blocks:          of each table, the ids, in the order of the tokens
    recent_blocks:   of each table, the ids of those with its last tokens in BF16
    """

    request_id: str
    running: bool
    priority: int
    preemptions: int
    prompt_tokens: int
    output_tokens: int
    written_tokens: int
    cached_tokens: int
    first_blocks: list[int]
    blocks: list[list[int]]
    recent_blocks: list[list[int]]


class PoolMap(msgspec.Struct, frozen=True, tag=True):
    """The KV pool, block by block. drawn: as `BlockManager.drawn` draws it."""

    block_size_tokens: int
    block_tables: int
    drawn: str
    sequences: list[SequenceMap]


class ReencodeError(enum.StrEnum):
    """Why KV is not stored as was asked: it never can be, it cannot now, or it was tried and failed."""

    NEVER = "invalid_value"
    NOT_NOW = "not_now"
    FAILED = "engine_error"


class Reencoded(msgspec.Struct, frozen=True, tag=True):
    """KV is stored as was asked, or an error says why it is not."""

    state: EngineState
    error: str | None = None
    kind: ReencodeError | None = None


Event = Ready | LoadProgress | Failed | StepOutputs | PoolMap | Reencoded
