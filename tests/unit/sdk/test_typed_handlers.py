"""Handlers that are annotated with what they want get it decoded; what cannot be decoded is a dead letter at once."""

from __future__ import annotations

import functools
import pickle
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pydantic
import pytest

import penstock
from penstock.sdk.headers import CONTENT_TYPE
from penstock.testing import AsyncStubClient, StubClient

if TYPE_CHECKING:
    from datetime import timezone as only_for_type_checkers

    from penstock import Message

PICKLE = penstock.Codec("pickle", pickle.dumps, pickle.loads)


@dataclass
class Order:
    number: int
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ArithmeticError("below zero")


class Invoice(pydantic.BaseModel):
    number: int


@dataclass
class Odd:
    it: complex


class Desk:
    """An application with methods."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def bill(self, order: Order) -> None:
        self.seen.append(order)

    def __call__(self, order: Order, message: penstock.Message) -> None:
        self.seen.append((order, message.offset))


def loud(handler: Any) -> Any:
    @functools.wraps(handler)
    def called(*args: Any, **kwargs: Any) -> Any:
        return handler(*args, **kwargs)

    return called


seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


def order(order: Order) -> None:
    seen.append(order)


def invoice(invoice: Invoice) -> None:
    seen.append(invoice)


def perhaps(order: Order | None) -> None:
    seen.append(order)


def order_and_message(order: Order, message: penstock.Message) -> None:
    seen.append((order, message.key))


def message_and_order(message: penstock.Message, order: Order) -> None:
    seen.append((order, message.key))


def by_name(order: Order, *, message: penstock.Message) -> None:
    seen.append((order, message.key))


def with_defaults(order: Order, factor: int = 2, message: penstock.Message | None = None) -> None:
    assert message is not None
    seen.append((order, message.key))


def with_session(session: str, order: Order) -> None:
    seen.append(order)


def any_message(message: Any) -> None:
    seen.append(message.key)


def unannotated(message):  # type: ignore[no-untyped-def]
    seen.append(message.key)


def type_checked(message: Message) -> only_for_type_checkers | None:
    seen.append(message.key)
    return None


def anything(thing: object) -> None:
    assert isinstance(thing, penstock.Message)
    seen.append(thing.key)


def orders(orders: list[Order]) -> None:
    seen.append(list(orders))


def sequence(orders: Sequence[Order]) -> None:
    seen.append(list(orders))


def both_lists(orders: list[Order], messages: Iterable[penstock.Message]) -> None:
    seen.append([(order, message.key) for order, message in zip(orders, messages, strict=True)])


def messages(messages: list[penstock.Message]) -> None:
    seen.append([message.key for message in messages])


def plain_list(messages: list) -> None:  # type: ignore[type-arg]
    seen.append([message.key for message in messages])


PAIR = (Order(7, ["tea"]), b"k")


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (order, PAIR[0]),
        (invoice, Invoice(number=7)),
        (perhaps, PAIR[0]),
        (loud(order), PAIR[0]),
        (order_and_message, PAIR),
        (message_and_order, PAIR),
        (by_name, PAIR),
        (with_defaults, PAIR),
        (functools.partial(with_session, "s"), PAIR[0]),
        (any_message, b"k"),
        (unannotated, b"k"),
        (type_checked, b"k"),
        (anything, b"k"),
    ],
)
def test_a_handler_gets_what_it_is_annotated_with(handler: Any, expected: Any) -> None:
    stub = StubClient(raises=Exception)
    stub.subscribe("orders", handler, group="g")
    stub.send("orders", PAIR[0], key="k")
    stub.run()
    assert seen == [expected]


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (orders, [PAIR[0]] * 2),
        (sequence, [PAIR[0]] * 2),
        (both_lists, [PAIR] * 2),
        (messages, [b"k"] * 2),
        (plain_list, [b"k"] * 2),
    ],
)
def test_with_batch_a_handler_gets_lists(handler: Any, expected: Any) -> None:
    stub = StubClient(raises=Exception)
    stub.subscribe("orders", handler, group="g", batch=10)
    for _ in range(2):
        stub.send("orders", PAIR[0], key="k")
    stub.run()
    assert seen == [expected]


def test_methods_and_objects_are_handlers_too() -> None:
    stub, desk = StubClient(raises=Exception), Desk()
    stub.subscribe("a", desk.bill, group="g")
    stub.subscribe("b", desk, group="g")
    stub.send("a", Order(1))
    stub.send("b", Order(2))
    stub.run()
    assert desk.seen == [Order(1), (Order(2), 0)]


def test_a_message_without_a_value_is_none_or_a_dead_letter() -> None:
    stub = StubClient()
    stub.subscribe("orders", perhaps, group="a")
    stub.subscribe("orders", order, group="b")
    stub.send("orders", None)
    stub.run()
    assert seen == [None]
    (letter,) = stub.dead_letters("b")
    assert letter.error == "DecodeError: not a valid Order: the message has no value"


async def test_coroutines_get_it_too_and_requests_are_answered_with_objects() -> None:
    stub = AsyncStubClient(raises=Exception)

    @stub.subscribe("orders", group="g")
    async def bill(order: Order, message: penstock.Message) -> None:
        await message.reply(Invoice(number=order.number))

    answer = await stub.request("orders", Order(7))
    assert answer.decode(Invoice) == Invoice(number=7)
    async with stub.transaction() as transaction:
        transaction.send("done", Order(8))
    (sent,) = stub.messages("done")
    assert sent.decode(Order) == Order(8)
    await stub.reply("penstock.replies/0/nobody", Order(1))
    await stub.send_soon("done", Order(9))
    assert [message.decode(Order).number for message in stub.messages("done")] == [8, 9]


def test_every_way_of_sending_takes_objects_and_a_codec() -> None:
    stub = StubClient(codecs=[PICKLE])
    stub.send("orders", Order(1))
    stub.send_soon("orders", Order(2), codec="json").result()
    with stub.transaction() as transaction:
        transaction.send("orders", Order(3))
    stub.reschedule("orders", "later", Order(4), delay="1s")
    stub.advance("1s")
    found = stub.messages("orders")
    assert [message.decode(Order) for message in found] == [Order(number) for number in (1, 2, 3, 4)]
    assert [message.header(CONTENT_TYPE) for message in found] == ["pickle", "json", "pickle", "pickle"]


def test_exactly_once_handlers_send_objects_in_their_transaction() -> None:
    stub = StubClient()

    @stub.subscribe("orders", group="g", delivery="exactly-once")
    def bill(order: Order, message: penstock.Message) -> None:
        message.transaction.send("invoices", Invoice(number=order.number))

    stub.send("orders", Order(7))
    stub.send("orders", b"{}")
    stub.run()
    assert [message.decode(Invoice) for message in stub.messages("invoices")] == [Invoice(number=7)]
    (letter,) = stub.dead_letters("g")
    assert letter.error == "DecodeError: not a valid Order: number is missing"


@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"delivery": "at-most-once"}, {"delivery": "exactly-once"}])
def test_what_cannot_be_decoded_is_a_dead_letter_at_once(options: Any, caplog: pytest.LogCaptureFixture) -> None:
    stub = StubClient()
    stub.subscribe("orders", order, group="g", **options)
    stub.send("orders", b'{"number":"secret"}', key="k", headers={"own": "1"})
    stub.send("orders", Order(1), key="k")
    stub.run()
    assert seen == [Order(1)]
    (letter,) = stub.dead_letters("g")
    reason = "DecodeError: not a valid Order: number: expected a whole number, not a text"
    assert (letter.value, letter.error, letter.attempt, letter.header("own")) == (
        b'{"number":"secret"}',
        reason,
        2,
        "1",
    )
    assert [record.getMessage() for record in caplog.records] == [
        f"group g: orders-0 offset 0 cannot be decoded for handler {__name__}.order: {reason}; no retry",
        f"group g: orders-0 offset 0 became a dead letter after 1 attempt: {reason}; kept in g.dead "
        "(penstock deadletter list g)",
    ]
    assert not any(record.exc_info for record in caplog.records)
    (failure,) = stub.failures
    assert isinstance(failure.error, penstock.DecodeError)


def test_what_the_applications_own_check_raises_is_logged_once_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stub = StubClient()
    stub.subscribe("orders", order, group="g")
    for _ in range(2):
        stub.send("orders", b'{"number":-1}')
    stub.run()
    first, _, second, _ = [record for record in caplog.records if record.levelname == "WARNING"]
    assert first.exc_info is not None and isinstance(first.exc_info[1], ArithmeticError)
    names = [frame.name for frame in traceback.extract_tb(first.exc_info[2])]
    assert names == ["__init__", "__post_init__"]
    assert second.exc_info is None
    assert len(stub.dead_letters("g")) == 2


def test_of_a_batch_only_what_cannot_be_decoded_is_a_dead_letter() -> None:
    stub = StubClient(raises=())
    stub.subscribe("orders", both_lists, group="g", batch=10)
    for value in (Order(1), b"x", Order(2), None):
        stub.send("orders", value, key="k")
    stub.run()
    assert seen == [[(Order(1), b"k"), (Order(2), b"k")]]
    assert len(stub.dead_letters("g")) == 2


def test_a_message_that_cannot_be_decoded_takes_no_claim() -> None:
    stub = StubClient()
    store = penstock.MemoryStore(clock=stub.clock)
    stub.subscribe("orders", order, group="g", dedup=penstock.Dedup(store))
    stub.send("orders", b"x", biz_id="7")
    stub.send("orders", Order(7), biz_id="7")
    stub.run()
    assert seen == [Order(7)]
    assert len(stub.dead_letters("g")) == 1


def test_a_retry_is_decoded_again() -> None:
    stub = StubClient()
    tried: list[tuple[Order, int]] = []

    @stub.subscribe("orders", group="g", retries=penstock.Retries(first="1s", attempts=3))
    def bill(order: Order, message: penstock.Message) -> None:
        tried.append((order, message.attempt))
        raise ValueError("no")

    stub.send("orders", Order(7))
    stub.advance("1m")
    assert tried == [(Order(7), 1), (Order(7), 2), (Order(7), 3)]


def test_a_codec_that_runs_out_of_memory_is_tried_again() -> None:
    def exhausted(value: bytes) -> Any:
        raise MemoryError

    stub = StubClient(codecs=[penstock.Codec("big", lambda data: b"x", exhausted)])
    stub.subscribe("orders", order, group="g", retries=penstock.Retries(first="1s", attempts=2))
    stub.send("orders", Order(1))
    stub.run()
    assert stub.dead_letters("g") == []
    stub.advance("1s")
    assert [letter.error for letter in stub.dead_letters("g")] == ["MemoryError"]


def numbers(numbers: dict[str, int]) -> None: ...
def listed(orders: list[Order]) -> None: ...
def odd(odd: Odd) -> None: ...
def two_orders(order: Order, other: Order) -> None: ...
def two_messages(message: penstock.Message, other: penstock.Message) -> None: ...
def three(order: Order, message: penstock.Message, more: int) -> None: ...
def nowhere(order: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821
def of_numbers(numbers: list[int]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "options", "said"),
    [
        (numbers, {}, r"numbers: dict\[str, int\] is neither a dataclass nor a pydantic model; annotate it with"),
        (listed, {}, r"orders is a list only with batch=\.\.\."),
        (order, {"batch": 2}, r"with batch, order is a list: write list\[\.\.\.\]"),
        (of_numbers, {"batch": 2}, "numbers: int is neither a dataclass nor a pydantic model"),
        (odd, {}, r"odd: Odd\.it: a message cannot be decoded to complex"),
        (two_orders, {}, "must take one argument, the message"),
        (two_messages, {}, "must take one argument, the message"),
        (three, {}, "must take one argument, the message"),
        (nowhere, {}, "the annotation of order cannot be read: NameError: name 'Nowhere' is not defined; define the"),
    ],
)
def test_what_messages_cannot_be_decoded_to_is_refused_when_the_handler_is_registered(
    handler: Any, options: Any, said: str
) -> None:
    with pytest.raises(penstock.InvalidInputError, match=said):
        StubClient().subscribe("orders", handler, group="g", **options)


def test_a_second_parameter_without_annotation_is_the_message() -> None:
    taken: list[Any] = []

    def handler(order: Order, message) -> None:  # type: ignore[no-untyped-def]
        taken.append((order, message.key))

    stub = StubClient(raises=Exception)
    stub.subscribe("orders", handler, group="g")
    stub.send("orders", Order(7), key="k")
    stub.run()
    assert taken == [(Order(7), b"k")]


def test_headers_are_read_by_name() -> None:
    stub = StubClient()
    stub.send("t", b"", headers=[("a", "1"), ("b", None), ("a", b"\xff"), ("ü", "ü")])
    (message,) = stub.messages("t")
    assert (message.header("a"), message.header_bytes("a"), message.header_values("a")) == (
        "\\xff",
        b"\xff",
        (b"1", b"\xff"),
    )
    assert (message.header("b"), message.header_bytes("b"), message.header_values("b")) == (None, None, (None,))
    assert (message.header("c"), message.header_bytes("c"), message.header_values("c")) == (None, None, ())
    assert message.header("ü") == "ü"
