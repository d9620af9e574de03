"""Codecs of a client: how values are encoded, what the header says, and pydantic models."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import pydantic
import pytest

import penstock
from penstock.sdk.payloads.codecs import Codecs
from penstock.sdk.payloads.decoders import payload_type
from penstock.sdk.send.outgoing_message import compose
from penstock.testing import StubClient

CONTENT_TYPE = "penstock-content-type"
PICKLE = penstock.Codec("pickle", pickle.dumps, pickle.loads)
"""Another format that the standard library has."""


@dataclass
class Point:
    x: int
    y: int = 0
    raw: bytes = b""


class Line(pydantic.BaseModel):
    article: str
    price: Decimal


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    number: int = pydantic.Field(alias="orderNumber")
    at: datetime
    lines: list[Line] = []
    at_point: Point | None = None

    @pydantic.field_validator("number")
    @classmethod
    def is_positive(cls, value: int) -> int:
        if value == 13:
            raise ZeroDivisionError("thirteen")
        if value <= 0:
            raise ValueError("must be positive")
        return value


class Picture(pydantic.BaseModel):
    name: str
    picture: bytes


@dataclass
class Parcel:
    order: Order
    weight: float


def refusing(value: Any) -> Any:
    raise OSError("no")


def test_an_object_is_json_and_a_header_says_so() -> None:
    sent = compose("t", Point(1, 2, b"\0"), key="k", headers={"own": "1"}, tags=["a"])
    assert sent.value == b'{"x":1,"y":2,"raw":"AA=="}'
    assert sent.headers == (("own", b"1"), ("penstock-tags", b"a"), (CONTENT_TYPE, b"json"))


def test_bytes_and_texts_are_sent_as_they_are() -> None:
    for value in (b"x", "x", None, bytearray(b"x")):
        assert compose("t", value).headers == ()  # type: ignore[arg-type]


def test_the_first_codec_of_a_client_is_its_default() -> None:
    codecs = Codecs([PICKLE])
    sent = compose("t", Point(1), codecs)
    assert sent.headers == ((CONTENT_TYPE, b"pickle"),)
    assert compose("t", Point(1), codecs, codec="json").value == b'{"x":1,"y":0,"raw":""}'
    wanted = payload_type(Point)
    assert codecs.decode(wanted, sent.value, sent.headers) == Point(1)
    assert codecs.decode(wanted, sent.value, ()) == Point(1)
    assert codecs.decode(wanted, b'{"x":1}', ((CONTENT_TYPE, b"json"),)) == Point(1)


def test_json_can_be_replaced() -> None:
    loud = penstock.Codec("json", lambda data: repr(data).encode(), lambda value: {"x": len(value)})
    codecs = Codecs([loud])
    assert codecs.encode(Point(1)) == (b"{'x': 1, 'y': 0, 'raw': ''}", "json")
    assert codecs.decode(payload_type(Point), b"abc", ()) == Point(3)


def test_a_codec_may_have_bytes() -> None:
    decoded = Codecs([PICKLE]).decode(payload_type(Point), pickle.dumps({"x": 1, "raw": b"\xff"}), ())
    assert decoded == Point(1, 0, b"\xff")


@pytest.mark.parametrize(
    ("send", "said"),
    [
        (lambda: compose("t", Point(1), codec="avro"), "codec 'avro' is not known: this client has json"),
        (lambda: compose("t", b"x", codec="json"), "codec is for dataclasses and pydantic models: the value is bytes"),
        (lambda: compose("t", {"a": 1}), "value must be bytes, str, None, a dataclass or a pydantic model, not dict"),  # type: ignore[arg-type]
        (lambda: compose("t", Point), "a pydantic model, not type"),  # type: ignore[arg-type]
        (lambda: compose("t", Point(1), headers={CONTENT_TYPE: "x"}), "the header penstock-content-type is set twice"),
        (lambda: compose("t", Point(object())), "value: Point cannot be encoded: x: objects of object"),  # type: ignore[arg-type]
        (lambda: compose("t", Point(float("nan"))), "value: Point cannot be encoded as json: ValueError"),  # type: ignore[arg-type]
        (lambda: Codecs([penstock.Codec("a", refusing, refusing)]).encode(Point(1)), "encoded as a: OSError: no"),
        (lambda: Codecs([penstock.Codec("a", str, str)]).encode(Point(1)), "must encode to bytes, not to str"),  # type: ignore[arg-type]
        (lambda: penstock.Codec("", refusing, refusing), "name of a codec must be 1 to 64 letters"),
        (lambda: penstock.Codec("a b", refusing, refusing), "name of a codec"),
        (lambda: penstock.Codec("a", 5, refusing), "encode of codec a must be a function, not 5"),  # type: ignore[arg-type]
        (lambda: penstock.Client(codecs=PICKLE), r"codecs must be a list such as \[penstock.Codec"),  # type: ignore[arg-type]
        (lambda: penstock.Client(codecs=[pickle]), "must contain objects of penstock.Codec"),  # type: ignore[list-item]
        (lambda: StubClient(codecs=[PICKLE, PICKLE]), "two codecs with the name pickle"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(send: Any, said: str) -> None:
    with pytest.raises(penstock.InvalidInputError, match=said):
        send()


@pytest.mark.parametrize(
    ("value", "headers", "said"),
    [
        (None, (), "not a valid Point: the message has no value"),
        (b"", (), "not valid json: JSONDecodeError"),
        (b"\xff", (), "not valid json: UnicodeDecodeError"),
        (b"{}", ((CONTENT_TYPE, b"avro"),), "the message is encoded as 'avro', and this client knows json"),
        (b"{}", ((CONTENT_TYPE, b"json"), (CONTENT_TYPE, b"avro")), "'avro'"),
    ],
)
def test_what_cannot_be_decoded_is_said(value: bytes | None, headers: Any, said: str) -> None:
    with pytest.raises(penstock.DecodeError, match=said):
        Codecs().decode(payload_type(Point), value, headers)


def test_a_message_without_a_value_is_none_where_the_type_allows_it() -> None:
    assert Codecs().decode(payload_type(Point | None), None, ()) is None
    assert Codecs().decode(payload_type(Point | None), b"null", ()) is None
    assert Codecs().decode(payload_type(Order | None), None, ()) is None


def test_pydantic_models_come_back_as_they_were() -> None:
    order = Order(orderNumber=7, at=datetime(2026, 1, 1), lines=[Line(article="tea", price=Decimal("3.50"))])
    assert b'"orderNumber":7' in Codecs().encode(order)[0]
    for value in (order, Line(article="tea", price=Decimal("3.50")), Parcel(order, 1.5)):
        for codecs in (Codecs(), Codecs([PICKLE])):
            assert codecs.decode(payload_type(type(value)), codecs.encode(value)[0], ()) == value


def test_a_model_gets_the_bytes_that_a_codec_has() -> None:
    raw = pickle.dumps({"name": "tea", "picture": b"\xff"})
    assert Codecs([PICKLE]).decode(payload_type(Picture), raw, ()) == Picture(name="tea", picture=b"\xff")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"{}", "not a valid Order: orderNumber: Field required; at: Field required"),
        (
            b'{"orderNumber":1,"at":"2026-01-01T00:00:00","lines":[{"price":"x"}]}',
            r"lines\[0\].article: Field required",
        ),
        (b'{"orderNumber":-1,"at":"2026-01-01T00:00:00"}', "orderNumber: Value error, must be positive"),
        (b'{"orderNumber":"secret","at":"2026-01-01T00:00:00"}', "orderNumber: Input should be a valid integer"),
        (b"{", "Invalid JSON"),
        (b'{"orderNumber":13,"at":"2026-01-01T00:00:00"}', "not a valid Order: ZeroDivisionError: thirteen"),
    ],
)
def test_what_a_model_refuses_is_named_without_the_value(value: bytes, said: str) -> None:
    with pytest.raises(penstock.DecodeError, match=said) as error:
        Codecs().decode(payload_type(Order), value, ())
    assert "secret" not in str(error.value)


def test_the_base_of_all_models_is_no_type_to_decode_to() -> None:
    with pytest.raises(penstock.InvalidInputError, match="BaseModel is neither"):
        payload_type(pydantic.BaseModel)


def test_pydantic_is_never_imported_by_us() -> None:
    program = (
        "import sys, dataclasses, penstock\n"
        "from penstock.testing import StubClient\n"
        "@dataclasses.dataclass\n"
        "class Point:\n"
        "    x: int\n"
        "stub, seen = StubClient(), []\n"
        "@stub.subscribe('t', group='g')\n"
        "def handle(point: Point) -> None:\n"
        "    seen.append(point)\n"
        "stub.send('t', Point(3))\n"
        "stub.run()\n"
        "assert seen == [Point(3)]\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
