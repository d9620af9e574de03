"""Queues served over TCP: hostile bytes, bounds, servers that start again."""

from __future__ import annotations

import json
import logging
import random
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

import penstock
from penstock.brokerless.consumer import StoreGroupConsumer
from penstock.brokerless.store import StoreAwayError, StoreRefusedError
from penstock.brokerless.tcp import server
from penstock.brokerless.tcp.client import RemoteStore
from penstock.brokerless.tcp.frames import MAX_FRAME_BYTES, Blobs, FrameError, decode, encode
from penstock.brokerless.tcp.queue import ServedQueue
from penstock.brokerless.tcp.served_calls import CALLS
from penstock.clock import ManualClock
from penstock.ids import TopicPartition
from penstock.sdk.errors import InvalidInputError, TopicError
from penstock.sdk.receive.subscription_options import validate_options
from support.ports import free_ports
from support.queue_stores import all_values, batch, joined, offsets, values
from support.receiving import Heard, running
from support.waiting import until

TP = TopicPartition("orders", 0)
HELLO = encode({"hello": "penstock"}, Blobs())


@pytest.fixture
def served() -> Iterator[ServedQueue]:
    with closing(ServedQueue("127.0.0.1", 0, max_messages=100)) as queue:
        yield queue


@pytest.fixture
def remote(served: ServedQueue) -> Iterator[RemoteStore]:
    with closing(RemoteStore("127.0.0.1", served.port)) as store:
        store.topics.create("orders", 2)
        yield store


def ends(connection: socket.socket) -> bool:
    """Whether the peer closes the connection."""
    connection.settimeout(30)
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def frame(header: object, body: bytes = b"", version: int = 1) -> bytes:
    raw = json.dumps(header).encode()
    content = struct.pack(">BI", version, len(raw)) + raw + body
    return struct.pack(">I", len(content)) + content


HOSTILE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": b"\0" * 64,
    "huge": b"\xff" * 64,
    "version": frame({"hello": "penstock", "blobs": []}, version=9),
    "no greeting": frame({"call": "shape", "args": ["orders"], "blobs": []}),
    "not JSON": struct.pack(">IBI", 7, 1, 2) + b"{{",
    "no object": frame([1, 2]),
    "deep": struct.pack(">IBI", 100_005, 1, 100_000) + b"[" * 100_000,
    "no lengths": HELLO + frame({"call": "shape", "args": ["orders"]}),
    "lengths": HELLO + frame({"call": "shape", "args": ["orders"], "blobs": [5]}, b"ab"),
    "negative": HELLO + frame({"call": "shape", "args": ["orders"], "blobs": [-1]}),
    "unknown call": HELLO + frame({"call": "close", "args": [], "blobs": []}),
    "call of no text": HELLO + frame({"call": {"a": 1}, "args": [], "blobs": []}),
    "header length": HELLO + struct.pack(">IBI", 5, 1, 1 << 31),
    "place": HELLO + frame({"call": "append", "args": [[["orders", 0], [[7, None, [], None]], 1, 0]], "blobs": []}),
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_close_the_connection_and_hurt_nobody(
    remote: RemoteStore, served: ServedQueue, caplog: pytest.LogCaptureFixture, raw: bytes
) -> None:
    remote.append(batch(TP, "a"))
    with caplog.at_level(logging.WARNING), socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(raw)
        assert ends(connection)
    until(lambda: "closed the connection from" in caplog.text, "a line in the log")
    assert "a bug in the SDK" not in caplog.text
    assert all_values(remote, TP) == ["a"]


