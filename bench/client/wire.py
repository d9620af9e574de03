"""The smallest Kafka conversation by hand: is this server answering Metadata and acknowledging Produce? What can it do?

librdkafka waits 100 ms and more between its own attempts, too coarse to time a start-up; here a connection
can be tried every few milliseconds. Versions are the oldest that every current broker still answers:
ApiVersions 0, Metadata 4 (creates the topic), Produce 3, Fetch 4. What is measured goes through Produce 9.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

import crc32c

from bench.client.driver import NotReady

_PRODUCE, _FETCH, _METADATA, _API_VERSIONS, _CREATE_TOPICS, _DELETE_TOPICS = 0, 1, 3, 18, 19, 20


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def connected(address: tuple[str, int], timeout_s: float = 60) -> socket.socket:
    """A connection without Nagle's delay."""
    link = socket.create_connection(address, timeout_s)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def exchange(link: socket.socket, api: int, version: int, body: bytes) -> bytes:
    """One request, one response body (header v0: the correlation id alone)."""
    link.sendall(frame_of(api, version, body))
    (size,) = struct.unpack(">i", exactly(link, 4))
    return exactly(link, size)[4:]


def frame_of(api: int, version: int, body: bytes) -> bytes:
    """A request as it goes through the socket."""
    header = struct.pack(">hhi", api, version, 7) + _string("bench")
    return struct.pack(">i", len(header) + len(body)) + header + body


def exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = link.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionResetError("closed by the server")
        data += part
    return data


def record_batch(values: Sequence[bytes]) -> bytes:
    """A record batch (magic 2) whose records have neither key nor headers."""
    records = bytearray()
    for index, value in enumerate(values):
        record = b"\x00\x00" + _varint(index) + b"\x01" + _varint(len(value)) + value + b"\x00"
        records += _varint(len(record)) + record
    now = time.time_ns() // 1_000_000
    last = len(values) - 1
    checked = struct.pack(">hiqqqhii", 0, last, now, now, -1, -1, -1, len(values)) + records
    tail = struct.pack(">ibI", -1, 2, crc32c.crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(tail)) + tail


def _varint(number: int) -> bytes:
    """Zigzag, of a number that is not negative."""
    return _unsigned_varint(number << 1)


def _unsigned_varint(left: int) -> bytes:
    data = bytearray()
    while left > 0x7F:
        data.append(left & 0x7F | 0x80)
        left >>= 7
    data.append(left)
    return bytes(data)


def metadata_and_produce(address: tuple[str, int], topic: str, timeout_s: float = 5) -> None:
    """Ask for a topic and append one record to it with acks=1; raises unless both succeed."""
    with connected(address, timeout_s) as link:
        answer = exchange(link, *metadata_request(topic))
        # The topic's error code is followed by its name, and its partitions by nothing longer.
        at = answer.rfind(_string(topic))
        if at < 2 or struct.unpack_from(">h", answer, at - 2)[0] != 0:
            raise NotReady("the topic is not there yet")
        answer = exchange(link, *produce_request(topic))
        (code,) = struct.unpack_from(">h", answer, 4 + len(_string(topic)) + 4 + 4)
        if code:
            raise NotReady(f"produce answered {code}")


def metadata_request(topic: str) -> tuple[int, int, bytes]:
    """For one topic, which is created if it is missing."""
    return _METADATA, 4, struct.pack(">i", 1) + _string(topic) + b"\x01"


def produce_request(topic: str) -> tuple[int, int, bytes]:
    """One record to partition 0, with acks=1."""
    batch = record_batch([b"ready"])
    body = struct.pack(">hhii", -1, 1, 5000, 1) + _string(topic) + struct.pack(">iii", 1, 0, len(batch))
    return _PRODUCE, 3, body + batch


