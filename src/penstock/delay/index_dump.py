"""The content of the files of a timer index, as rows for people and scripts; `docs/internals/delay.md` has the files.

A row with a `damage` field says what cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from penstock.delay.entries import due_of, is_cancel, unpack
from penstock.delay.index_files import DUE, HASH_BYTES, IDS, STATE_FILE, SUFFIXES, read_state
from penstock.delay.sorted_runs import Layout, open_run
from penstock.errors import StorageError
from penstock.storage.files import Files

Row = Mapping[str, object]


def reader_of(path: Path) -> Callable[[], Iterator[Row]] | None:
    """What reads a file of this name; None if no index has such a file."""
    layout = {SUFFIXES[DUE]: DUE, SUFFIXES[IDS]: IDS}.get(path.suffix)
    if layout is not None:
        return lambda: _items(path, layout)
    return (lambda: _state(path)) if path.name == STATE_FILE else None


def _items(path: Path, layout: Layout) -> Iterator[Row]:
    try:
        files = Files()
        run, file = open_run(files, path, layout), files.open_to_read(path)
    except StorageError as error:
        yield {"damage": str(error)}
        return
    for number in range(run.blocks):
        try:
            items = run.split(run.block(file, number))
        except StorageError as error:
            yield {"block": number, "damage": str(error)}
            continue
        for item in items:
            hashed: dict[str, object] = {"id_hash": item[:HASH_BYTES].hex()} if layout is IDS else {}
            yield hashed | _entry(item[-DUE.width :])
    yield {"items": run.count, "blocks": run.blocks, "lowest_base_offset": run.lowest_base if run.count else None}


def _entry(entry: bytes) -> dict[str, object]:
    found = unpack(entry)
    row: dict[str, object] = {"due": found.due_ms, "base_offset": found.base_offset, "position": found.position}
    if is_cancel(entry):
        return row | {"cancelled": True}
    row |= {"size": found.size, "crc": found.crc}
    return row | ({"recurs": True} if found.recurs else {}) | ({"named": True} if found.is_named else {})


def _state(path: Path) -> Iterator[Row]:
    try:
        said = read_state(path.read_bytes())
    except StorageError as error:
        yield {"damage": str(error)}
        return
    yield {
        "delivered_up_to": due_of(said.mark),
        "mark": said.mark.hex(),
        "read_from": said.read_from,
        "pending": said.pending,
        "open_since": {str(producer): start for producer, start in said.open_since.items()},
        "runs": list(said.runs),
    }
