"""What an application gives wrongly is refused when it is given, with the words that say what to write."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.testing import AsyncStubClient, StubClient


def fine(message: penstock.Message) -> None: ...


def optional(message: penstock.Message, more: int = 1) -> None: ...


def two(message: penstock.Message, session: object) -> None: ...


def none() -> None: ...


def by_name(*, message: penstock.Message) -> None: ...


def generator(message: penstock.Message) -> Any:
    yield


async def coroutine(message: penstock.Message) -> None: ...


async def coroutine_of_two(message: penstock.Message, session: object) -> None: ...


class Called:
    def __call__(self, message: penstock.Message) -> None: ...


class Awaited:
    async def __call__(self, message: penstock.Message) -> None: ...


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r'group is missing: write subscribe\("orders", group="\.\.\."\)'),
        ({"grup": "g"}, "unknown option grup; did you mean group?"),
        ({"zzz": 1, "group": "g"}, "unknown option zzz; options of a subscription: group, retries, deadline, "),
        ({"deadlin": "5m"}, "unknown option deadlin; did you mean deadline?"),
        ({"group": 5}, "group must be a name of 1 to 249 characters, not 5"),
        ({"group": "x" * 250}, "a name of 1 to 249 characters"),
        ({"retries": 3}, r"retries must be a penstock\.Retries, not 3: write penstock\.Retries\(attempts=3\)"),
        ({"retries": {"attempts": 3}}, r"write penstock\.Retries\("),
        ({"retries": False}, r"not False: .* penstock\.Retries\(attempts=1\) turns retries off"),
        ({"retries": penstock.Retries}, r"write penstock\.Retries\("),
        ({"deadline": "soon"}, "deadline: 'soon' is not a duration"),
        ({"concurrency": "4"}, "concurrency must be a whole number from 1 to 10000, not '4'"),
        ({"concurrency": True}, "concurrency must be .*, not True"),
        ({"in_flight": 2.5}, r"in_flight must be .*, not 2\.5"),
        ({"batch": True}, "batch must be a whole number from 1 .* not True"),
        ({"rate": "5"}, "rate must be a number of messages per second above 0, not '5'"),
        ({"rate": float("nan")}, "rate must be .*, not nan"),
        ({"ordered": "yes"}, "ordered must be True or False, not 'yes'"),
        ({"dedup": penstock.MemoryStore()}, r"dedup must be a penstock\.Dedup\(store\)"),
        ({"tags": ["a"]}, "tags must be an expression such as"),
        ({"tags": "a and ("}, "tags"),
        ({"delivery": "once"}, "delivery must be one of at-most-once, .*, not 'once'"),
        ({"from_beginning": "no"}, "from_beginning must be .*, not 'no'"),
    ],
)
def test_what_is_wrong_about_a_subscription_is_said_when_it_is_declared(options: dict[str, Any], said: str) -> None:
    given = {"group": "g", **options} if options and "grup" not in options else options
    with pytest.raises(penstock.InvalidInputError, match=said):
        StubClient().subscribe("orders", fine, **given)


@pytest.mark.parametrize(
    ("topics", "said"),
    [
        (fine, r'write subscribe\("orders", group="billing"\)'),
        (None, "topics must be .*, not None"),
        (5, "topics must be .*, not 5"),
        (b"orders", "topics must be .*, not b'orders'"),
        ([], "name at least one topic"),
        (["orders", 5], "5 is not a topic name"),
        ("or ders", "'or ders' is not a topic name"),
        ("^orders.*", "is a pattern: name the topics one by one"),
    ],
)
def test_topics_are_names(topics: Any, said: str) -> None:
    with pytest.raises(penstock.InvalidInputError, match=said):
        StubClient().subscribe(topics, fine, group="g")


@pytest.mark.parametrize("handler", [fine, optional, Called(), functools.partial(two, session=1), [].append, print])
def test_whatever_takes_a_message_can_be_a_handler(handler: Any) -> None:
    assert StubClient().subscribe("orders", handler, group="g") is handler


@pytest.mark.parametrize("handler", [coroutine, Awaited(), functools.partial(coroutine_of_two, session=1)])
def test_whatever_takes_a_message_and_is_awaited_can_be_a_handler_of_an_event_loop(handler: Any) -> None:
    assert AsyncStubClient().subscribe("orders", handler, group="g") is handler


@pytest.mark.parametrize(
    ("client", "handler", "said"),
    [
        (StubClient, two, r"two\(.*session.*\).* cannot be a handler: it must take one argument, the message"),
        (StubClient, none, r"none\(\).* cannot be a handler: it must take one argument"),
        (StubClient, by_name, "must take one argument"),
        (StubClient, generator, "it contains yield"),
        (StubClient, coroutine, r"coroutine is a coroutine function .*penstock\.aio\.Client"),
        (StubClient, Awaited(), r"penstock\.aio\.Client"),
        (StubClient, functools.partial(coroutine), r"penstock\.aio\.Client"),
        (StubClient, 5, "5 is not a handler"),
        (AsyncStubClient, fine, r"fine is not a coroutine function \(async def\)"),
        (AsyncStubClient, Called(), "not a coroutine function"),
        (AsyncStubClient, coroutine_of_two, "must take one argument"),
        (AsyncStubClient, generator, "it contains yield"),
        (AsyncStubClient, None.__init__, "is not a coroutine function"),  # type: ignore[misc]
    ],
)
def test_what_cannot_be_called_with_a_message_is_refused_as_a_handler(
    client: Callable[[], Any], handler: Any, said: str
) -> None:
    with pytest.raises(penstock.InvalidInputError, match=said):
        client().subscribe("orders", group="g")(handler)


def test_a_coroutine_that_nobody_awaits_is_a_failure() -> None:
    stub = StubClient()
    stub.subscribe("orders", lambda message: coroutine(message), group="g", retries=penstock.Retries(attempts=1))
    stub.send("orders", "x")
    stub.run()
    (failure,) = stub.failures
    assert "the handler returned a coroutine, which penstock.Client cannot await" in str(failure.error)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: penstock.Retries(attempts="3"), "attempts must be a whole number of 1 or more, not '3'"),  # type: ignore[arg-type]
        (lambda: penstock.Retries(attempts=True), "attempts must be .*, not True"),
        (lambda: penstock.Retries(factor="2"), "factor must be a number of 1 or more, not '2'"),  # type: ignore[arg-type]
        (lambda: penstock.Retries(jitter=2), "jitter must be a fraction from 0 to 1, not 2"),
        (lambda: penstock.Dedup(5), "store must be a MemoryStore.*, not 5"),  # type: ignore[arg-type]
        (lambda: penstock.Dedup(penstock.MemoryStore), "store must be a MemoryStore"),  # type: ignore[arg-type]
        (lambda: penstock.MemoryStore("x"), "entries must be .*, not 'x'"),  # type: ignore[arg-type]
        (lambda: penstock.Sending(tries="3"), "tries must be .*, not '3'"),  # type: ignore[arg-type]
        (lambda: penstock.Sending(when_away=penstock.Keep), r"when_away must be penstock\.Keep\(\)"),  # type: ignore[arg-type]
        (lambda: penstock.Keep(messages="x"), "Keep: messages must be 1 to .*, not 'x'"),  # type: ignore[arg-type]
        (lambda: penstock.Spill(5), "folder must be a path, not 5"),  # type: ignore[arg-type]
        (lambda: penstock.Client("localhost"), "is not HOST:PORT"),
        (lambda: penstock.Client("localhost:99999"), "is not HOST:PORT"),
        (lambda: penstock.Client(client_id=5), "client_id must be .*, not 5"),  # type: ignore[arg-type]
        (lambda: penstock.Client(sending={"tries": 1}), r"sending must be a penstock\.Sending"),  # type: ignore[arg-type]
        (lambda: penstock.Client(hooks=penstock.Hooks()), "hooks must be a list"),  # type: ignore[arg-type]
        (lambda: penstock.Client(hooks=[penstock.Hooks]), "contains the class Hooks"),  # type: ignore[list-item]
        (lambda: penstock.Client(settings=5), "settings must be a mapping .*, not 5"),  # type: ignore[arg-type]
        (lambda: penstock.Client(settings={"foo": 1}), 'settings: No such configuration property: "foo"'),
        (lambda: penstock.aio.Client(settings={"foo": 1}), 'settings: No such configuration property: "foo"'),
        (lambda: StubClient(hooks=[penstock.Hooks]), "contains the class Hooks"),  # type: ignore[list-item]
        (lambda: StubClient().send(["orders"], "x"), "is not a topic name"),  # type: ignore[arg-type]
        (lambda: StubClient().send("orders", "x", headers=5), "headers must be .*, not 5"),  # type: ignore[arg-type]
        (lambda: StubClient().send("orders", "x", headers=["ab"]), "'ab' is not a header"),  # type: ignore[list-item]
        (lambda: StubClient().send("orders", "x", tags=5), "tags must be .*, not 5"),  # type: ignore[arg-type]
        (lambda: StubClient().send("orders", "x", schedule=5), "schedule must be .*, not 5"),  # type: ignore[arg-type]
        (lambda: StubClient().send("orders", "x", ky="1"), "unknown option ky; did you mean key?"),  # type: ignore[call-arg]
        (lambda: StubClient().send_soon("orders", "x", on_result=5), "on_result must be .*, not 5"),  # type: ignore[arg-type]
        (lambda: StubClient().timers("orders", limit="x"), "limit must be .*, not 'x'"),  # type: ignore[arg-type]
        (lambda: StubClient().timers("orders", lmit=1), "did you mean limit?"),  # type: ignore[call-arg]
        (lambda: StubClient().transaction(5).__enter__(), "transactional_id must be .*, not 5"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong_elsewhere_is_named_too(make: Callable[[], object], said: str) -> None:
    with pytest.raises(penstock.InvalidInputError, match=said):
        make()
