"""Markers: control batches that Kafka's clients read, and what is not one."""

from __future__ import annotations

import pytest
from kafka.record.default_records import DefaultRecordBatch

from penstock.protocol.messages.transaction_records import CONTROL_RECORD_KEY, ControlRecordKey
from penstock.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, read_header
from penstock.records.control import Marker, build_marker, read_marker
from penstock.records.records import Record, build_batch

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize("marker", [Marker(True, 0), Marker(False, 2**31 - 1)])
def test_a_marker_is_read_back(marker: Marker) -> None:
    made = build_marker(77, 3, marker, NOW_MS)
    header = read_header(made)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, -1)
    assert header.is_control and header.is_transactional
    assert read_marker(memoryview(made), header) == marker


@pytest.mark.parametrize("committed", [True, False])
def test_a_client_takes_a_marker_for_what_it_is(committed: bool) -> None:
    found = DefaultRecordBatch(bytes(build_marker(77, 3, Marker(committed, 9), NOW_MS)))
    assert found.is_transactional and found.is_control_batch and found.validate_crc()
    (record,) = found
    assert record.key == b"\0\0\0" + bytes([committed])
    assert record.value == b"\0\0\0\0\0\x09"


def control(key: bytes | None, value: bytes | None) -> bytearray:
    return build_batch(
        [Record(key, value)], producer_id=1, producer_epoch=0, attributes=TRANSACTIONAL_BIT | CONTROL_BIT
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0\0\0\0\0\0"),
        (b"\0\0\0\1", None),
        (b"\0", b"\0\0\0\0\0\0"),
        (b"\0\0\0\1", b"\0\0"),
        (CONTROL_RECORD_KEY.encode(ControlRecordKey(type=2)), b"\0\0\0\0\0\0"),
    ],
)
def test_a_control_batch_that_ends_no_transaction_is_no_marker(key: bytes | None, value: bytes | None) -> None:
    made = control(key, value)
    assert read_marker(memoryview(made), read_header(made)) is None


def test_a_marker_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    made = control(b"\0\1\0\1" + b"more", b"\0\1\0\0\0\x05" + b"more")
    assert read_marker(memoryview(made), read_header(made)) == Marker(True, 5)
