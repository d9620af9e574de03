"""Redis Streams over RESP: pipelined XADD, XREAD from the beginning.

Entries get the ids 0-1, 0-2, … (`0-*`), so that a reader knows the next id without parsing replies.
"""

from __future__ import annotations

import socket

from bench.client.driver import Load, NotReady, Publisher, Subscriber
from bench.client.raw import RawPublisher, RawSubscriber, connect, receive

READ_COUNT = 1000


def command(*words: bytes) -> bytes:
    """A RESP array of bulk strings."""
    parts = [b"*%d\r\n" % len(words), *(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)]
    return b"".join(parts)


class RedisPublisher(RawPublisher):
    """XADD in pipelines."""

    def __init__(self, address: str, topic: str, load: Load) -> None:
        super().__init__(connect(address), load)
        self._topic = topic.encode()

    def encode(self, body: bytes) -> bytes:
        return command(b"XADD", self._topic, b"0-*", b"d", body)

    def acknowledged(self, data: bytes) -> int:
        # A reply is `$<length>` and the id on two lines; its dollar sign occurs once.
        if b"-ERR" in data:
            raise NotReady(data[:200].decode(errors="replace"))
        return data.count(b"$")


class RedisSubscriber(RawSubscriber):
    """XREAD, two requests ahead; one message a request while messages are still being sent."""

    def __init__(self, address: str, topic: str, size: int) -> None:
        super().__init__(connect(address), size)
        self._topic = topic.encode()
        self._asked = 0

    def marker(self) -> bytes:
        return b"$%d\r\n" % self._size

    def request(self, received: int, expected: int | None) -> None:
        if expected is None:
            self._read(b"1", received, b"BLOCK", b"0")
            return
        while self._asked < expected and self._asked - received <= READ_COUNT:
            self._read(b"%d" % READ_COUNT, self._asked)
            self._asked += READ_COUNT

    def _read(self, count: bytes, after: int, *options: bytes) -> None:
        self._link.sendall(command(b"XREAD", b"COUNT", count, *options, b"STREAMS", self._topic, b"0-%d" % after))


class RedisDialect:
    """RESP."""

    client = "raw socket, XADD pipelines of 200"

    def create(self, address: str, topic: str, partitions: int, replicas: int = 1) -> None:
        """A stream begins with its first entry."""

    def delete(self, address: str, topic: str) -> None:
        _ask(address, b"UNLINK", topic.encode())

    def publisher(self, address: str, topic: str, partitions: int, load: Load) -> Publisher:
        return RedisPublisher(address, topic, load)

    def subscriber(self, address: str, topic: str, partitions: int, size: int) -> Subscriber:
        return RedisSubscriber(address, topic, size)

    def probe(self, address: str) -> None:
        reply = _ask(address, b"XADD", b"bench-ready", b"*", b"d", b"ready")
        if not reply.startswith(b"$"):
            raise NotReady(reply.decode(errors="replace"))

    def idle_connection(self, address: str) -> socket.socket:
        link = connect(address)
        link.sendall(command(b"PING"))
        receive(link)
        return link


def _ask(address: str, *words: bytes) -> bytes:
    with connect(address) as link:
        link.sendall(command(*words))
        return receive(link)
