"""Keys go where Kafka's clients send them."""

from __future__ import annotations

import pytest

from penstock.brokerless.partitioner import murmur2, partition_of_key


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_hashes_are_those_of_the_java_client(key: str, hashed: int) -> None:
    assert murmur2(key.encode()) == hashed % 2**32


def test_a_key_stays_in_its_partition() -> None:
    assert partition_of_key(b"foobar", 6) == (-790332482 & 0x7FFFFFFF) % 6
    assert partition_of_key(b"", 6) == partition_of_key(b"", 6)
