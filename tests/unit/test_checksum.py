"""CRC-32C as the broker loads it."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder

import crc32c as package
import pytest

from penstock import checksum

CHECK = b"123456789"
CHECK_VALUE = 0xE3069283
"""Of the Castagnoli polynomial, in every catalogue of CRCs."""


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_the_check_value_is_right_for_every_kind_of_bytes(kind: type[bytes | bytearray | memoryview]) -> None:
    assert checksum.crc32c(kind(CHECK)) == CHECK_VALUE


def test_a_library_that_is_laid_out_differently_is_loaded_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    find = PathFinder.find_spec

    def find_packages(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return find(name) if path is None else None

    monkeypatch.setattr(PathFinder, "find_spec", find_packages)
    assert checksum._library() is package is sys.modules["crc32c"]
