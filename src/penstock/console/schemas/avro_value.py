"""Reading one Avro value as plain data for JSON. Pure.

fastavro parses the schema. The value is read here and not by fastavro: its reader recurses in C without a bound, so a
message of nested records ends the process, and it reads an array of a quadrillion nulls for as long as that takes. This
reader counts what it reads.

    long          zigzag, 7 bits a byte, the lowest first
    bytes, string length as long, then so many bytes
    array, map    blocks: count as long (negative: a length in bytes follows), items; a count of 0 ends it
    union         index of the branch as long, then its value
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from penstock.console.schemas.decode_error import MAX_NAME, MAX_NESTING, MAX_VALUES, DecodeError

_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")
_MAX_LONG_BYTES = 10
_MAX_DECIMAL_BYTES = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMPS = {
    "timestamp-millis": 1_000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1_000,
    "local-timestamp-micros": 1,
}
_TIMES = {"time-millis": 1_000, "time-micros": 1}


class AvroSchema:
    """A schema that values are read with."""

    def __init__(self, text: str) -> None:
        """ValueError if it is none, or is larger than values are read with."""
        from fastavro.schema import SchemaParseException, UnknownType, parse_schema

        try:
            given: Any = json.loads(text)
        except RecursionError:
            raise ValueError("the schema is nested too deeply") from None
        _check_size(given)
        named: dict[str, Any] = {}
        try:
            self._root: Any = parse_schema(given, named_schemas=named)
        except (SchemaParseException, UnknownType, KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"it is no Avro schema: {type(error).__name__}: {error}") from None
        for each in (self._root, *named.values()):
            _check_parts(each, named)
        self._named: Mapping[str, Any] = named

    def decode(self, data: memoryview) -> Any:
        """The value that the data is, to its last byte; DecodeError if it is not one."""
        reader = _Reader(data, self._named)
        found = reader.value(self._root, 0)
        if reader.at != len(data):
            raise DecodeError(f"{len(data) - reader.at} bytes are left behind the value")
        return found


class _Reader:
    """A position in the bytes of one value, and how much may still be read."""

    def __init__(self, data: memoryview, named: Mapping[str, Any]) -> None:
        self._data = data
        self._named = named
        self._left = MAX_VALUES
        self.at = 0

    def value(self, schema: Any, depth: int) -> Any:
        if depth > MAX_NESTING:
            raise DecodeError(f"the value is nested more than {MAX_NESTING} levels deep")
        self._left -= 1
        if self._left < 0:
            raise DecodeError(f"the value has more than {MAX_VALUES} parts")
        if isinstance(schema, list):
            return self.value(self._branch(schema), depth + 1)
        kind = schema["type"] if isinstance(schema, dict) else schema
        primitive = _PRIMITIVES.get(kind) if isinstance(kind, str) else None
        if primitive is not None:
            read = primitive(self)
            return _logical(schema if isinstance(schema, dict) else {}, read)
        match kind:
            case "record" | "error":
                return {each["name"]: self.value(each["type"], depth + 1) for each in schema["fields"]}
            case "array":
                return self._items(lambda: self.value(schema["items"], depth + 1))
            case "map":
                return dict(self._items(lambda: (self.text(), self.value(schema["values"], depth + 1))))
            case "enum":
                return self._symbol(schema["symbols"])
            case "fixed":
                return _logical(schema, self.take(schema["size"]))
        if isinstance(kind, str) and kind in self._named:
            return self.value(self._named[kind], depth + 1)
        return self.value(kind, depth + 1)

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self._data) - self.at:
            raise DecodeError(f"{size} bytes are to follow byte {self.at}, and {len(self._data) - self.at} are left")
        self.at += size
        return bytes(self._data[self.at - size : self.at])

    def null(self) -> None:
        return None

    def boolean(self) -> bool:
        (byte,) = self.take(1)
        if byte > 1:
            raise DecodeError(f"byte {self.at - 1} is {byte}, which is no boolean")
        return byte == 1

    def long(self) -> int:
        found = shift = 0
        for _ in range(_MAX_LONG_BYTES):
            (byte,) = self.take(1)
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)
            shift += 7
        raise DecodeError(f"the number before byte {self.at} is longer than 64 bits")

    def float(self) -> Any:
        return _number(_FLOAT.unpack(self.take(4))[0])

    def double(self) -> Any:
        return _number(_DOUBLE.unpack(self.take(8))[0])

    def bytes(self) -> bytes:
        return self.take(self.long())

    def text(self) -> str:
        try:
            return self.take(self.long()).decode()
        except UnicodeDecodeError:
            raise DecodeError(f"the text before byte {self.at} is not UTF-8") from None

    def _branch(self, union: list[Any]) -> Any:
        index = self.long()
        if not 0 <= index < len(union):
            raise DecodeError(f"branch {index} of a union of {len(union)}")
        return union[index]

    def _symbol(self, symbols: list[str]) -> str:
        index = self.long()
        if not 0 <= index < len(symbols):
            raise DecodeError(f"symbol {index} of an enum of {len(symbols)}")
        return symbols[index]

    def _items(self, read: Callable[[], Any]) -> list[Any]:
        found: list[Any] = []
        while count := self.long():
            if count < 0:
                count = -count
                self.long()
            if count > self._left:
                raise DecodeError(f"a block of {count} items, more than a value of {MAX_VALUES} parts has")
            found += [read() for _ in range(count)]
        return found


_PRIMITIVES: dict[str, Callable[[_Reader], Any]] = {
    "null": _Reader.null,
    "boolean": _Reader.boolean,
    "int": _Reader.long,
    "long": _Reader.long,
    "float": _Reader.float,
    "double": _Reader.double,
    "bytes": _Reader.bytes,
    "string": _Reader.text,
}


def _number(found: float) -> float | str:
    """JSON has no word for what is no number."""
    if math.isfinite(found):
        return found
    return "NaN" if math.isnan(found) else "Infinity" if found > 0 else "-Infinity"


def _logical(schema: Mapping[str, Any], found: Any) -> Any:
    """What a value means by its logical type; bytes without one become base64."""
    kind = schema.get("logicalType")
    try:
        match kind:
            case "decimal" if isinstance(found, bytes) and len(found) <= _MAX_DECIMAL_BYTES:
                return str(Decimal(int.from_bytes(found, "big", signed=True)).scaleb(-int(schema.get("scale", 0))))
            case "date":
                return (_EPOCH + timedelta(days=found)).date().isoformat()
            case _ if kind in _TIMESTAMPS:
                zone = "" if str(kind).startswith("local") else "Z"
                at = _EPOCH + timedelta(microseconds=found * _TIMESTAMPS[kind])
                return at.replace(tzinfo=None).isoformat() + zone
            case _ if kind in _TIMES:
                return (_EPOCH + timedelta(microseconds=found * _TIMES[kind])).time().isoformat()
    except (ArithmeticError, TypeError, ValueError):
        # Out of range: the number itself says more than an error would.
        pass
    return base64.b64encode(found).decode() if isinstance(found, bytes) else found


def _check_parts(schema: Any, named: Mapping[str, Any]) -> None:
    """What fastavro accepts in a schema and no value can be read with."""
    if isinstance(schema, str):
        is_right = schema in _PRIMITIVES or schema in named
    elif isinstance(schema, list):
        is_right = bool(schema) and not any(isinstance(each, list) for each in schema)
        for each in schema:
            _check_parts(each, named)
    else:
        parts, is_right = _parts(schema, named)
        for each in parts:
            _check_parts(each, named)
    if not is_right:
        raise ValueError(f"it is no Avro schema: {str(schema)[:MAX_NAME]}")


def _parts(schema: Mapping[str, Any], named: Mapping[str, Any]) -> tuple[list[Any], bool]:
    """The schemas in a schema, and whether it has what its type needs."""
    match schema.get("type"):
        case "record" | "error":
            held = schema.get("fields")
            if not isinstance(held, list) or any(not isinstance(each, dict) or "type" not in each for each in held):
                return [], False
            return [each["type"] for each in held], True
        case "array":
            return [schema.get("items", [])], True
        case "map":
            return [schema.get("values", [])], True
        case "enum":
            symbols = schema.get("symbols")
            return [], isinstance(symbols, list) and all(isinstance(each, str) for each in symbols)
        case "fixed":
            return [], isinstance(schema.get("size"), int)
        case str() as kind:
            return [], kind in _PRIMITIVES or kind in named
        case kind:
            return [kind], kind is not None


def _check_size(given: Any) -> None:
    """Names and depth are bounded: both are in every value that is read."""
    waiting: list[tuple[Any, int]] = [(given, 0)]
    while waiting:
        each, depth = waiting.pop()
        if depth > MAX_NESTING:
            raise ValueError(f"the schema is nested more than {MAX_NESTING} levels deep")
        if isinstance(each, dict):
            for key in ("name", "symbols"):
                texts = each.get(key)
                for text in texts if isinstance(texts, list) else [texts]:
                    if isinstance(text, str) and len(text) > MAX_NAME:
                        raise ValueError(f"a name of the schema is longer than {MAX_NAME} characters")
            waiting += [(child, depth + 1) for child in each.values()]
        elif isinstance(each, list):
            waiting += [(child, depth + 1) for child in each]
