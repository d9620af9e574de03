"""Plain data as the types of an application: dataclasses and what their fields can be, and pydantic models.

A decoder is made once, when a handler is registered, so that a type that cannot be decoded is noticed then. It is
strict: it converts nothing that could be a mistake of the sender. Two exceptions make life easier: fields that the type
does not have are ignored, so that senders can add fields, and a whole number is a `float` too.

Errors name the field and never quote a value: they end up in logs, the value is in the dead letter.
"""

from __future__ import annotations

import binascii
import dataclasses
import json
import types
import typing
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum, Flag
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin
from uuid import UUID

from penstock.sdk.errors import DecodeError, InvalidInputError
from penstock.sdk.payloads.plain_data import NotPlainError, plain
from penstock.sdk.payloads.pydantic_models import is_model_type, is_validation_error, reasons_of
from penstock.sdk.problem_log import error_line

_KINDS: Mapping[type, str] = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    bytes: "a text",
    list: "a list",
    tuple: "a list",
    dict: "an object",
}
"""What the types of plain data are called. Some codecs have bytes, and tuples for lists."""
_EVERY_KIND = frozenset(_KINDS.values())
_MAX_NAMED = 10
"""An error lists up to this many allowed values."""


class _Mismatch(Exception):
    """Data that does not fit. The enclosing decoder adds the place."""

    def __init__(self, reason: str, *, is_missing: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_missing = is_missing
        self.path = ""

    def at(self, step: str) -> _Mismatch:
        self.path = step + self.path
        return self

    def __str__(self) -> str:
        path = self.path.removeprefix(".")
        return f"{path} {self.reason}" if self.is_missing else f"{path}: {self.reason}" if path else self.reason


@dataclass(frozen=True, slots=True)
class _Decoder:
    """Decodes one type."""

    kinds: frozenset[str]
    """The kinds of data that it takes; what tells the members of a union apart."""
    decode: Callable[[Any], Any]
    """Raises `_Mismatch`."""


@dataclass(frozen=True, slots=True)
class PayloadType:
    """What the value of a message is decoded to."""

    name: str
    is_optional: bool
    """Whether a message without a value is None."""
    _decode: Callable[[Any], Any]
    _decode_json: Callable[[bytes], Any] | None
    """Reads JSON itself: a pydantic model knows more about JSON than about plain data."""

    @property
    def reads_json(self) -> bool:
        return self._decode_json is not None

    def from_json(self, value: bytes) -> Any:
        """Raises `DecodeError`."""
        assert self._decode_json is not None
        return self._checked(self._decode_json, value)

    def from_data(self, data: Any) -> Any:
        """Raises `DecodeError`."""
        return self._checked(self._decode, data)

    def _checked(self, decode: Callable[[Any], Any], data: Any) -> Any:
        try:
            return decode(data)
        except _Mismatch as error:
            raise DecodeError(f"not a valid {self.name}: {error}") from error.__cause__
        except RecursionError:
            raise DecodeError(f"not a valid {self.name}: nested too deeply") from None


def payload_type(annotation: Any) -> PayloadType:
    """How to decode to a dataclass or a pydantic model, or to one of them or None.

    Raises:
        InvalidInputError: The annotation is something else, or a field has a type that cannot be decoded.
    """
    members = _members(annotation)
    kinds = [each for each in members if each is not type(None)]
    if len(kinds) != 1 or not (_is_dataclass_type(kinds[0]) or is_model_type(kinds[0])):
        raise InvalidInputError(f"{_name(annotation)} is neither a dataclass nor a pydantic model")
    (kind,) = kinds
    decoder = _DecoderFactory().decoder(annotation, kind.__name__)
    reads_json = is_model_type(kind) and len(members) == 1
    return PayloadType(kind.__name__, len(members) > 1, decoder.decode, _model_from_json(kind) if reads_json else None)


cached_payload_type = lru_cache(maxsize=1024)(payload_type)
"""For callers that have no place to keep it."""


class _DecoderFactory:
    """Makes the decoder of a type and of everything in it."""

    def __init__(self) -> None:
        self._dataclasses: dict[type, _Decoder] = {}
        """Also those that are being made: a dataclass may contain itself."""

    def decoder(self, kind: Any, where: str) -> _Decoder:
        """`where` names the place of the type in errors, such as `Order.lines`."""
        kind = _resolved(kind)
        if kind is Any or kind is object:
            return _Decoder(_EVERY_KIND, lambda data: data)
        if kind in _SCALARS:
            return _SCALARS[kind]
        # Members of an Enum can be dataclasses too.
        if isinstance(kind, type) and issubclass(kind, Enum):
            return _enum(kind, where)
        if _is_dataclass_type(kind):
            return self._dataclass(kind, where)
        if is_model_type(kind):
            return _model(kind)
        origin, given = get_origin(kind) or kind, get_args(kind)
        if origin is Literal:
            return _choice(given, given)
        if origin in (Union, types.UnionType):
            return self._union(given, where)
        if origin in (list, set, frozenset):
            return self._many(origin, given[0] if given else Any, where)
        if origin is tuple:
            return self._tuple(given, where)
        if origin is dict:
            return self._dict(given or (str, Any), where)
        raise InvalidInputError(
            f"{where}: a message cannot be decoded to {_name(kind)}; use dataclasses, pydantic models, str, int, "
            "float, bool, bytes, Decimal, datetime, date, UUID, Enum, Literal, list, tuple, set, dict and None"
        )

    def _dataclass(self, kind: type, where: str) -> _Decoder:
        known = self._dataclasses.get(kind)
        if known is not None:
            return known
        fields: list[_FieldDecoder] = []
        made = self._dataclasses[kind] = _Decoder(frozenset({"an object"}), _dataclass_decode(kind, fields))
        try:
            hints = typing.get_type_hints(kind, localns={kind.__name__: kind})
        except Exception as error:
            raise InvalidInputError(
                f"{where}: the fields of {_name(kind)} cannot be read: {error_line(error)}"
            ) from None
        for name, hint in hints.items():
            if isinstance(hint, dataclasses.InitVar):
                raise InvalidInputError(f"{_name(kind)}.{name} is an InitVar, which a message cannot carry")
        for each in dataclasses.fields(kind):
            if each.init:
                decoder = self.decoder(hints[each.name], f"{_name(kind)}.{each.name}")
                is_required = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
                fields.append(_FieldDecoder(each.name, is_required, decoder.decode))
        return made

    def _union(self, members: Sequence[Any], where: str) -> _Decoder:
        by_kind: dict[str, _Decoder] = {}
        taken: dict[str, Any] = {}
        for member in members:
            decoder = self.decoder(member, where)
            for kind in decoder.kinds:
                if kind in by_kind:
                    raise InvalidInputError(
                        f"{where}: {_name(taken[kind])} and {_name(member)} cannot be told apart in a message: "
                        f"both are {kind}"
                    )
                by_kind[kind], taken[kind] = decoder, member

        def decode(data: Any) -> Any:
            decoder = by_kind.get(_kind(data))
            if decoder is None:
                raise _unexpected(" or ".join(sorted(by_kind)), data)
            return decoder.decode(data)

        return _Decoder(frozenset(by_kind), decode)

    def _many(self, make: Callable[[list[Any]], Any], inner: Any, where: str) -> _Decoder:
        decode_one = self.decoder(inner, f"{where}[]").decode

        def decode(data: Any) -> Any:
            found = [_at(f"[{number}]", decode_one, each) for number, each in enumerate(_listed(data))]
            try:
                return make(found)
            except TypeError:
                # A set of what cannot be in a set.
                raise _Mismatch("has elements that cannot be in a set") from None

        return _Decoder(frozenset({"a list"}), decode)

    def _tuple(self, given: Sequence[Any], where: str) -> _Decoder:
        if not given or (len(given) == 2 and given[1] is Ellipsis):
            return self._many(tuple, given[0] if given else Any, where)
        inner = [self.decoder(each, f"{where}[{number}]").decode for number, each in enumerate(given)]

        def decode(data: Any) -> Any:
            found = _listed(data)
            if len(found) != len(inner):
                raise _Mismatch(f"expected a list of {len(inner)}, not of {len(found)}")
            return tuple(
                _at(f"[{number}]", one, each) for number, (one, each) in enumerate(zip(inner, found, strict=True))
            )

        return _Decoder(frozenset({"a list"}), decode)

    def _dict(self, given: Sequence[Any], where: str) -> _Decoder:
        key = self.decoder(given[0], f"keys of {where}")
        if "a text" not in key.kinds:
            raise InvalidInputError(f"{where}: the keys of a message are texts, not {_name(given[0])}")
        decode_one = self.decoder(given[1], f"{where}[]").decode

        def decode(data: Any) -> Any:
            if not isinstance(data, dict):
                raise _unexpected("an object", data)
            return {
                _at(f" key {name!r}", key.decode, name): _at(f"[{name!r}]", decode_one, each)
                for name, each in data.items()
            }

        return _Decoder(frozenset({"an object"}), decode)


@dataclass(frozen=True, slots=True)
class _FieldDecoder:
    name: str
    is_required: bool
    decode: Callable[[Any], Any]
    step: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", f".{self.name}")


def _dataclass_decode(kind: type, fields: Sequence[_FieldDecoder]) -> Callable[[Any], Any]:
    def decode(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _unexpected("an object", data)
        given = {}
        for each in fields:
            if each.name in data:
                given[each.name] = _at(each.step, each.decode, data[each.name])
            elif each.is_required:
                raise _Mismatch("is missing", is_missing=True).at(each.step)
        try:
            return kind(**given)
        except Exception as error:
            # The application checks its own rules, in `__post_init__` as a rule.
            raise _Mismatch(error_line(error)) from error

    return decode


def _model(kind: Any) -> _Decoder:
    def decode(data: Any) -> Any:
        # As JSON: in this mode a strict model takes a text for a datetime, and that is how models are encoded.
        try:
            value = json.dumps(data)
        except (TypeError, ValueError):
            # Another codec may have bytes.
            return _validated(kind.model_validate, data)
        return _validated(kind.model_validate_json, value)

    # A root model can be anything, so that nothing stands beside it in a union but None.
    is_root = "root" in kind.model_fields
    return _Decoder(_EVERY_KIND - {"null"} if is_root else frozenset({"an object"}), decode)


def _model_from_json(kind: Any) -> Callable[[bytes], Any]:
    def decode(value: bytes) -> Any:
        return _validated(kind.model_validate_json, value)

    return decode


def _validated(validate: Callable[[Any], Any], given: Any) -> Any:
    try:
        return validate(given)
    except RecursionError:
        raise
    except Exception as error:
        if is_validation_error(error):
            raise _Mismatch(reasons_of(error)) from None
        raise _Mismatch(error_line(error)) from error


def _enum(kind: type[Enum], where: str) -> _Decoder:
    if issubclass(kind, Flag):
        raise InvalidInputError(f"{where}: a message cannot be decoded to {_name(kind)}, which is a Flag; use an int")
    try:
        return _choice([plain(member.value) for member in kind], list(kind))
    except NotPlainError as error:
        raise InvalidInputError(f"{where}: a message cannot be decoded to {_name(kind)}: {error}") from None


def _choice(data: Sequence[Any], values: Sequence[Any]) -> _Decoder:
    plain_data = [plain(each) for each in data]
    known = {(type(each), repr(each)): value for each, value in zip(plain_data, values, strict=True)}
    shown = ", ".join(repr(each) for each in plain_data[:_MAX_NAMED]) + (", ..." if len(data) > _MAX_NAMED else "")

    def decode(data: Any) -> Any:
        # By type and text, because True == 1 == 1.0.
        try:
            return known[type(data), repr(data)]
        except KeyError:
            raise _Mismatch(f"expected one of {shown}") from None

    return _Decoder(frozenset(map(_kind, plain_data)), decode)


def _none(data: Any) -> None:
    if data is not None:
        raise _unexpected("null", data)


def _bool(data: Any) -> bool:
    if not isinstance(data, bool):
        raise _unexpected("true or false", data)
    return data


def _int(data: Any) -> int:
    if not isinstance(data, int) or isinstance(data, bool):
        raise _unexpected("a whole number", data)
    return data


def _float(data: Any) -> float:
    if not isinstance(data, int | float) or isinstance(data, bool):
        raise _unexpected("a number", data)
    try:
        return float(data)
    except OverflowError:
        raise _Mismatch("the number is too large") from None


def _str(data: Any) -> str:
    if not isinstance(data, str):
        raise _unexpected("a text", data)
    return data


def _bytes(data: Any) -> bytes:
    if isinstance(data, bytes):
        return data
    try:
        return b64decode(_str(data), validate=True)
    except (binascii.Error, ValueError):
        raise _Mismatch("expected bytes in base64") from None


def _decimal(data: Any) -> Decimal:
    if isinstance(data, float):
        raise _Mismatch("expected a decimal number as a text or a whole number, not a number that may be rounded")
    try:
        found = Decimal(_int(data) if isinstance(data, int) else _str(data))
    except InvalidOperation:
        raise _Mismatch("expected a decimal number") from None
    if not found.is_finite():
        raise _Mismatch("expected a finite decimal number")
    return found


def _text_as(make: Callable[[str], Any], expected: str) -> Callable[[Any], Any]:
    def decode(data: Any) -> Any:
        try:
            return make(_str(data))
        except ValueError:
            raise _Mismatch(f"expected {expected}") from None

    return decode


_TEXT, _NUMBER = frozenset({"a text"}), frozenset({"a number"})
_SCALARS: Mapping[Any, _Decoder] = {
    None: _Decoder(frozenset({"null"}), _none),
    type(None): _Decoder(frozenset({"null"}), _none),
    bool: _Decoder(frozenset({"true or false"}), _bool),
    int: _Decoder(_NUMBER, _int),
    float: _Decoder(_NUMBER, _float),
    str: _Decoder(_TEXT, _str),
    bytes: _Decoder(_TEXT, _bytes),
    Decimal: _Decoder(_TEXT | _NUMBER, _decimal),
    datetime: _Decoder(_TEXT, _text_as(datetime.fromisoformat, "a date and time in ISO 8601")),
    date: _Decoder(_TEXT, _text_as(date.fromisoformat, "a date in ISO 8601")),
    UUID: _Decoder(_TEXT, _text_as(UUID, "a UUID")),
}


def _at(step: str, decode: Callable[[Any], Any], data: Any) -> Any:
    try:
        return decode(data)
    except _Mismatch as error:
        error.at(step)
        raise


def _listed(data: Any) -> Sequence[Any]:
    if not isinstance(data, list | tuple):
        raise _unexpected("a list", data)
    return data


def _unexpected(expected: str, data: Any) -> _Mismatch:
    return _Mismatch(f"expected {expected}, not {_kind(data)}")


def _kind(data: Any) -> str:
    return _KINDS.get(type(data), type(data).__name__)


def _is_dataclass_type(kind: object) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _members(annotation: Any) -> tuple[Any, ...]:
    annotation = _resolved(annotation)
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _resolved(kind: Any) -> Any:
    """What is behind a `NewType`, an alias (`type Lines = ...`) or `Annotated`."""
    while True:
        if isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        elif type(kind).__name__ == "TypeAliasType":
            kind = kind.__value__
        elif get_origin(kind) is typing.Annotated:
            kind = get_args(kind)[0]
        else:
            return kind


def _name(kind: Any) -> str:
    if kind is type(None):
        return "None"
    return kind.__qualname__ if isinstance(kind, type) and not get_args(kind) else str(kind).removeprefix("typing.")
