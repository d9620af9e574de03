"""RabbitMQ over AMQP 0-9-1: persistent messages with confirms into a quorum queue, read without acks."""

from __future__ import annotations

import socket
import struct

from bench.client.driver import DriverError, Load, Publisher, Subscriber
from bench.client.raw import RawPublisher, RawSubscriber, connect, receive

CHANNEL = 1
_FRAME = struct.Struct(">BHI")  # type, channel, size; a body and 0xCE follow
_METHOD, _HEADER, _BODY = 1, 2, 3
_END = b"\xce"
_ACK, _NACK = (60, 80), (60, 120)
FRAME_MAX = 131_072


def frame(kind: int, channel: int, body: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(body)) + body + _END


def method(channel: int, number: tuple[int, int], arguments: bytes = b"") -> bytes:
    return frame(_METHOD, channel, struct.pack(">HH", *number) + arguments)


def short(text: str) -> bytes:
    raw = text.encode()
    return bytes([len(raw)]) + raw


def long(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


class Frames:
    """Cuts received bytes into method frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[tuple[int, int], bytes]]:
        """Whole frames as (class and method, arguments)."""
        data = self._rest + data
        at, found = 0, []
        while len(data) >= at + _FRAME.size:
            kind, _, size = _FRAME.unpack_from(data, at)
            end = at + _FRAME.size + size + 1
            if len(data) < end:
                break
            if kind == _METHOD:
                body = data[at + _FRAME.size : end - 1]
                number: tuple[int, int] = struct.unpack_from(">HH", body)
                found.append((number, body[4:]))
            at = end
        self._rest = data[at:]
        return found


def call(link: socket.socket, request: bytes, answer: tuple[int, int]) -> bytes:
    """Send and wait for the method that answers."""
    link.sendall(request)
    frames = Frames()
    while True:
        for number, arguments in frames.feed(receive(link)):
            if number == answer:
                return arguments
            if number in ((10, 50), (20, 40)):
                raise DriverError(f"closed by the server: {arguments[2:120].decode(errors='replace')}")


def introduce(address: str) -> socket.socket:
    """A connection with one open channel."""
    link = connect(address)
    call(link, b"AMQP\x00\x00\x09\x01", (10, 10))
    login = long(b"") + short("PLAIN") + long(b"\x00guest\x00guest") + short("en_US")
    call(link, method(0, (10, 11), login), (10, 30))
    tune = method(0, (10, 31), struct.pack(">HIH", 2047, FRAME_MAX, 0))
    call(link, tune + method(0, (10, 40), short("/") + short("") + b"\x00"), (10, 41))
    call(link, method(CHANNEL, (20, 10), short("")), (20, 11))
    return link


def declare(link: socket.socket, queue: str) -> None:
    """A durable quorum queue."""
    arguments = long(short("x-queue-type") + b"S" + long(b"quorum"))
    call(link, method(CHANNEL, (50, 10), b"\x00\x00" + short(queue) + b"\x02" + arguments), (50, 11))


class AmqpPublisher(RawPublisher):
    """basic.publish with confirms."""

    def __init__(self, address: str, topic: str, load: Load) -> None:
        link = introduce(address)
        super().__init__(link, load)
        call(link, method(CHANNEL, (85, 10), b"\x00"), (85, 11))
        self._publish = method(CHANNEL, (60, 40), b"\x00\x00" + short("") + short(topic) + b"\x00")
        self._frames = Frames()
        self._low = 0  # every delivery tag up to here is confirmed
        self._above: set[int] = set()  # confirmed tags beyond it

    def encode(self, body: bytes) -> bytes:
        header = struct.pack(">HHQHB", 60, 0, len(body), 0x1000, 2)
        return self._publish + frame(_HEADER, CHANNEL, header) + frame(_BODY, CHANNEL, body)

    def acknowledged(self, data: bytes) -> int:
        before = self._low + len(self._above)
        for number, arguments in self._frames.feed(data):
            if number == _NACK:
                raise DriverError("the server refused a message")
            if number == _ACK:
                tag, multiple = struct.unpack(">QB", arguments)
                self._confirm(tag, multiple == 1)
        return self._low + len(self._above) - before

    def _confirm(self, tag: int, multiple: bool) -> None:
        if multiple:
            self._low = max(self._low, tag)
            self._above = {other for other in self._above if other > self._low}
        else:
            self._above.add(tag)
        while self._low + 1 in self._above:
            self._low += 1
            self._above.remove(self._low)


class AmqpSubscriber(RawSubscriber):
    """basic.consume without acknowledgements; the server sends on its own."""

    def __init__(self, address: str, topic: str, size: int) -> None:
        super().__init__(introduce(address), size)
        self._consume = method(CHANNEL, (60, 20), b"\x00\x00" + short(topic) + short("reader") + b"\x02" + long(b""))

    def marker(self) -> bytes:
        return _FRAME.pack(_BODY, CHANNEL, self._size)

    def request(self, received: int, expected: int | None) -> None:
        if self._consume:
            self._link.sendall(self._consume)
            self._consume = b""


class AmqpDialect:
    """AMQP 0-9-1."""

    client = "raw socket, confirms, window of 4,000, quorum queue"

    def create(self, address: str, topic: str, partitions: int, replicas: int = 1) -> None:
        with introduce(address) as link:
            declare(link, topic)

    def delete(self, address: str, topic: str) -> None:
        with introduce(address) as link:
            call(link, method(CHANNEL, (50, 40), b"\x00\x00" + short(topic) + b"\x00"), (50, 41))

    def publisher(self, address: str, topic: str, partitions: int, load: Load) -> Publisher:
        return AmqpPublisher(address, topic, load)

    def subscriber(self, address: str, topic: str, partitions: int, size: int) -> Subscriber:
        return AmqpSubscriber(address, topic, size)

    def probe(self, address: str) -> None:
        self.create(address, "bench-ready", 1)
        publisher = AmqpPublisher(address, "bench-ready", Load())
        publisher.send(b"ready")
        publisher.flush(5)
        publisher.close()

    def idle_connection(self, address: str) -> socket.socket:
        return introduce(address)
