"""Where `penstock send` takes its messages from: arguments, lines or a generator; as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

from penstock.cli.failure import CommandError
from penstock.cli.formats import readable

FILLING = b"0123456789abcdefghijklmnopqrstuvwxyz"


def lines_of(stream: BinaryIO) -> Iterator[bytes]:
    """One message a line, without its line end; bytes, because a message need not be text."""
    with stream:
        for line in stream:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def keyed(value: bytes, key: bytes | None, separator: bytes | None) -> tuple[bytes | None, bytes]:
    """A message's key and value: the given key, or what stands before the first separator in it."""
    if separator is None:
        return key, value
    own, found, rest = value.partition(separator)
    if not found:
        raise ValueError(f"has no key separator {readable(separator)!r}")
    return own, rest


def repeated(values: Iterable[bytes], count: int) -> Iterator[bytes]:
    """The given messages over and over, `count` in all."""
    kept = list(values)
    if not kept:
        raise CommandError("no message to repeat")
    for number in range(count):
        yield kept[number % len(kept)]


def generated(count: int, size: int) -> Iterator[bytes]:
    """Messages of exactly `size` bytes, numbered as far as the size has room for the number."""
    filling = FILLING * (size // len(FILLING) + 1)
    for number in range(count):
        yield (b"%d " % number + filling)[:size]
