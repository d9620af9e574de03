"""Dataclasses as plain data and back: what comes out is what went in, and what does not fit is named."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.sdk.payloads.codecs import JSON, Codecs
from penstock.sdk.payloads.decoders import payload_type
from penstock.sdk.payloads.plain_data import NotPlainError, plain

CustomerId = NewType("CustomerId", int)
T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    PAIR = (1, 2)
    NONE = None


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Word(StrEnum):
    YES = "yes"


class Rights(Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Line:
    article: str
    price: Decimal
    count: int = 1


@dataclass
class Tree:
    name: str
    branches: list[Tree] = field(default_factory=list)
    parent: Tree | None = None


@dataclass(kw_only=True)
class Everything:
    text: str
    whole: int
    real: float
    truth: bool
    raw: bytes
    money: Decimal
    moment: datetime
    day: date
    name: UUID
    colour: Colour
    level: Level
    word: Word
    letter: Literal["a", "b", 1]
    customer: CustomerId
    noted: Annotated[str, "a note"]
    line: Line
    lines: list[Line]
    pair: tuple[int, str]
    row: tuple[int, ...]
    few: frozenset[str]
    by_name: dict[str, Line]
    by_day: dict[date, int]
    anything: Any
    maybe: Line | None
    one_of: int | str | list[int] | None
    loose: dict[str, Any] = field(default_factory=dict)
    size: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.size = len(self.lines)


class Text(str):
    """A text with a meaning."""


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
lines = st.builds(Line, texts, decimals, st.integers())
everything = st.builds(
    Everything,
    text=texts,
    whole=st.integers(),
    real=st.floats(allow_nan=False, allow_infinity=False),
    truth=st.booleans(),
    raw=st.binary(max_size=20),
    money=decimals,
    moment=st.datetimes() | st.datetimes(timezones=st.timezones()),
    day=st.dates(),
    name=st.uuids(),
    colour=st.sampled_from(Colour),
    level=st.sampled_from(Level),
    word=st.sampled_from(Word),
    letter=st.sampled_from(["a", "b", 1]),
    customer=st.integers().map(CustomerId),
    noted=texts,
    line=lines,
    lines=st.lists(lines, max_size=3),
    pair=st.tuples(st.integers(), texts),
    row=st.lists(st.integers(), max_size=3).map(tuple),
    few=st.frozensets(texts, max_size=3),
    by_name=st.dictionaries(texts, lines, max_size=3),
    by_day=st.dictionaries(st.dates(), st.integers(), max_size=3),
    anything=st.recursive(st.none() | st.booleans() | st.integers() | texts, st.lists, max_leaves=5),
    maybe=st.none() | lines,
    one_of=st.none() | st.integers() | texts | st.lists(st.integers(), max_size=3),
)


def offsets_only(value: Everything) -> Everything:
    """ISO 8601 has offsets from UTC, and no names of time zones."""
    return dataclasses.replace(value, moment=datetime.fromisoformat(value.moment.isoformat()))


@given(everything)
def test_what_is_encoded_is_decoded_to_the_same(value: Everything) -> None:
    codecs = Codecs()
    raw, name = codecs.encode(value)
    assert name == "json"
    decoded = codecs.decode(payload_type(Everything), raw, (("penstock-content-type", b"json"),))
    assert decoded == offsets_only(value)
    assert [type(each) for each in vars(decoded).values()] == [type(each) for each in vars(value).values()]


@given(everything)
def test_decoding_whatever_json_there_is_gives_an_object_or_a_decode_error(value: Everything) -> None:
    """Each field in the place of each other: a mismatch is said, and never passes as something else."""
    data = plain(value)
    wanted = payload_type(Everything)
    for name in data:
        for other in data.values():
            try:
                decoded = wanted.from_data({**data, name: other})
            except penstock.DecodeError as error:
                assert name in str(error)
            else:
                assert wanted.from_data(plain(decoded)) == decoded


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_decoded_or_refused(raw: bytes) -> None:
    try:
        decoded = Codecs().decode(payload_type(Line), raw, ())
    except penstock.DecodeError:
        return
    assert isinstance(decoded, Line)


def test_types_contain_themselves() -> None:
    tree = Tree("oak", [Tree("left"), Tree("right", [Tree("twig")])])
    assert payload_type(Tree).from_data(plain(tree)) == tree


def test_unknown_fields_are_ignored_and_defaults_are_used() -> None:
    line = payload_type(Line).from_data({"article": "tea", "price": "3.50", "colour": "green"})
    assert line == Line("tea", Decimal("3.50"), 1)


def test_a_whole_number_is_a_float_and_a_decimal() -> None:
    @dataclass
    class Price:
        real: float
        money: Decimal

    price = payload_type(Price).from_data({"real": 3, "money": 3})
    assert (price.real, price.money) == (3.0, Decimal(3))
    assert type(price.real) is float


def order(**changes: Any) -> dict[str, Any]:
    return {
        "lines": [{"article": "tea", "price": "3.50"}, {"article": "cup", "price": "9"}],
        "moment": "2026-01-01T00:00:00Z",
        "name": "12345678123456781234567812345678",
        "raw": "AAE=",
        "word": "yes",
        "level": 1,
        "few": {"a": 1.5},
        "truth": True,
        "maybe": None,
        **changes,
    }


@dataclass
class Order:
    lines: list[Line]
    moment: datetime
    name: UUID
    raw: bytes
    word: Word
    level: Level
    few: dict[str, float]
    truth: bool
    maybe: int | None
    pair: tuple[int, str] = (1, "")
    day: date = date(2026, 1, 1)

    def __post_init__(self) -> None:
        if not self.lines:
            raise ValueError("an order needs lines")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "not a valid Order: expected an object, not a list"),
        ("x", "expected an object, not a text"),
        (None, "expected an object, not null"),
        ({}, "not a valid Order: lines is missing"),
        (order(lines={}), "lines: expected a list, not an object"),
        (order(lines=[{"article": "tea"}]), "lines[0].price is missing"),
        (order(lines=[{"article": "tea", "price": "1"}, {"article": 5, "price": "1"}]), "lines[1].article: expected a"),
        (order(lines=[{"article": "tea", "price": 1.5}]), "not a number that may be rounded"),
        (order(lines=[{"article": "tea", "price": "dear"}]), "lines[0].price: expected a decimal number"),
        (order(lines=[{"article": "tea", "price": "NaN"}]), "expected a finite decimal number"),
        (
            order(lines=[{"article": "tea", "price": True}]),
            "lines[0].price: expected a whole number, not true or false",
        ),
        (order(lines=[{"article": "tea", "price": "1", "count": "2"}]), "count: expected a whole number, not a text"),
        (order(lines=[{"article": "tea", "price": "1", "count": 1.0}]), "count: expected a whole number, not a number"),
        (order(lines=[{"article": "tea", "price": "1", "count": False}]), "expected a whole number, not true or false"),
        (order(moment="yesterday"), "moment: expected a date and time in ISO 8601"),
        (order(moment=5), "moment: expected a text, not a number"),
        (order(day="2026-13-01"), "day: expected a date in ISO 8601"),
        (order(name="x"), "name: expected a UUID"),
        (order(raw="A"), "raw: expected bytes in base64"),
        (order(raw="ü"), "raw: expected bytes in base64"),
        (order(word="no"), "word: expected one of 'yes'"),
        (order(level=True), "level: expected one of 1, 2"),
        (order(level=1.0), "level: expected one of 1, 2"),
        (order(few={"a": "b"}), "few['a']: expected a number, not a text"),
        (order(few={"a": 10**400}), "few['a']: the number is too large"),
        (order(truth=1), "truth: expected true or false, not a number"),
        (order(maybe="x"), "maybe: expected a number or null, not a text"),
        (order(maybe=1.5), "maybe: expected a whole number, not a number"),
        (order(pair=[1]), "pair: expected a list of 2, not of 1"),
        (order(pair=[1, 2]), "pair[1]: expected a text, not a number"),
        (order(lines=[]), "not a valid Order: ValueError: an order needs lines"),
    ],
)
def test_what_does_not_fit_is_named(data: Any, said: str) -> None:
    with pytest.raises(penstock.DecodeError) as error:
        payload_type(Order).from_data(data)
    assert said in str(error.value)


def test_errors_do_not_quote_values() -> None:
    for data in (order(moment="my secret"), order(word="my secret"), order(raw="my secret"), order(name="my secret")):
        with pytest.raises(penstock.DecodeError) as error:
            payload_type(Order).from_data(data)
        assert "my secret" not in str(error.value)


def test_what_the_application_raised_is_the_cause() -> None:
    with pytest.raises(penstock.DecodeError) as error:
        payload_type(Order).from_data(order(lines=[]))
    assert isinstance(error.value.__cause__, ValueError)
    with pytest.raises(penstock.DecodeError) as error:
        payload_type(Order).from_data({})
    assert error.value.__cause__ is None


def test_data_that_is_nested_too_deeply_is_refused() -> None:
    data: dict[str, Any] = {"name": "leaf"}
    for _ in range(100_000):
        data = {"name": "node", "parent": data}
    with pytest.raises(penstock.DecodeError, match="nested too deeply"):
        payload_type(Tree).from_data(data)
    while data := data.get("parent", {}):
        pass
    with pytest.raises(penstock.DecodeError, match="not valid json: RecursionError"):
        Codecs().decode(payload_type(Tree), b'{"parent":' * 100_000, ())


@dataclass
class Generics(Generic[T]):
    it: T


@dataclass
class Initialised:
    it: dataclasses.InitVar[int]


def having(annotation: Any) -> type:
    return dataclasses.make_dataclass("Having", [("it", annotation)])


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (having(complex), "Having.it: a message cannot be decoded to complex; use dataclasses"),
        (having(list[object()]), "Having.it"),  # type: ignore[misc]
        (having(int | float), "Having.it: int and float cannot be told apart in a message: both are a number"),
        (having(str | datetime), "str and datetime cannot be told apart"),
        (having(Line | Tree), "Line and Tree cannot be told apart in a message: both are an object"),
        (having(dict[int, str]), "the keys of a message are texts, not int"),
        (having(Rights), "which is a Flag"),
        (having(Enum("Odd", {"A": object()})), "cannot be decoded to Odd: objects of object cannot be encoded"),
        (having("Nowhere"), "the fields of Having cannot be read: NameError"),
        (Generics, "a message cannot be decoded to ~T"),
        (Generics[int], "neither a dataclass nor a pydantic model"),
        (Initialised, "Initialised.it is an InitVar"),
        (int, "int is neither a dataclass nor a pydantic model"),
        (Line | Tree, "neither a dataclass nor a pydantic model"),
        (dict[str, Any], "neither a dataclass nor a pydantic model"),
    ],
)
def test_types_that_messages_cannot_be_decoded_to_are_refused(annotation: Any, said: str) -> None:
    with pytest.raises(penstock.InvalidInputError) as error:
        payload_type(annotation)
    assert said in str(error.value)


def test_subclasses_of_texts_and_numbers_are_texts_and_numbers() -> None:
    class Count(int): ...

    assert plain(having(Any)(Text("x"))) == {"it": "x"}
    assert type(plain(Text("x"))) is str
    assert type(plain(Count(3))) is int


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "it: objects of object cannot be encoded"),
        ([1, {"a": object()}], "it[1]['a']: objects of object cannot be encoded"),
        ({1: 2}, "it: the key 1 is not a text"),
        (Decimal("NaN"), "it: NaN is not a finite number"),
        (Line, "it: objects of type cannot be encoded"),
    ],
)
def test_what_cannot_be_encoded_is_named(value: Any, said: str) -> None:
    with pytest.raises(NotPlainError) as error:
        plain(having(Any)(value))
    assert str(error.value) == said


def test_json_is_compact_and_strict() -> None:
    assert JSON.encode({"ü": [1, None]}) == '{"ü":[1,null]}'.encode()
    for wrong in (float("nan"), float("inf"), "\ud800"):
        with pytest.raises(ValueError):
            JSON.encode(wrong)
    for text in (b"NaN", b"[Infinity]", b"\xff", b"", b"{", b"1 2"):
        with pytest.raises(ValueError):
            JSON.decode(text)
    assert JSON.decode(json.dumps({"a": "ü"}).encode()) == {"a": "ü"}


def test_datetimes_keep_their_offset() -> None:
    wanted = payload_type(having(datetime))
    assert wanted.from_data({"it": "2026-01-01T00:00:00Z"}).it == datetime(2026, 1, 1, tzinfo=UTC)
    assert wanted.from_data({"it": "2026-01-01T00:00:00"}).it.tzinfo is None
