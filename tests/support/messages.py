"""What a message of confluent-kafka certainly has, where its types allow for None."""

from __future__ import annotations

from confluent_kafka import Message


def place_of(message: Message) -> tuple[int, int]:
    """Partition and offset of a message that was consumed, or acknowledged with its offset."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None and offset is not None
    return partition, offset


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """All of them in order: a name may come twice."""
    headers = message.headers() or []
    assert isinstance(headers, list)
    found: list[tuple[str, bytes | None]] = []
    for name, value in headers:
        assert not isinstance(value, str)
        found.append((name, value))
    return found
