"""Which partition a message goes to. Pure.

Keys choose partitions as the Java client and librdkafka's `murmur2` do, so that a topic can be moved to a broker, or be
used with and without one at the same time, and a key stays where it is.
"""

from __future__ import annotations

import struct

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_WORD = struct.Struct("<I")


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of a key, as Kafka's default partitioner chooses it."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """MurmurHash2, 32 bits, with Kafka's seed."""
    length = len(data)
    hashed = _SEED ^ length
    whole = length - length % 4
    for (word,) in _WORD.iter_unpack(memoryview(data)[:whole]):
        word = word * _M & _MASK
        word ^= word >> 24
        word = word * _M & _MASK
        hashed = (hashed * _M & _MASK) ^ word
    rest = data[whole:]
    if rest:
        hashed ^= int.from_bytes(rest, "little")
        hashed = hashed * _M & _MASK
    hashed ^= hashed >> 13
    hashed = hashed * _M & _MASK
    return hashed ^ hashed >> 15
