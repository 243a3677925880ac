"""The bodies of requests, as OpenAI writes them; what is not honoured is refused in `unsupported`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from kvtide_worker.server.admission import AdmissionLimits
from kvtide_worker.server.conversation import MAX_TOOLS, ChatMessage, Tool
from kvtide_worker.server.response_format import Choices, ResponseFormat, Schema, StructuredOutputs
from kvtide_worker.server.unsupported import drop_neutral

MAX_STOP_STRINGS = 16
MAX_PROMPTS = 64
MAX_CHOICES = 128
MAX_BIASES = 1024
MAX_TOP_LOGPROBS = 20
_INT64 = 1 << 63

TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
TokenIds = Annotated[list[TokenId], Field(min_length=1)]
TokenKey = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
StopString = Annotated[str, Field(min_length=1, max_length=1024)]


def refused(param: str, message: str) -> PydanticCustomError:
    """What a validator raises about a field: the message as it is, and the field's name."""
    return PydanticCustomError("refused", "{message}", {"message": message, "param": param})


class StreamOptions(BaseModel):
    """`stream_options`: whether the last chunk tells the token counts."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False


class Body(BaseModel):
    """A JSON body whose unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """With null for every field that may be left out: clients send it for the default."""
        described = handler.resolve_ref_schema(handler(schema))
        properties = described.get("properties", {})
        for name in set(properties) - set(described.get("required", ())):
            properties[name] = {"anyOf": [properties[name], {"type": "null"}]}
        return described

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        return drop_neutral(data, {field.alias or name for name, field in cls.model_fields.items()})


class GenerationRequest(Body):
    """What chat and plain completions have in common. None is: the default.

    max_tokens:         default: what the context has room for
    top_k:              0 and -1 keep every token
    logit_bias:         token ids, which JSON writes as texts
    structured_outputs: vLLM's word for what an answer must match; guided_… are its older ones
    priority:           lower ones are served first
    cache_salt:         requests share what was computed of their prompts with those of the same salt alone
    timeout:            seconds until the request ends with an error, waiting or running; default: it does not
    user … service_tier: accepted; they change nothing here
    """

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: Annotated[dict[TokenKey, Bias], Field(max_length=MAX_BIASES)] | None = None
    seed: Annotated[int, Field(ge=-_INT64, lt=_INT64)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_STRINGS)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0)] = 0
    skip_special_tokens: bool = True
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    priority: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)] = 0
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    timeout: Annotated[float, Field(gt=0, le=86_400)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default"] | None = None

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings, of which one may be written alone."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def token_biases(self) -> dict[int, float]:
        """`logit_bias` by token id."""
        return {int(token): bias for token, bias in (self.logit_bias or {}).items()}

    @property
    def top_logprobs_wanted(self) -> int | None:
        """How many likeliest tokens are told at each place of the answer; None where nothing is told."""
        return None

    @property
    def scores_tokens(self) -> bool:
        """Whether log probabilities are told, of the answer's tokens or the prompt's."""
        return self.top_logprobs_wanted is not None or self.prompt_logprobs is not None

    @property
    def schema_to_match(self) -> dict[str, Any] | None:
        """The schema of the answer in OpenAI's words; None where it has none."""
        return None if self.response_format is None else self.response_format.schema_to_match

    @property
    def guided(self) -> StructuredOutputs | None:
        """What the answer must match in vLLM's words, old or new."""
        older = {
            "json": self.guided_json,
            "regex": self.guided_regex,
            "choice": self.guided_choice,
            "grammar": self.guided_grammar,
        }
        given = {name: value for name, value in older.items() if value is not None}
        return StructuredOutputs.model_validate(given) if given else self.structured_outputs

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise refused("stream_options", "'stream_options' is only allowed with stream: true")
        if self.prompt_logprobs is not None and self.stream:
            raise refused("prompt_logprobs", "'prompt_logprobs' are not given in a stream; leave stream out")
        return self

    @model_validator(mode="after")
    def _check_one_format(self) -> Self:
        asked = [
            name
            for name in ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
            if getattr(self, name) is not None
        ]
        if self.response_format is not None and self.response_format.type != "text":
            asked.append("response_format")
        if len(asked) > 1:
            raise refused(asked[1], f"an answer matches one thing: send one of {' and '.join(asked)}")
        if asked and self.min_tokens:
            raise refused("min_tokens", f"'min_tokens' is not supported with '{asked[0]}', which says what an end is")
        return self


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions.

    prompt:      text or token ids, or several of either: `n` choices for each
    max_tokens:  0 with echo: the prompt alone
    logprobs:    of each token, and of so many likeliest ones
    """

    prompt: str | TokenIds | Annotated[list[str | TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt."""
        if isinstance(self.prompt, list) and not isinstance(self.prompt[0], int):
            return self.prompt
        return [self.prompt]

    @property
    def top_logprobs_wanted(self) -> int | None:
        """As `GenerationRequest`'s."""
        return self.logprobs

    @field_validator("prompt", mode="before")
    @classmethod
    def _check_prompt(cls, prompt: Any) -> Any:
        """In one message, where each kind of prompt would have its own."""
        one = isinstance(prompt, str) or _are_token_ids(prompt)
        if not one and not (isinstance(prompt, list) and all(isinstance(p, str) or _are_token_ids(p) for p in prompt)):
            raise PydanticCustomError("prompt", "write a text, a list of token ids, or a list of either")
        if isinstance(prompt, list) and not 1 <= len(prompt) <= MAX_PROMPTS and not one:
            raise PydanticCustomError("prompt", f"write at least 1 prompt, and at most {MAX_PROMPTS}")
        return prompt

    @model_validator(mode="after")
    def _check_choices(self) -> Self:
        if len(self.prompts) * self.n > MAX_CHOICES:
            raise refused(
                "n", f"'n' {self.n} for {len(self.prompts)} prompts is more than {MAX_CHOICES} choices; send fewer"
            )
        if self.max_tokens == 0 and not self.echo:
            raise refused("max_tokens", "'max_tokens' is at least 1, or 0 with echo: true")
        return self


def _are_token_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 1 << 31 for token in value)
    )


class TokenizeRequest(Body):
    """The body of POST /tokenize: a text, or messages that are put through the chat template first."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("input", "send either 'prompt' or 'messages'", {"param": "prompt"})
        return self


class DetokenizeRequest(Body):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: list[TokenId]


class LimitsRequest(BaseModel):
    """The body of PUT /v1/limits on the admin port: what is left out stays as it is.

    maxWaiting…: null is again what the pool and the batch give
    kvPrecision: what the pool is re-encoded to
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    batchLimit: Annotated[int, Field(ge=1)] | None = None
    maxWaitingRequests: Annotated[int, Field(ge=0)] | None = None
    maxWaitingPromptTokens: Annotated[int, Field(ge=0)] | None = None
    admissionPaused: bool = False
    kvPrecision: str | None = None

    @field_validator("batchLimit", "kvPrecision", mode="before")
    @classmethod
    def _is_written(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None:
            what = "1 or more" if info.field_name == "batchLimit" else "a precision"
            raise refused(
                str(info.field_name), f"{info.field_name} has no default to go back to: write {what}, or leave it out"
            )
        return value

    def changed(self, limits: AdmissionLimits) -> AdmissionLimits:
        """The limits of admission with what is written here."""
        fields = {
            "maxWaitingRequests": "waiting_requests",
            "maxWaitingPromptTokens": "waiting_prompt_tokens",
            "admissionPaused": "paused",
        }
        written = self.model_fields_set & fields.keys()
        return replace(limits, **{fields[name]: getattr(self, name) for name in written})