def test_calls_with_any_arguments_end_in_an_answer_or_a_closed_connection(
    remote: RemoteStore, served: ServedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(7)
    pieces = [
        None,
        True,
        -1,
        0,
        1 << 70,
        1.5,
        "",
        "orders",
        "x" * 300,
        [],
        {},
        [["orders", 0]],
        [["orders", 0], 1],
        {"a": 1},
    ]
    with caplog.at_level(logging.WARNING):
        for name in CALLS:
            for _ in range(40):
                args = [chance.choice(pieces) for _ in range(chance.randrange(6))]
                if name == "wait" and len(args) == 2:
                    args[1] = 0
                with socket.create_connection(("127.0.0.1", served.port)) as connection:
                    connection.sendall(HELLO + frame({"call": name, "args": args, "blobs": []}))
                    connection.shutdown(socket.SHUT_WR)
                    assert ends(connection)
    assert "a bug in the SDK" not in caplog.text
    remote.append(batch(TP, "alive"))
    assert all_values(remote, TP) == ["alive"]


def test_frames_cut_at_any_byte_are_no_frames() -> None:
    blobs = Blobs()
    blobs.put(b"abc")
    whole = encode({"call": "x"}, blobs)[4:]
    for size in range(len(whole)):
        with pytest.raises(FrameError):
            decode(whole[:size])
    assert decode(whole).blobs == [b"abc"]


def test_connections_are_bounded(served: ServedQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)
    first, second = (socket.create_connection(("127.0.0.1", served.port)) for _ in range(2))
    with first, second:
        first.sendall(HELLO)
        second.sendall(HELLO)
        assert first.recv(1) and second.recv(1)
        with socket.create_connection(("127.0.0.1", served.port)) as third:
            assert ends(third)


def test_full_memory_holds_producers_back_until_messages_are_read(remote: RemoteStore) -> None:
    joined(remote, "g", "a", "orders")
    epoch = remote.claim("g", "a", [TP])[TP].epoch
    for number in range(100):
        remote.append(batch(TP, str(number), first=number))
    with pytest.raises(StoreAwayError):
        remote.append(batch(TP, "more", first=100))
    remote.commit(offsets("g", "a", TP, 60, epoch))
    assert list(remote.append(batch(TP, "more", first=100))) == [100]


def test_memory_is_bounded_in_bytes() -> None:
    with (
        closing(ServedQueue("127.0.0.1", 0, max_bytes=1000)) as served,
        closing(RemoteStore("127.0.0.1", served.port)) as remote,
    ):
        remote.topics.create("orders", 1)
        joined(remote, "g", "a", "orders")
        assert remote.claim("g", "a", [TP])
        remote.append(batch(TP, "x" * 1000))
        with pytest.raises(StoreAwayError, match="full"):
            remote.append(batch(TP, "y", first=1))


def test_message_larger_than_a_frame_is_refused_before_it_is_sent(remote: RemoteStore) -> None:
    with pytest.raises(StoreRefusedError, match="larger than"):
        remote.append(batch(TP, "x" * MAX_FRAME_BYTES))


def test_page_of_large_messages_is_cut_to_fit(remote: RemoteStore) -> None:
    for number in range(24):
        remote.append(batch(TP, "x" * 1_000_000, first=number))
    page = remote.read(TP, 0, 100)
    assert 10 < len(page.messages) < 24
    assert page.next_offset == len(page.messages)
    assert len(all_values(remote, TP)) == 24


def test_address_in_use_is_refused(served: ServedQueue) -> None:
    with pytest.raises(InvalidInputError, match="could not serve at"):
        penstock.open(f"tcp://127.0.0.1:{served.port}?serve")


def test_nobody_there_is_an_error_that_may_be_over_soon() -> None:
    with closing(RemoteStore("127.0.0.1", free_ports(1)[0])) as store:
        for _ in range(3):
            with pytest.raises(StoreAwayError):
                store.bounds(TP)
        with pytest.raises(TopicError):
            store.topics.shape("orders")


def test_something_else_behind_the_address_is_named() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        closing(RemoteStore("127.0.0.1", other.getsockname()[1])) as store,
    ):
        other.settimeout(30)

        def answer() -> None:
            connection, _ = other.accept()
            connection.sendall(b"220 mail.example ESMTP\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(StoreAwayError):
            store.bounds(TP)
        thread.join()


def test_clients_go_on_with_a_server_that_was_started_again(caplog: pytest.LogCaptureFixture) -> None:
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    heard = Heard()
    with penstock.open(address) as consumer, penstock.open(address) as producer:
        consumer.subscribe("orders", heard, group="g", tags="red")
        consumer.start()
        with penstock.open(f"{address}?serve"):
            producer.send("orders", b"first", key="k", tags=["red"])
            heard.wait(1)
        with penstock.open(f"{address}?serve"):
            producer.send("orders", b"second", key="k", tags=["red"])
            heard.wait(2)
            consumer.stop()
    assert heard.values == [b"first", b"second"]


class NoListener:
    """Does nothing about partitions that come and go."""

    def assigned(self, topic_partitions: Sequence[TopicPartition]) -> None: ...

    def revoked(self, topic_partitions: Sequence[TopicPartition]) -> None: ...

    def lost(self, topic_partitions: Sequence[TopicPartition]) -> None: ...


def test_consumer_does_not_go_on_at_its_offset_in_a_server_that_was_started_again() -> None:
    (port,) = free_ports(1)
    read: list[str] = []
    with closing(RemoteStore("127.0.0.1", port)) as store:
        # No heartbeat that is due later tells it that its claims are gone: the clock stands still.
        consumer = StoreGroupConsumer(store, validate_options("orders", group="g"), ManualClock())

        def has_read(count: int) -> bool:
            read.extend(values(consumer.poll(10, 0)))
            return len(read) >= count

        with closing(ServedQueue("127.0.0.1", port)) as first:
            first.topics.create("orders", 1)
            first.append(batch(TP, "a", "b"))
            consumer.join(["orders"], NoListener())
            until(lambda: has_read(2), "what the first server has is read")
        with closing(ServedQueue("127.0.0.1", port)) as second:
            second.topics.create("orders", 1)
            second.append(batch(TP, "c", "d", "e"))
            until(lambda: has_read(5), "all that the second server has is read")
    assert read == ["a", "b", "c", "d", "e"]


def test_serving_client_is_a_client_itself() -> None:
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    heard = Heard()
    with penstock.open(f"{address}?serve") as serving, penstock.open(address) as other:
        serving.subscribe("orders", heard, group="g")
        with running(serving):
            other.send("orders", b"from the other side")
            heard.wait(1)
