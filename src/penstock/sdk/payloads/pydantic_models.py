"""Pydantic models, for applications that use pydantic. The SDK never imports it: an application that has a model has
imported it already.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol


class PydanticModel(Protocol):
    """The part of `pydantic.BaseModel` that a payload needs."""

    def model_dump(self, *, mode: str = ..., by_alias: bool | None = ...) -> dict[str, Any]: ...


def is_model_type(kind: object) -> bool:
    """Whether this is a subclass of `pydantic.BaseModel`, of version 2 or newer."""
    pydantic = sys.modules.get("pydantic")
    base = getattr(pydantic, "BaseModel", None)
    return (
        isinstance(base, type)
        and hasattr(base, "model_validate")
        and isinstance(kind, type)
        and issubclass(kind, base)
        and kind is not base
    )


def model_data(model: Any) -> Any:
    """The model as plain data. Aliases are used, because the model reads itself back by them."""
    return model.model_dump(mode="json", by_alias=True)


def is_validation_error(error: Exception) -> bool:
    """Whether the model refused the data; other exceptions come from the application's validators."""
    refused = getattr(sys.modules.get("pydantic"), "ValidationError", None)
    return isinstance(refused, type) and isinstance(error, refused)


def reasons_of(error: Any) -> str:
    """What a `pydantic.ValidationError` complains of, without the values: those are in the message."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{_path(each['loc'])}{each['msg']}" for each in found)


def _path(parts: tuple[str | int, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")
    return f"{text}: " if text else ""
