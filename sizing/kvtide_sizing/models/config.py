"""The fields of a model's configuration, read with their types: each error names the model, the field and the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtide_sizing.errors import InvalidModel


class Config:
    """A model's configuration, in the fields of Hugging Face's config.json.

    name:      the model's, for errors
    defaults:  what a field is where it is absent, as the model's class in transformers has it; null stays null
    """

    def __init__(self, fields: Mapping[str, Any], name: str, defaults: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self._fields = {**(defaults or {}), **fields}

    def with_defaults(self, **defaults: Any) -> Config:
        """The same configuration, with what it is where it does not say."""
        return Config(self._fields, self.name, defaults)

    def replaced(self, **fields: Any) -> Config:
        """The same configuration with these fields; None takes one out."""
        return Config({**self._fields, **fields}, self.name)

    def without(self, key: str) -> Config:
        """The same configuration without a field that does not count."""
        return self.replaced(**{key: None})

    def nested(self, key: str) -> Config:
        """The configuration of a part of the model. Raises InvalidModel where it has none."""
        part = self.mapping(key)
        if not part:
            raise InvalidModel(f"the configuration of {self.name} has no {key}")
        return Config(part, self.name)

    def get(self, key: str) -> Any:
        """The field as it stands; None where it is absent or null."""
        return self._fields.get(key)

    def mapping(self, key: str) -> dict[str, Any]:
        """A field that is an object; empty where it is absent. Raises InvalidModel for anything else."""
        value = self._fields.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise InvalidModel(f"the configuration of {self.name} has no object of {key}: {value!r}")
        return value

    def size(self, key: str) -> int:
        """A field that is a whole number, 1 or more. Raises InvalidModel for anything else."""
        value = self.count(key)
        if value < 1:
            raise InvalidModel(f"{self.name} contradicts itself: its {key} is {value}; it is 1 or more")
        return value

    def size_or_none(self, key: str) -> int | None:
        """As `size`; None where the field is absent or null."""
        return None if self._fields.get(key) is None else self.size(key)

    def size_or(self, key: str, default: int) -> int:
        """As `size`; the default where the field is absent or null."""
        return default if self._fields.get(key) is None else self.size(key)

    def count(self, key: str) -> int:
        """A field that is a whole number, 0 or more. Raises InvalidModel for anything else."""
        value = self._fields.get(key)
        if type(value) is not int:
            raise InvalidModel(f"the configuration of {self.name} has no number of {key}: {value!r}")
        if value < 0:
            raise InvalidModel(f"{self.name} contradicts itself: its {key} is {value}; it is 0 or more")
        return value

    def flag(self, key: str) -> bool:
        """Whether a field is set; absent is not."""
        return bool(self._fields.get(key))

    def per_layer(self, key: str, num_layers: int) -> list[Any] | None:
        """A field with a value for each layer; None where it is absent. Raises InvalidModel for another length."""
        value = self._fields.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise InvalidModel(f"the configuration of {self.name} has no list of {key}: {value!r}")
        if len(value) != num_layers:
            raise InvalidModel(
                f"{self.name} contradicts itself: its {key} has {len(value)} layers, num_hidden_layers is {num_layers}"
            )
        return value
