"""Unsigned varints and the tagged-field sections built of them (KIP-482).

Seven bits a byte, lowest first, the high bit set on every byte but the last. Lengths in flexible
versions are written plus one, so that zero can mean null. Running off the end of the data raises
`IndexError` here; the callers that own a whole message turn it into `ProtocolError`.
"""

from __future__ import annotations

from penstock.errors import ProtocolError

# A Kafka varint holds 32 bits, so the fifth byte is the last.
_LAST_SHIFT = 28

MAX_TAGS = 100
"""Tagged fields in one section: Kafka knows of ten at most, and each takes a turn of a loop to skip."""

ONE_BYTE = tuple(bytes((value,)) for value in range(128))


def read_uvarint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The value at `position` and the position after it."""
    value = data[position]
    if value < 128:
        return value, position + 1
    return continue_uvarint(data, position + 1, value)


def continue_uvarint(data: bytes | memoryview, position: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose first byte, already read, had its high bit set."""
    value = first & 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > _LAST_SHIFT:
            raise ProtocolError("a varint is longer than five bytes")


def uvarint(value: int) -> bytes:
    if value < 128:
        return ONE_BYTE[value]
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def skip_tags(data: bytes | memoryview, position: int, count: int) -> int:
    """The position after `count` tagged fields, none of which is wanted."""
    if count > MAX_TAGS:
        raise ProtocolError(f"{count} tagged fields in one section; {MAX_TAGS} are allowed")
    end = len(data)
    for _ in range(count):
        _, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        position += size
        if position > end:
            raise ProtocolError("a tagged field runs past the end of the message")
    return position


def skip_tag_section(data: bytes | memoryview, position: int) -> int:
    """The position after a whole tagged-field section, its count included."""
    count, position = read_uvarint(data, position)
    return skip_tags(data, position, count) if count else position
