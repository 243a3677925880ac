"""What an answer must look like: OpenAI's `response_format`, and vLLM's words for the same and more."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, Self

from llguidance import LLMatcher
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

# How llguidance writes JSON. White space between the parts of an answer has an end: models that lose the thread write
# it for ever. Arguments of calls, which only programs read, are written in one way.
ANSWER_JSON = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}"}
ARGUMENTS_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=1024)]
Schema = dict[str, Any] | str


class JsonSchema(BaseModel):
    """A named schema. strict: accepted, and always so."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")] = {}
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """`response_format`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError(
                "schema",
                "'json_schema' goes with the type json_schema, and only with it",
                {"param": "response_format"},
            )
        return self

    @property
    def schema_to_match(self) -> dict[str, Any] | None:
        """The schema of the answer; None where it is free text."""
        if self.type == "text":
            return None
        return {"type": "object"} if self.json_schema is None else self.json_schema.schema_


class StructuredOutputs(BaseModel):
    """vLLM's `structured_outputs`: one of these. grammar: in llguidance's Lark."""

    model_config = ConfigDict(extra="forbid", strict=True)

    json_: Annotated[Schema | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        given = [value for value in (self.json_, self.regex, self.choice, self.grammar) if value is not None]
        if len(given) + bool(self.json_object) != 1:
            raise PydanticCustomError(
                "structured_outputs",
                "'structured_outputs' takes one of json, json_object, regex, choice and grammar",
                {"param": "structured_outputs"},
            )
        return self


def json_grammar(schema: Schema) -> str:
    """llguidance's grammar of a JSON Schema, not checked yet. Raises ValueError for a text that is no JSON object."""
    if isinstance(schema, str):
        schema = json.loads(schema)
        if not isinstance(schema, dict):
            raise ValueError("a JSON Schema is a JSON object")
    return LLMatcher.grammar_from_json_schema(schema, defaults=ANSWER_JSON)  # type: ignore[arg-type]


def structured_grammar(asked: StructuredOutputs) -> str:
    """llguidance's grammar, not checked yet. Raises ValueError for a schema that is no JSON object."""
    if asked.json_ is not None:
        return json_grammar(asked.json_)
    if asked.regex is not None:
        return LLMatcher.grammar_from_regex(asked.regex)
    if asked.choice is not None:
        return LLMatcher.grammar_from_regex("|".join(f"({re.escape(choice)})" for choice in asked.choice))
    if asked.grammar is not None:
        return LLMatcher.grammar_from_lark(asked.grammar)
    return json_grammar({"type": "object"})
