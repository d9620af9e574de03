"""Avro and Protobuf messages become JSON, and hostile ones cost a bounded amount of work."""

from __future__ import annotations

import base64
import io
import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from penstock.console.errors import InvalidError
from penstock.console.schemas.avro_value import AvroSchema
from penstock.console.schemas.decode_error import MAX_NESTING, MAX_VALUES, DecodeError
from penstock.console.schemas.protobuf_value import ProtobufSchema
from penstock.console.schemas.schema_rule import CompiledSchema, SchemaFormat, SchemaRule, Side
from penstock.console.schemas.topic_schemas import MAX_DECODED_BYTES, SchemaSet
from penstock.sdk.ports import Received

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "digest", "type": {"type": "fixed", "name": "Digest", "size": 3}},
        {"name": "ratio", "type": "double"},
        {"name": "small", "type": "float"},
        {"name": "is_gift", "type": "boolean"},
        {"name": "items", "type": {"type": "array", "items": "string"}},
        {"name": "parts", "type": {"type": "map", "values": "int"}},
        {"name": "next", "type": ["null", "Order"]},
    ],
}
NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


def written(schema: Any, value: Any) -> bytes:
    """As fastavro writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def read(schema: Any, data: bytes) -> Any:
    return AvroSchema(json.dumps(schema)).decode(memoryview(data))


def order(**more: Any) -> dict[str, Any]:
    return {
        "id": 2**53 + 1,
        "note": "günstig",
        "price": Decimal("-12.30"),
        "at": datetime(2026, 11, 19, 12, 30, 0, 5000, tzinfo=UTC),
        "day": date(2026, 11, 19),
        "state": "PAID",
        "digest": b"\x00\x01\xff",
        "ratio": float("-inf"),
        "small": 0.5,
        "is_gift": True,
        "items": ["a", "b"],
        "parts": {"x": 1, "y": -2},
        "next": None,
        **more,
    }


def test_every_type_of_avro_becomes_json() -> None:
    found = read(ORDER, written(ORDER, order(next=order(note=None))))
    assert found["next"]["note"] is None
    assert found["next"]["id"] == found["id"] == 2**53 + 1
    del found["next"]
    assert found == {
        "id": 2**53 + 1,
        "note": "günstig",
        "price": "-12.30",
        "at": "2026-11-19T12:30:00.005000Z",
        "day": "2026-11-19",
        "state": "PAID",
        "digest": "AAH/",
        "ratio": "-Infinity",
        "small": 0.5,
        "is_gift": True,
        "items": ["a", "b"],
        "parts": {"x": 1, "y": -2},
    }
    json.dumps(found, allow_nan=False)


SIMPLE: Any = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": {"type": "array", "items": ["null", "long", "string", "boolean"]}},
        {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
    ],
}


@given(
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20) | st.booleans(), max_size=20),
    st.dictionaries(st.text(max_size=5), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=5),
)
def test_what_fastavro_writes_is_read_as_it_was(array: list[Any], mapping: dict[str, list[int]]) -> None:
    value = {"a": array, "m": mapping}
    assert read(SIMPLE, written(SIMPLE, value)) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for schema in (ORDER, SIMPLE, NODE, "string", {"type": "array", "items": "null"}):
        try:
            json.dumps(read(schema, data))
        except DecodeError as error:
            assert str(error)


def zigzag(number: int) -> bytes:
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


@pytest.mark.parametrize(
    ("schema", "data", "why"),
    [
        (NODE, b"\x02" * 1_000_000, f"{MAX_NESTING} levels"),
        ({"type": "record", "name": "A", "fields": [{"name": "a", "type": "A"}]}, b"", f"{MAX_NESTING} levels"),
        ({"type": "array", "items": "null"}, zigzag(10**15) + b"\x00", "a block of"),
        ({"type": "array", "items": "null"}, zigzag(15_000) * 2 + b"\x00", "a block of"),
        ("string", zigzag(10**15) + b"abc", "are left"),
        ("bytes", zigzag(-5), "are left"),
        ("long", b"\xff" * 1000, "64 bits"),
        (["null", "int"], zigzag(7), "branch 7"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, zigzag(-1), "symbol -1"),
        ("boolean", b"\x02", "no boolean"),
        ("string", zigzag(1) + b"\xff", "UTF-8"),
        ("int", b"\x02\x02", "left behind"),
    ],
)
def test_hostile_avro_is_refused_at_once(schema: Any, data: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        read(schema, data)


def test_a_wide_value_has_a_bounded_number_of_parts() -> None:
    wide = {
        "type": "record",
        "name": "W",
        "fields": [{"name": f"f{number}", "type": "null"} for number in range(1000)],
    }
    with pytest.raises(DecodeError, match=str(MAX_VALUES)):
        read({"type": "array", "items": wide}, zigzag(1000) + b"\x00")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 100_000,
        json.dumps({"type": "record", "fields": []}),
        json.dumps("no such type"),
        json.dumps({"type": "enum", "name": "E", "symbols": ["x" * 1000]}),
        json.dumps({"type": "record", "name": "R", "fields": [{"name": "x" * 1000, "type": "int"}]}),
        "null",
        "1",
        "[[]]",
        json.dumps({"type": "fixed", "name": "F", "size": "many"}),
    ],
)
def test_what_is_no_usable_avro_schema_is_refused_when_it_is_added(text: str) -> None:
    with pytest.raises(InvalidError, match="nothing was changed"):
        CompiledSchema(SchemaRule("c", "t", Side.VALUE, SchemaFormat.AVRO, text=text))


def files() -> descriptor_pb2.FileDescriptorSet:
    """Order with lines and a payment, behind an imported file, as protoc --include_imports writes it."""
    money = descriptor_pb2.FileDescriptorProto(name="money.proto", package="shop", syntax="proto3")
    amount = money.message_type.add(name="Money")
    amount.field.add(name="currency", number=1, type=9, label=1)
    amount.field.add(name="cents", number=2, type=3, label=1)
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3", dependency=["money.proto"]
    )
    made = file.message_type.add(name="Order")
    made.field.add(name="order_id", number=1, type=9, label=1)
    made.field.add(name="total", number=2, type=11, type_name=".shop.Money", label=1)
    made.field.add(name="parts", number=3, type=11, type_name=".shop.Order", label=3)
    made.nested_type.add(name="Line").field.add(name="sku", number=1, type=9, label=1)
    file.message_type.add(name="Payment").field.add(name="ok", number=1, type=8, label=1)
    return descriptor_pb2.FileDescriptorSet(file=[money, file])


def encoded(files: descriptor_pb2.FileDescriptorSet) -> str:
    return base64.b64encode(files.SerializeToString()).decode()


def message(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in files().file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()


def test_a_protobuf_message_becomes_json_with_the_names_of_its_file() -> None:
    sent = message("shop.Order")
    sent.order_id, sent.total.currency, sent.total.cents = "o-1", "EUR", 2**53 + 1
    sent.parts.add().order_id = "o-2"
    data = memoryview(sent.SerializeToString())
    expected = {
        "order_id": "o-1",
        "total": {"currency": "EUR", "cents": str(2**53 + 1)},
        "parts": [{"order_id": "o-2"}],
    }
    assert ProtobufSchema(encoded(files()), "shop.Order").decode(data, is_framed=False) == expected
    assert ProtobufSchema(encoded(files())).decode(data, is_framed=False) == expected


@pytest.mark.parametrize(
    ("indexes", "name", "field"),
    [
        (b"\x00", "shop.Order", "order_id"),
        (zigzag(1) + zigzag(0), "shop.Order", "order_id"),
        (zigzag(2) + zigzag(0) + zigzag(0), "shop.Order.Line", "sku"),
    ],
)
def test_the_framing_chooses_the_message(indexes: bytes, name: str, field: str) -> None:
    sent = message(name)
    setattr(sent, field, "x")
    data = memoryview(indexes + sent.SerializeToString())
    assert ProtobufSchema(encoded(files())).decode(data, is_framed=True) == {field: "x"}


@given(st.binary(max_size=100), st.booleans())
def test_any_bytes_are_a_protobuf_message_or_refused(data: bytes, is_framed: bool) -> None:
    try:
        json.dumps(_PROTOBUF.decode(memoryview(data), is_framed=is_framed))
    except DecodeError as error:
        assert str(error)


_PROTOBUF = ProtobufSchema(encoded(files()))


def test_protobuf_that_nests_without_end_is_refused() -> None:
    data = b""
    for _ in range(5_000):
        length, size = len(data), bytearray()
        while length > 0x7F:
            size.append(length & 0x7F | 0x80)
            length >>= 7
        data = b"\x1a" + bytes([*size, length]) + data
    with pytest.raises(DecodeError):
        _PROTOBUF.decode(memoryview(data), is_framed=False)


def without_import() -> str:
    told = files()
    del told.file[0]
    return encoded(told)


def with_a_long_name() -> str:
    told = files()
    told.file[1].message_type[0].field[0].name = "x" * 1000
    return encoded(told)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("not base64!", ""),
        ("aGVsbG8=", ""),
        ("", ""),
        (encoded(files()), "shop.Unknown"),
        (without_import(), ""),
        (with_a_long_name(), ""),
    ],
)
def test_what_is_no_usable_descriptor_set_is_refused_when_it_is_added(text: str, name: str) -> None:
    with pytest.raises(InvalidError, match="nothing was changed"):
        CompiledSchema(SchemaRule("c", "t", Side.VALUE, SchemaFormat.PROTOBUF, message=name, text=text))


def rule(**more: Any) -> CompiledSchema:
    given: dict[str, Any] = {"format": SchemaFormat.AVRO, "text": '"string"', **more}
    return CompiledSchema(SchemaRule("c", "t", Side.VALUE, **given))


def test_the_id_in_the_framing_chooses_the_schema() -> None:
    text = written("string", "hello")
    framed = struct.pack(">bI", 0, 7) + text
    schemas = SchemaSet(
        (rule(is_framed=False), rule(), rule(schema_id=7, text='"bytes"'), rule(format=SchemaFormat.JSON, schema_id=8))
    )

    def decoded(value: bytes) -> Any:
        found = schemas.decoded(Received(topic="t", partition=0, offset=0, value=value))
        assert found.value is not None and found.value.problem == "", found
        assert found.message.value is not None
        return json.loads(found.message.value)

    assert decoded(framed) == "aGVsbG8="
    assert decoded(struct.pack(">bI", 0, 9) + text) == "hello"
    assert decoded(struct.pack(">bI", 0, 8) + b'{"a": 1}') == {"a": 1}
    assert decoded(text) == "hello"


def test_a_message_that_no_schema_fits_is_shown_as_it_is_with_the_reason() -> None:
    schemas = SchemaSet((rule(is_framed=False),))
    for value, why in ((b"\x09", "are left"), (b"x" * (MAX_DECODED_BYTES + 1), "longer than")):
        found = schemas.decoded(Received(topic="t", partition=0, offset=0, value=value))
        assert found.message.value == value
        assert found.value is not None and why in found.value.problem
    assert schemas.decoded(Received(topic="t", partition=0, offset=0, value=None)).value is None