def produce_as_clients_do(topic: str, partition: int, batch: bytes) -> tuple[int, int, bytes]:
    """One batch to one partition with acks=1, in a version with compact lengths; a name of less than 127 bytes."""
    name = topic.encode()
    head = b"\0\0" + struct.pack(">hi", 1, 60_000) + bytes([2, len(name) + 1]) + name
    # Its length plus one, as a varint: zigzag would double it.
    size = _unsigned_varint(len(batch) + 1)
    return _PRODUCE, 9, head + b"\x02" + struct.pack(">i", partition) + size + batch + b"\0\0\0"


def produce_answer_bytes(topic: str) -> int:
    """Size of the answer to `produce_as_clients_do`, whole, if the batch was taken."""
    return produce_error_at(topic) + (2 + 8 + 8 + 8 + 3) + 1 + 4 + 1


def produce_error_at(topic: str) -> int:
    """Where in that answer the two bytes of the error code are."""
    return 8 + 1 + 2 + len(topic.encode()) + 1 + 4


def fetch_request(topic: str, partition: int, offset: int, size: int) -> tuple[int, int, bytes]:
    """`size` bytes from an offset on, which have to be there."""
    body = struct.pack(">iiiib", -1, 60_000, size, size, 0) + struct.pack(">i", 1) + _string(topic)
    return _FETCH, 4, body + struct.pack(">iiqi", 1, partition, offset, size)


def fetch_answer_bytes(topic: str, size: int) -> int:
    """Size of the answer to `fetch_request`, whole."""
    return 8 + 4 + 4 + len(_string(topic)) + 4 + (4 + 2 + 8 + 8 + 4 + 4) + size


def produce_to_all(link: socket.socket, topic: str, partitions: int, at_once: int = 200) -> None:
    """One record to every partition, with acks=1; raises unless all are taken."""
    batch = record_batch([b"first"])
    for first in range(0, partitions, at_once):
        indexes = range(first, min(first + at_once, partitions))
        body = struct.pack(">hhii", -1, 1, 60_000, 1) + _string(topic) + struct.pack(">i", len(indexes))
        answer = exchange(
            link, _PRODUCE, 3, body + b"".join(struct.pack(">ii", index, len(batch)) + batch for index in indexes)
        )
        at = 4 + len(_string(topic)) + 4
        for _ in indexes:
            index, code = struct.unpack_from(">ih", answer, at)
            if code:
                raise NotReady(f"produce to {topic}-{index} answered {code}")
            at += 4 + 2 + 8 + 8


def create_topic(link: socket.socket, topic: str, partitions: int, limit_ms: int = 300_000) -> None:
    """Returns when the server says that the topic is there."""
    body = struct.pack(">i", 1) + _string(topic) + struct.pack(">ihii", partitions, 1, 0, 0)
    answer = exchange(link, _CREATE_TOPICS, 2, body + struct.pack(">ib", limit_ms, 0))
    (code,) = struct.unpack_from(">h", answer, 8 + len(_string(topic)))
    if code:
        raise NotReady(f"CreateTopics answered {code}")


def delete_topic(link: socket.socket, topic: str, limit_ms: int = 300_000) -> None:
    answer = exchange(link, _DELETE_TOPICS, 1, struct.pack(">i", 1) + _string(topic) + struct.pack(">i", limit_ms))
    (code,) = struct.unpack_from(">h", answer, 8 + len(_string(topic)))
    if code:
        raise NotReady(f"DeleteTopics answered {code}")


def api_keys(address: tuple[str, int]) -> set[int]:
    """Which APIs the server has."""
    with socket.create_connection(address, 10) as link:
        answer = exchange(link, _API_VERSIONS, 0, b"")
    code, count = struct.unpack_from(">hi", answer)
    if code:
        raise NotReady(f"ApiVersions answered {code}")
    return {struct.unpack_from(">h", answer, 6 + 6 * index)[0] for index in range(count)}


def idle_connection(address: tuple[str, int]) -> socket.socket:
    """A connection that has said who it is (ApiVersions) and then stays silent."""
    link = socket.create_connection(address, 10)
    exchange(link, _API_VERSIONS, 0, b"")
    return link
