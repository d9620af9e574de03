"""Objects as plain data, which every codec can write: None, True and False, numbers, text, lists, and dicts with text
as keys. Pure.
"""

from __future__ import annotations

import dataclasses
from base64 import b64encode
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from penstock.sdk.payloads.pydantic_models import is_model_type, model_data

_AS_IT_IS = (type(None), bool, int, float, str)


class NotPlainError(Exception):
    """Something has no plain form. `path` says where it is in the object."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path = ""

    def __str__(self) -> str:
        return f"{self.path.removeprefix('.')}: {self.args[0]}" if self.path else str(self.args[0])


def is_object(value: object) -> bool:
    """Whether it is an object that `plain` takes as a whole payload: a dataclass or a pydantic model."""
    return not isinstance(value, type) and (dataclasses.is_dataclass(value) or is_model_type(type(value)))


def plain(value: Any) -> Any:
    """The plain data of a value. Raises `NotPlainError`."""
    if type(value) in _AS_IT_IS:
        return value
    # Members of an Enum can be texts and numbers too, and datetimes are dates.
    if isinstance(value, Enum):
        return plain(value.value)
    if is_object(value):
        return model_data(value) if is_model_type(type(value)) else _fields(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_inner(f"[{number}]", each) for number, each in enumerate(value)]
    if isinstance(value, Mapping):
        return {_key(key): _inner(f"[{key!r}]", each) for key, each in value.items()}
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise NotPlainError(f"{value} is not a finite number")
        return str(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    # Subclasses, such as a text that knows what it is about.
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise NotPlainError(f"objects of {type(value).__name__} cannot be encoded")


def _fields(value: Any) -> dict[str, Any]:
    """Fields that are not passed to the constructor are computed from the others, so they are left out."""
    return {
        field.name: _inner(f".{field.name}", getattr(value, field.name))
        for field in dataclasses.fields(value)
        if field.init
    }


def _inner(step: str, value: Any) -> Any:
    try:
        return plain(value)
    except NotPlainError as error:
        error.path = step + error.path
        raise


def _key(key: Any) -> str:
    found = plain(key)
    if not isinstance(found, str):
        raise NotPlainError(f"the key {key!r} is not a text")
    return found
