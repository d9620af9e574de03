"""What the files of this engine hold, as rows for people and scripts; `docs/formats/log.md` draws every byte.

A row is a mapping. One that has a `damage` says what cannot be read, where, and why; the rows behind it are sound again
wherever the format allows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from penstock.errors import ApiError
from penstock.records.compression import Codec
from penstock.records.control import read_marker
from penstock.records.records import headers_of, records_block, walk
from penstock.storage.aborted import read_aborted
from penstock.storage.compaction import CompactionState
from penstock.storage.epochs import EpochHistory
from penstock.storage.files import Files
from penstock.storage.segmented.cleaning.cleaner import STATE_FILE
from penstock.storage.segmented.cleaning.truncation import CUT_FILE, Cut
from penstock.storage.segmented.disk.identity import PARTITION_FILE
from penstock.storage.segmented.disk.state_files import EPOCHS_FILE
from penstock.storage.segmented.index import read_positions, read_times
from penstock.storage.segmented.recovery import checkpoint
from penstock.storage.segmented.recovery.scan import Damage, FoundBatch, survey
from penstock.storage.segmented.segment import ABORTED, INDEX, LOG, PRODUCERS, TAGS, TIME_INDEX
from penstock.storage.snapshots import read_snapshot
from penstock.storage.tags import read_runs

Row = Mapping[str, object]


def reader_of(path: Path, *, with_records: bool = False) -> Callable[[], Iterator[Row]] | None:
    """What reads a file of this name; None if this engine writes no such file."""
    if path.suffix in (LOG, ".swap", ".cleaned"):
        return lambda: _batches(path, with_records)
    by_suffix = {INDEX: _positions, TIME_INDEX: _times, ABORTED: _aborted, PRODUCERS: _producers, TAGS: _tags}
    by_name = {
        EPOCHS_FILE: _epochs,
        PARTITION_FILE: _partition,
        checkpoint.NAME: _checkpoint,
        STATE_FILE: _compaction,
        CUT_FILE: _cut,
    }
    read = by_suffix.get(path.suffix) or by_name.get(path.name)
    return None if read is None else lambda: _guarded(read, path)


def _guarded(read: Callable[[Path], Iterator[Row]], path: Path) -> Iterator[Row]:
    try:
        yield from read(path)
    except ValueError as error:
        yield {"damage": str(error)}


def _base_offset(path: Path) -> int:
    name = path.name.partition(".")[0].partition("-")[0]
    return int(name) if name.isdecimal() else 0


def _batches(path: Path, with_records: bool) -> Iterator[Row]:
    file = Files().open_to_read(path)
    for found in survey(file, 0, file.size(), _base_offset(path) - 1):
        if isinstance(found, Damage):
            behind = "nothing readable behind" if found.resumes_at is None else f"readable from {found.resumes_at}"
            yield {
                "position": found.start,
                "size": found.end - found.start,
                "base_offset": found.first_offset,
                "damage": f"no sound batch in {found.end - found.start} bytes, {behind}",
            }
        else:
            yield _batch(found, with_records)


def _batch(found: FoundBatch, with_records: bool) -> Row:
    header = found.header
    row: dict[str, object] = {
        "position": found.position,
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "codec": Codec(header.codec).name.lower() if header.codec in list(Codec) else header.codec,
        "timestamp_type": "append" if header.uses_append_time else "create",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "crc": header.crc,
    }
    if header.is_transactional:
        row["transactional"] = True
    if header.is_control:
        row["control"] = _control(found)
    if with_records:
        try:
            row["content"] = _records(found)
        except ApiError as error:
            row["damage"] = f"the records do not decode: {error}"
    return row


def _control(found: FoundBatch) -> str:
    marker = read_marker(found.batch, found.header)
    if marker is None:
        return "unknown"
    return f"{'commit' if marker.committed else 'abort'} by coordinator epoch {marker.coordinator_epoch}"


def _records(found: FoundBatch) -> list[Row]:
    header = found.header
    block = records_block(found.batch, header)
    return [
        {
            "offset": header.base_offset + record.offset_delta,
            "timestamp": header.base_timestamp + record.timestamp_delta,
            "key": None if record.key is None else bytes(record.key),
            "value": None if record.value is None else bytes(record.value),
            "headers": headers_of(block, record),
        }
        for record in walk(block, header.record_count)
    ]


def _positions(path: Path) -> Iterator[Row]:
    size, entries = read_positions(path.read_bytes())
    for offset, position in entries:
        yield {"offset": _base_offset(path) + offset, "position": position}
    yield {"log_size": size}


def _times(path: Path) -> Iterator[Row]:
    size, entries = read_times(path.read_bytes())
    for timestamp, offset in entries:
        yield {"timestamp": timestamp, "offset": _base_offset(path) + offset}
    yield {"log_size": size}


def _producers(path: Path) -> Iterator[Row]:
    for producer_id, entry in read_snapshot(path.read_bytes()).items():
        yield {
            "producer_id": producer_id,
            "epoch": entry.epoch,
            "last_seen": entry.last_seen_ms,
            "first_sequence": entry.first_sequence,
            "coordinator_epoch": entry.coordinator_epoch,
            "marker_offset": entry.marker_offset,
            "open_since": entry.open_since,
            "batches": [batch._asdict() for batch in entry.batches],
        }


def _aborted(path: Path) -> Iterator[Row]:
    end_offset, entries = read_aborted(path.read_bytes())
    yield from (entry._asdict() for entry in entries)
    yield {"end_offset": end_offset}


def _tags(path: Path) -> Iterator[Row]:
    runs = read_runs(path.read_bytes())
    start = runs.start_offset
    for end, summary in runs:
        row: dict[str, object] = {"start_offset": start, "end_offset": end}
        if summary is None:
            row["known"] = False
        elif summary.has_records:
            row |= {"tags": sorted(summary.tags), "alike": None if summary.may_be_alike else summary.is_alike}
        yield row
        start = end


def _epochs(path: Path) -> Iterator[Row]:
    for start in EpochHistory.from_text(path.read_bytes().decode()).starts:
        yield {"epoch": start.epoch, "start_offset": start.start_offset}


def _partition(path: Path) -> Iterator[Row]:
    data = json.loads(path.read_bytes())
    if not isinstance(data, dict) or not {"format", "topic", "topic_id", "partition"} <= data.keys():
        raise ValueError("not the description of a partition")
    yield data


def _checkpoint(path: Path) -> Iterator[Row]:
    content = checkpoint.decode(path.read_bytes())
    yield {"clean": content.clean}
    for name, point in content.logs.items():
        yield {"log": name, "start": point.start, "recovery": point.recovery, "end": point.end, "high": point.high}


def _cut(path: Path) -> Iterator[Row]:
    yield asdict(Cut.from_bytes(path.read_bytes()))


def _compaction(path: Path) -> Iterator[Row]:
    state = CompactionState.from_bytes(path.read_bytes())
    yield {"cleaned": state.cleaned}
    for reached, at_ms in state.passes:
        yield {"reached": reached, "at": at_ms}
