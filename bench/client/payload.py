"""Message bodies: random bytes that no codec shrinks, or text that one does."""

from __future__ import annotations

import random

POOL_BYTES = 1 << 20
_WORDS = b"order payment customer shipped pending region invoice amount currency retry status".split()


def random_pool(size: int = POOL_BYTES) -> bytes:
    """The same random-looking bytes in every run."""
    return random.Random(20).randbytes(size)


def text_pool(size: int = POOL_BYTES) -> bytes:
    """JSON-like text of a few words and many numbers; lz4 halves it."""
    dice = random.Random(20)
    parts: list[bytes] = []
    length = 0
    while length < size:
        part = b'{"%s":"%s","%s":%d},' % (
            dice.choice(_WORDS),
            dice.choice(_WORDS),
            dice.choice(_WORDS),
            dice.randrange(10**9),
        )
        parts.append(part)
        length += len(part)
    return b"".join(parts)[:size]


def pool(kind: str) -> bytes:
    """`random` or `text`."""
    return text_pool() if kind == "text" else random_pool()
