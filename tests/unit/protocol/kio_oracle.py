"""kio, an independent implementation of the protocol, as the judge of ours.

A message is passed between the two as a plain value: a dict by Kafka's field names, with lists for arrays,
milliseconds for durations and times, numbers for error codes. Random plain values are drawn from kio's own
description of a version, so a field that ours lacks, has too much, or has elsewhere is found.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib
import io
import re
import typing
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from penstock.ids import NO_TOPIC_ID
from penstock.protocol.apis import Api

_INTEGERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DURATIONS = {"timedelta_i32": 2**31, "timedelta_i64": 2**40}
_TIMES = (*_DURATIONS, "datetime_i64")


def kio_class(api: Api, version: int, kind: str) -> Any:
    """kio's class for the `Request` or `Response` of an API."""
    folder = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api.name).lower()
    module = importlib.import_module(f"kio.schema.{folder}.v{version}")
    return getattr(module, api.name + kind)


@dataclasses.dataclass(frozen=True)
class _Field:
    kio_name: str
    name: str
    kind: str
    array: bool
    nullable: bool
    # Whether kio says None where the wire has no null: for the id of all zeros, and for the time of -1.
    none_stands_for_a_value: bool
    entity: Any


def _read_fields(cls: Any) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        arguments = [hint, *typing.get_args(hint)]
        arguments += [inner for argument in arguments for inner in typing.get_args(argument)]
        entity = next((argument for argument in arguments if dataclasses.is_dataclass(argument)), None)
        kind = field.metadata.get("kafka_type", "struct")
        optional = type(None) in arguments
        found.append(
            _Field(
                kio_name=field.name,
                name=field.name + "_ms" if kind in _TIMES else field.name,
                kind=kind,
                array=any(typing.get_origin(argument) is tuple for argument in arguments),
                nullable=optional and kind not in ("uuid", "datetime_i64"),
                none_stands_for_a_value=optional and kind in ("uuid", "datetime_i64"),
                entity=entity,
            )
        )
    return tuple(found)


_fields: Callable[[Any], tuple[_Field, ...]] = functools.cache(_read_fields)
_type_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


@functools.cache
def plain_values(cls: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Plain values of a kio class. Hypothesis checks each new strategy, which takes longer than to draw from it."""
    return st.fixed_dictionaries({field.name: _field_values(field) for field in _fields(cls)})


def _field_values(field: _Field) -> st.SearchStrategy[Any]:
    one = _single_values(field)
    values: st.SearchStrategy[Any] = st.lists(one, max_size=3) if field.array else one
    return st.none() | values if field.nullable else values


def _single_values(field: _Field) -> st.SearchStrategy[Any]:
    match field.kind:
        case "struct":
            return plain_values(field.entity)
        case "string":
            return st.text(max_size=12) | st.sampled_from(["x" * 126, "x" * 127, "x" * 300])
        case "bytes" | "records":
            return st.binary(max_size=12) | st.sampled_from([b"x" * 126, b"x" * 127, b"x" * 20_000])
        case "uuid":
            return st.just(NO_TOPIC_ID) | st.uuids()
        case "bool":
            return st.booleans()
        case "float64":
            return st.floats(allow_nan=False)
        case "error_code":
            return st.sampled_from([code.value for code in ErrorCode])
        case "timedelta_i32" | "timedelta_i64" as duration:
            return st.integers(-_DURATIONS[duration], _DURATIONS[duration] - 1)
        case "datetime_i64":
            times = st.integers(0, 2_000_000_000).map(lambda seconds: seconds * 1000)
            return st.just(-1) | times if field.none_stands_for_a_value else times
        case kind:
            bits = _INTEGERS[kind]
            return st.integers(-(2**bits), 2**bits - 1)


def crowded_values(cls: Any, count: int, text: str) -> Iterator[dict[str, Any]]:
    """Plain values with `count` small items in one of their arrays, for each array in turn."""
    for field in _fields(cls):
        if not field.array:
            continue
        yield {**_small_value(cls, text), field.name: [_small_single(field, text)] * count}
        if field.entity is not None:
            for item in crowded_values(field.entity, count, text):
                yield {**_small_value(cls, text), field.name: [item]}


def _small_value(cls: Any, text: str) -> dict[str, Any]:
    return {
        field.name: [] if field.array else None if field.nullable else _small_single(field, text)
        for field in _fields(cls)
    }


def _small_single(field: _Field, text: str) -> Any:
    match field.kind:
        case "struct":
            return _small_value(field.entity, text)
        case "string":
            return text
        case "bytes" | "records":
            return text.encode()
        case "uuid":
            return UUID(int=2**128 - 1)
        case kind:
            # As large as they come, so that the number is an object of its own.
            return 2 ** _INTEGERS[kind] - 1 if kind in _INTEGERS else 0


def to_kio(cls: Any, plain: dict[str, Any]) -> Any:
    return cls(**{field.kio_name: _to_kio_field(field, plain[field.name]) for field in _fields(cls)})


def _to_kio_field(field: _Field, value: Any) -> Any:
    if value is None:
        return None
    if field.array:
        return tuple(_to_kio_single(field, item) for item in value)
    return _to_kio_single(field, value)


def _to_kio_single(field: _Field, value: Any) -> Any:
    match field.kind:
        case "struct":
            return to_kio(field.entity, value)
        case "uuid":
            return None if value == NO_TOPIC_ID else value
        case "error_code":
            return ErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=value)
        case "datetime_i64":
            return None if value == -1 else _EPOCH + datetime.timedelta(milliseconds=value)
        case _:
            return value


def from_kio(entity: Any) -> dict[str, Any]:
    return {field.name: _from_kio_field(field, getattr(entity, field.kio_name)) for field in _fields(type(entity))}


def _from_kio_field(field: _Field, value: Any) -> Any:
    if field.array:
        return None if value is None else [_from_kio_single(field, item) for item in value]
    return _from_kio_single(field, value)


def _from_kio_single(field: _Field, value: Any) -> Any:
    if value is None:
        return {"uuid": NO_TOPIC_ID, "datetime_i64": -1}.get(field.kind)
    match field.kind:
        case "struct":
            return from_kio(value)
        case "error_code":
            return value.value
        case "timedelta_i32" | "timedelta_i64":
            return value // datetime.timedelta(milliseconds=1)
        case "datetime_i64":
            return (value - _EPOCH) // datetime.timedelta(milliseconds=1)
        case _:
            return value


def kio_write(cls: Any, plain: dict[str, Any]) -> bytes:
    with io.BytesIO() as buffer:
        entity_writer(cls)(buffer, to_kio(cls, plain))
        return buffer.getvalue()


def kio_read(cls: Any, data: bytes) -> dict[str, Any]:
    """Reads a message, which must take all of `data`."""
    entity, size = entity_reader(cls)(data, 0)
    assert size == len(data)
    return from_kio(entity)


def to_ours(cls: Any, plain: dict[str, Any]) -> Any:
    """Our message of a plain value."""
    hints = _type_hints(cls)
    return cls(**{name: _to_ours_field(hints[name], value) for name, value in plain.items()})


def _to_ours_field(hint: Any, value: Any) -> Any:
    arguments = [hint, *typing.get_args(hint)]
    arguments += [inner for argument in arguments for inner in typing.get_args(argument)]
    struct = next((argument for argument in arguments if dataclasses.is_dataclass(argument)), None)
    if isinstance(value, list):
        return tuple(item if struct is None else to_ours(struct, item) for item in value)
    if isinstance(value, dict):
        return to_ours(struct, value)
    assert value is None or isinstance(value, int | float | str | bytes | UUID)
    return value
