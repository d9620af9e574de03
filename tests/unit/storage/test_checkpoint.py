"""The checkpoint file."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.storage.files import Files
from penstock.storage.segmented.recovery.checkpoint import Checkpoint, LogPoint, decode, encode, load, save

SAMPLE = Checkpoint(True, {"orders-0": LogPoint(1, 5, 9, 7), "orders-1": LogPoint(0, 0, 0)})


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    save(Files(), tmp_path, SAMPLE)
    assert load(Files(), tmp_path) == SAMPLE
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.json"]


def test_a_missing_or_unusable_checkpoint_says_nothing(tmp_path: Path) -> None:
    assert load(Files(), tmp_path) == Checkpoint()
    (tmp_path / "checkpoint.json").write_bytes(encode(SAMPLE)[:-1])
    assert load(Files(), tmp_path) == Checkpoint()


@pytest.mark.parametrize("clean", [b'"false"', b"1", b"null"])
def test_only_true_is_clean(clean: bytes) -> None:
    assert not decode(encode(SAMPLE).replace(b"true", clean)).clean


def test_a_checkpoint_without_high_watermarks_is_read() -> None:
    older = b'{"format": 1, "clean": false, "logs": {"orders-0": {"start": 1, "recovery": 5, "end": 9}}}'
    assert decode(older).logs == {"orders-0": LogPoint(1, 5, 9, -1)}


@pytest.mark.parametrize("high", [b'"7"', b"null", b"7.5"])
def test_a_high_watermark_that_is_no_number_is_refused(high: bytes) -> None:
    with pytest.raises(ValueError, match="no number"):
        decode(encode(SAMPLE).replace(b'"high": 7', b'"high": ' + high))
