"""How a message is described: once, for all its versions.

A message is a frozen dataclass whose annotations are its wire layout, in wire order:

    @message(flexible_from=9)
    class MetadataRequest:
        topics: tuple[MetadataRequestTopic, ...] | None = nullable_since(1)
        allow_auto_topic_creation: bool = since(4, default=True)

Rules:
- Integers name their width (`i8` ... `i64`, `u16`, `u32`); `bool`, `float` (64 bits), `str`, `bytes`, `UUID`,
  `tuple[item, ...]` and other structs stand for themselves; `| None` makes a field nullable.
- A field that some version lacks has a default: decoding such a version yields it, encoding drops the value.
- From `flexible_from` on, lengths are varints and every struct ends with a section of tagged fields; `NEVER` is the
  `flexible_from` of a message that Kafka holds to be never flexible.
- Nested structs take the version and the flexibility of the message they stand in.

`columns` resolves a class for one version; `decoding` and `encoding` compile the result.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, dataclass_transform
from uuid import UUID

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fixed:
    """A value of constant size; `code` is its letter in the `struct` module's language."""

    code: str
    size: int


@dataclass(frozen=True, slots=True)
class Text:
    """UTF-8 behind a length."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes behind a length."""


@dataclass(frozen=True, slots=True)
class Struct:
    """Another described class, laid out in place."""

    cls: type


@dataclass(frozen=True, slots=True)
class Array:
    """Items behind a count; the array may be null, its items never are."""

    item: Kind


Kind = Fixed | Text | Blob | Struct | Array

UUID_CODE = "16s"

i8 = Annotated[int, Fixed("b", 1)]
i16 = Annotated[int, Fixed("h", 2)]
i32 = Annotated[int, Fixed("i", 4)]
i64 = Annotated[int, Fixed("q", 8)]
u16 = Annotated[int, Fixed("H", 2)]
u32 = Annotated[int, Fixed("I", 4)]

_PLAIN: dict[Any, Kind] = {
    bool: Fixed("?", 1),
    float: Fixed("d", 8),
    str: Text(),
    bytes: Blob(),
    UUID: Fixed(UUID_CODE, 16),
}

# As `flexible_from`: no version is flexible. Versions are numbers of two bytes.
NEVER = 2**15

_PRESENCE = "penstock.presence"
_FLEXIBLE_FROM = "__flexible_from__"


@dataclass(frozen=True, slots=True)
class _Presence:
    """In which versions a field is on the wire, where it may be null, and under which tag it travels."""

    first: int = 0
    last: int | None = None
    nullable_first: int = 0
    tag: int | None = None


_ALWAYS = _Presence()


def since(first: int, *, default: Any, until: int | None = None, nullable_since: int = 0) -> Any:
    """A field on the wire from version `first` to version `until`, both included."""
    return _field(_Presence(first=first, last=until, nullable_first=nullable_since), default)


def until(last: int, *, default: Any) -> Any:
    """A field that versions after `last` no longer have."""
    return _field(_Presence(last=last), default)


def nullable_since(first: int, *, default: Any = dataclasses.MISSING) -> Any:
    """A field of all versions that may be null from version `first` on."""
    return _field(_Presence(nullable_first=first), default)


def tagged(tag: int, *, since: int, default: Any) -> Any:
    """An optional field in the tagged section, written only when it differs from its default."""
    return _field(_Presence(first=since, tag=tag), default)


def _field(presence: _Presence, default: Any) -> Any:
    return dataclasses.field(default=default, metadata={_PRESENCE: presence})


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(since, until, nullable_since, tagged),
)
def struct(cls: type[T]) -> type[T]:
    """Describes a part of a message.

    The type checker holds it to be frozen. Comparison and representation are shared by all described classes:
    generating them for each would be a large part of the broker's start-up time.
    """
    described = dataclass(slots=True, kw_only=True, repr=False, eq=False)(cls)
    for name, method in (("__eq__", _is_equal), ("__hash__", _hash), ("__repr__", _represent)):
        setattr(described, name, method)
    return described


def _values(described: Any) -> tuple[Any, ...]:
    return tuple(getattr(described, name) for name in described.__slots__)


def _is_equal(left: Any, right: object) -> bool:
    return type(left) is type(right) and _values(left) == _values(right)


def _hash(described: Any) -> int:
    return hash(_values(described))


def _represent(described: Any) -> str:
    fields = ", ".join(f"{name}={getattr(described, name)!r}" for name in described.__slots__)
    return f"{type(described).__name__}({fields})"


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(since, until, nullable_since, tagged),
)
def message(*, flexible_from: int) -> Callable[[type[T]], type[T]]:
    """Describes a whole request or response body."""

    def describe(cls: type[T]) -> type[T]:
        described = struct(cls)
        setattr(described, _FLEXIBLE_FROM, flexible_from)
        return described

    return describe


def flexible_from(cls: type) -> int:
    """The first version of a message with varint lengths and tagged fields."""
    first: int = getattr(cls, _FLEXIBLE_FROM)
    return first


@dataclass(frozen=True, slots=True)
class Column:
    """One field as one version has it."""

    name: str
    kind: Kind
    nullable: bool
    tag: int | None
    default: Any


def columns(cls: type, version: int) -> tuple[Column, ...]:
    """The fields that `version` has, untagged ones in wire order, then the tagged ones by tag."""
    hints = typing.get_type_hints(cls, include_extras=True)
    found = []
    for field in dataclasses.fields(cls):
        presence: _Presence = field.metadata.get(_PRESENCE, _ALWAYS)
        if version < presence.first or (presence.last is not None and version > presence.last):
            continue
        inner, optional = _without_none(hints[field.name])
        nullable = optional and version >= presence.nullable_first
        found.append(Column(field.name, _kind(inner), nullable, presence.tag, field.default))
    return tuple(sorted(found, key=lambda column: -1 if column.tag is None else column.tag))


def smallest_size(kind: Kind, version: int, flexible: bool) -> int:
    """The fewest bytes a value can take, by which a hostile array count is refused before its loop."""
    match kind:
        case Fixed():
            return kind.size
        case Text():
            return 1 if flexible else 2
        case Struct():
            present = [column for column in columns(kind.cls, version) if column.tag is None]
            sizes = (_smallest_column(column, version, flexible) for column in present)
            return sum(sizes) + (1 if flexible else 0)
        case _:
            return 1 if flexible else 4


def _smallest_column(column: Column, version: int, flexible: bool) -> int:
    if column.nullable and isinstance(column.kind, Struct):
        return 1
    return smallest_size(column.kind, version, flexible)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    (inner,) = (argument for argument in typing.get_args(hint) if argument is not type(None))
    return inner, True


def _kind(hint: Any) -> Kind:
    if typing.get_origin(hint) is Annotated:
        fixed: Fixed = hint.__metadata__[0]
        return fixed
    if typing.get_origin(hint) is tuple:
        return Array(_kind(typing.get_args(hint)[0]))
    if hint in _PLAIN:
        return _PLAIN[hint]
    if dataclasses.is_dataclass(hint):
        return Struct(typing.cast(type, hint))
    raise TypeError(f"{hint!r} has no place in the Kafka protocol")
