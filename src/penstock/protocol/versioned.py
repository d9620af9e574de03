"""Messages that stand behind the number of their version: records of Kafka's internal topics, what members of a
group tell each other, and the ends of transactions.

    version  i16
    message  in the layout of that version

The version of a record's key is at the same time the kind of the record.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.errors import ProtocolError
from penstock.protocol import decoding, encoding

T = TypeVar("T")

_VERSION = struct.Struct(">h")


def peek_version(data: bytes | memoryview) -> int:
    """The version that stands before a message."""
    if len(data) < _VERSION.size:
        raise ProtocolError("a message without its version")
    version: int = _VERSION.unpack_from(data)[0]
    return version


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """How one class is written and read.

    `written` is the version used for writing, unless the caller names another. A version above `newest` is refused,
    unless the layout is known to only ever grow at its end (`grows`): then the part that is known here is read.
    """

    cls: type[T]
    oldest: int
    newest: int
    written: int
    grows: bool = False

    def encode(self, message: T, version: int | None = None) -> bytes:
        if version is None:
            version = self.written
        return _VERSION.pack(version) + encoding.encode(message, version)

    def decode(self, data: bytes | memoryview) -> T:
        version = peek_version(data)
        if version < self.oldest or (version > self.newest and not self.grows):
            raise ProtocolError(f"{self.cls.__name__} v{version} is not supported")
        return decoding.decode(self.cls, min(version, self.newest), data, _VERSION.size)[0]
