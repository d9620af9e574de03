"""NATS JetStream over its text protocol: acknowledged publishing, pull consuming without acks.

The server's PINGs stay unanswered: it closes a connection after minutes of that, and no job lasts so long.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from bench.client.driver import DriverError, Load, NotReady, Publisher, Subscriber
from bench.client.raw import RawPublisher, RawSubscriber, connect, receive

INBOX = b"_INBOX.bench"
BATCH = 2000
_HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\nPING\r\n'


def introduce(address: str) -> socket.socket:
    """A connection past CONNECT, subscribed to its inbox."""
    link = connect(address)
    link.sendall(_HELLO + b"SUB %s.%d 1\r\n" % (INBOX, link.getsockname()[1]))
    seen = b""
    while b"PONG\r\n" not in seen:
        seen += receive(link)
    return link


def inbox(link: socket.socket) -> bytes:
    """Where this connection gets replies; its port tells it from others."""
    return b"%s.%d" % (INBOX, link.getsockname()[1])


def ask(link: socket.socket, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    """One JetStream API call."""
    raw = json.dumps(body).encode()
    link.sendall(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), inbox(link), len(raw), raw))
    data = b""
    while b"\r\n{" not in data or not data.endswith(b"}\r\n"):
        data += receive(link)
        if b" 503" in data:
            raise NotReady("JetStream is not up")
    reply: dict[str, Any] = json.loads(data[data.index(b"\r\n{") :])
    if "error" in reply:
        raise NotReady(str(reply["error"]))
    return reply


class NatsPublisher(RawPublisher):
    """PUB with a reply subject, so that JetStream acknowledges."""

    def __init__(self, address: str, topic: str, load: Load) -> None:
        link = introduce(address)
        super().__init__(link, load)
        self._prefix = b"PUB %s %s " % (topic.encode(), inbox(link))
        self._rest = b""

    def encode(self, body: bytes) -> bytes:
        return b"%s%d\r\n%s\r\n" % (self._prefix, len(body), body)

    def acknowledged(self, data: bytes) -> int:
        data = self._rest + data
        whole, _, self._rest = data.rpartition(b"\r\n")
        if b'"error"' in whole:
            raise DriverError(whole[:200].decode(errors="replace"))
        return whole.count(b'"seq"')


class NatsSubscriber(RawSubscriber):
    """A pull consumer; requests overlap so that the server never waits."""

    def __init__(self, address: str, topic: str, size: int) -> None:
        link = introduce(address)
        super().__init__(link, size)
        config = {"durable_name": "reader", "ack_policy": "none", "deliver_policy": "all"}
        body = {"stream_name": topic, "config": config}
        ask(link, f"$JS.API.CONSUMER.DURABLE.CREATE.{topic}.reader", body)
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{topic}.reader".encode()
        self._asked = 0

    def marker(self) -> bytes:
        return b" %d\r\n" % self._size

    def request(self, received: int, expected: int | None) -> None:
        while self._asked - received <= BATCH:
            raw = b'{"batch":%d}' % BATCH
            self._link.sendall(b"PUB %s %s %d\r\n%s\r\n" % (self._next, inbox(self._link), len(raw), raw))
            self._asked += BATCH


class NatsDialect:
    """NATS with JetStream."""

    client = "raw socket, window of 4,000"

    def create(self, address: str, topic: str, partitions: int, replicas: int = 1) -> None:
        with introduce(address) as link:
            ask(
                link,
                f"$JS.API.STREAM.CREATE.{topic}",
                {
                    "name": topic,
                    "subjects": [topic],
                    "storage": "file",
                    "retention": "limits",
                    "num_replicas": 1,
                },
            )

    def delete(self, address: str, topic: str) -> None:
        with introduce(address) as link:
            ask(link, f"$JS.API.STREAM.DELETE.{topic}", {})

    def publisher(self, address: str, topic: str, partitions: int, load: Load) -> Publisher:
        return NatsPublisher(address, topic, load)

    def subscriber(self, address: str, topic: str, partitions: int, size: int) -> Subscriber:
        return NatsSubscriber(address, topic, size)

    def probe(self, address: str) -> None:
        self.create(address, "bench-ready", 1)
        publisher = NatsPublisher(address, "bench-ready", Load())
        publisher.send(b"ready")
        publisher.flush(5)
        publisher.close()

    def idle_connection(self, address: str) -> socket.socket:
        return introduce(address)
