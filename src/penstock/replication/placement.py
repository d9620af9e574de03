"""Which partition of an internal topic looks after a name."""

from __future__ import annotations

from functools import lru_cache

_NAMES_KEPT = 4096


def java_hash(text: str) -> int:
    """Java's String.hashCode: Kafka places groups by it, and tools that read the internal topic rely on that."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(_NAMES_KEPT)
def partition_for(name: str, partitions: int) -> int:
    """Kafka's rule: the absolute value, with the one number that has none taken as 0."""
    value = java_hash(name)
    return (0 if value == -(1 << 31) else abs(value)) % partitions
