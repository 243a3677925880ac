"""A model's own chat template: messages in, prompt text out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatTemplateError(ValueError):
    """The template is broken, or it refused these messages; the message says which."""


class ChatTemplate:
    """A compiled template, with the helpers that Hugging Face's templates are written against.

    Source of the helpers: transformers/utils/chat_template_utils.py. The sandbox is needed because a template comes
    with the model, from strangers.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"the model's chat template is broken: {error}") from error
        self.source = source
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt for these messages, ending where the assistant is to speak.

        tools:      as OpenAI describes functions
        variables:  what some templates ask for beside it, such as Qwen's `enable_thinking`

        Raises ChatTemplateError where the template refuses them, such as for a role that the model does not know.
        """
        try:
            return self._template.render(
                {
                    **self._special_tokens,
                    **variables,
                    "messages": list(messages),
                    "tools": list(tools) or None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except Exception as error:  # whatever a template from strangers does with variables from others
            raise ChatTemplateError(f"the model's chat template refused these messages: {error}") from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Jinja's own filter escapes for HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
