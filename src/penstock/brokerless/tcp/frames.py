"""Frames of the protocol between a served store and its clients. No input or output beside a given socket.

u32  length of what follows, at most MAX_FRAME_BYTES
u8   version
u32  length of the header
     header: JSON, an object; `blobs` has the lengths of the byte strings
     the byte strings, one after the other
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
MAX_FRAME_BYTES = 64 * 1024 * 1024
MAX_HEADER_BYTES = 16 * 1024 * 1024
MAX_BLOBS = 1_000_000
_LENGTH = struct.Struct(">I")
_REST = struct.Struct(">BI")
_PART_BYTES = 1024 * 1024


class FrameError(Exception):
    """What came is no frame of this protocol; the connection cannot go on."""


class FrameTooLargeError(Exception):
    """What should be sent does not fit into a frame; nothing was sent."""


@dataclass(slots=True)
class Blobs:
    """The byte strings of a frame that is made; the header has their places."""

    parts: list[bytes] = field(default_factory=list)

    def put(self, value: bytes | None) -> int | None:
        if value is None:
            return None
        self.parts.append(value)
        return len(self.parts) - 1


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that was received."""

    header: Mapping[str, Any]
    blobs: Sequence[bytes]

    def blob(self, place: object) -> bytes | None:
        """The byte string at a place that the header names. Raises `FrameError`."""
        if place is None:
            return None
        if type(place) is not int or not 0 <= place < len(self.blobs):
            raise FrameError(f"there is no byte string {place!r}")
        return self.blobs[place]


def encode(header: Mapping[str, Any], blobs: Blobs) -> bytes:
    """A frame. Raises `FrameTooLargeError`."""
    raw = json.dumps({**header, "blobs": [len(part) for part in blobs.parts]}, separators=(",", ":")).encode()
    length = _REST.size + len(raw) + sum(len(part) for part in blobs.parts)
    if length > MAX_FRAME_BYTES or len(raw) > MAX_HEADER_BYTES or len(blobs.parts) > MAX_BLOBS:
        raise FrameTooLargeError(f"a frame of {length} bytes is larger than {MAX_FRAME_BYTES}")
    return b"".join((_LENGTH.pack(length), _REST.pack(VERSION, len(raw)), raw, *blobs.parts))


def decode(content: bytes) -> Frame:
    """What follows the length of a frame. Raises `FrameError`."""
    if len(content) < _REST.size:
        raise FrameError("the frame ends early")
    version, header_bytes = _REST.unpack_from(content)
    if version != VERSION:
        raise FrameError(f"version {version} of the protocol is not known, only {VERSION}")
    body_at = _REST.size + header_bytes
    if header_bytes > MAX_HEADER_BYTES or body_at > len(content):
        raise FrameError(f"the header has {header_bytes} bytes: that is more than there are, or allowed")
    try:
        header = json.loads(content[_REST.size : body_at])
    except (ValueError, RecursionError):
        raise FrameError("the header is not JSON") from None
    if not isinstance(header, dict):
        raise FrameError("the header is not an object")
    return Frame(header, _cut_blobs(content, body_at, header.get("blobs")))


def _cut_blobs(content: bytes, position: int, lengths: object) -> list[bytes]:
    if not isinstance(lengths, list) or len(lengths) > MAX_BLOBS:
        raise FrameError("the header has no lengths of byte strings, or too many")
    blobs = []
    for length in lengths:
        if type(length) is not int or not 0 <= length <= len(content) - position:
            raise FrameError("the lengths of byte strings do not add up")
        blobs.append(content[position : position + length])
        position += length
    if position != len(content):
        raise FrameError("the lengths of byte strings do not add up")
    return blobs


def receive(connection: socket.socket, begin_s: float | None, whole_s: float) -> Frame | None:
    """The next frame; None if the peer has ended the connection between frames. Waits `begin_s` for its beginning and
    `whole_s` for the rest. Raises `FrameError` and `OSError`.
    """
    connection.settimeout(begin_s)
    first = connection.recv(1)
    if not first:
        return None
    connection.settimeout(whole_s)
    (length,) = _LENGTH.unpack(first + _exactly(connection, _LENGTH.size - 1))
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes is larger than {MAX_FRAME_BYTES}")
    return decode(_exactly(connection, length))


def send(connection: socket.socket, frame: bytes, timeout_s: float) -> None:
    """Raises `OSError`."""
    connection.settimeout(timeout_s)
    connection.sendall(frame)


def _exactly(connection: socket.socket, size: int) -> bytes:
    # Memory is taken as bytes come, not as the length promises.
    parts = []
    while size > 0:
        part = connection.recv(min(size, _PART_BYTES))
        if not part:
            raise FrameError("the connection ended within a frame")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
