"""A schema that the console keeps for the keys or the values of a topic, and decoding with it.

Confluent's framing, which serializers with a registry write before the data:

    byte 0     0
    1 .. 4     id of the schema in the registry, big-endian
    5 ..       for Protobuf the indexes of the message, then the data
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from penstock.console.errors import InvalidError
from penstock.console.schemas.avro_value import AvroSchema
from penstock.console.schemas.decode_error import DecodeError
from penstock.console.schemas.protobuf_value import ProtobufSchema

MAX_TEXT = 256 << 10
MAX_SCHEMA_ID = 2**31 - 1
_FRAME = struct.Struct(">bI")
_MAGIC = 0


class SchemaFormat(Enum):
    """How messages are encoded."""

    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON = "json"
    """Text behind Confluent's framing; it needs no schema to be read."""


class Side(Enum):
    """The part of a message."""

    KEY = "key"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class SchemaRule:
    """How the keys or the values of a topic are decoded."""

    cluster: str
    topic: str
    side: Side
    format: SchemaFormat
    is_framed: bool = True
    """Whether five bytes come before the data."""
    schema_id: int | None = None
    """Only for data that is framed with this id; None: whatever the id is."""
    message: str = ""
    """Protobuf: the full name of the message; empty: the framing tells, or it is the first."""
    text: str = ""
    """Avro: the schema as JSON. Protobuf: a FileDescriptorSet in base64."""
    id: str = ""

    def body(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "side": self.side.value,
            "format": self.format.value,
            "is_framed": self.is_framed,
            "schema_id": self.schema_id,
            "message": self.message,
            "text": self.text,
        }

    @classmethod
    def parse(cls, id: str, topic: str, body: dict[str, Any]) -> SchemaRule:
        return cls(
            cluster=body["cluster"],
            topic=topic,
            side=Side(body["side"]),
            format=SchemaFormat(body["format"]),
            is_framed=body["is_framed"],
            schema_id=body["schema_id"],
            message=body["message"],
            text=body["text"],
            id=id,
        )


class _Reads(Protocol):
    """A way to read the data behind the framing."""

    def decode(self, data: memoryview, *, is_framed: bool) -> Any: ...


class _Avro:
    def __init__(self, text: str) -> None:
        self._schema = AvroSchema(text)

    def decode(self, data: memoryview, *, is_framed: bool) -> Any:
        return self._schema.decode(data)


class _Json:
    def decode(self, data: memoryview, *, is_framed: bool) -> Any:
        try:
            return json.loads(bytes(data))
        except (ValueError, RecursionError):
            raise DecodeError("it is no JSON") from None


class CompiledSchema:
    """A rule that is ready to decode."""

    def __init__(self, rule: SchemaRule) -> None:
        """InvalidError if its schema is none."""
        self.rule = rule
        try:
            self._reads: _Reads = _reads(rule)
        except ValueError as error:
            raise InvalidError(f"the schema cannot be used: {error}; nothing was changed") from None

    def fits(self, frame_id: int | None) -> bool:
        """Whether the rule is for data that is framed with this id; None: that is not framed."""
        if not self.rule.is_framed:
            return True
        return frame_id is not None and self.rule.schema_id in (None, frame_id)

    def decode(self, raw: bytes) -> Any:
        """DecodeError if the data is not what the schema says."""
        data = memoryview(raw)[_FRAME.size :] if self.rule.is_framed else memoryview(raw)
        return self._reads.decode(data, is_framed=self.rule.is_framed)


def frame_id(raw: bytes) -> int | None:
    """The id that data is framed with; None if it is not framed."""
    if len(raw) < _FRAME.size:
        return None
    magic, id = _FRAME.unpack_from(raw)
    return id if magic == _MAGIC else None


def _reads(rule: SchemaRule) -> _Reads:
    match rule.format:
        case SchemaFormat.AVRO:
            return _Avro(rule.text)
        case SchemaFormat.PROTOBUF:
            return ProtobufSchema(rule.text, rule.message)
        case _:
            return _Json()
