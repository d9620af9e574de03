"""The files of an index of timers: runs that are written, merged and removed, and the state that names them.

Everything here runs in threads. A run counts once the state names it; what it does not name is removed at the start.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

from penstock.delay.entries import ENTRY_BYTES, NOTHING_DELIVERED, PLACE_BYTES, base_of, cancelled, is_cancel
from penstock.delay.sorted_runs import Layout, Run, merged, open_run, write_run
from penstock.errors import StorageError
from penstock.storage.files import Files

STATE_FILE = "timers.json"
DUE = Layout(ENTRY_BYTES, 6)
HASH_BYTES = 8
IDS = Layout(HASH_BYTES + ENTRY_BYTES, HASH_BYTES + 6)
MINUTE_MS = 60_000
SAVE_AFTER = 16_384
"""So many entries are in memory before they become a run."""

_FORMAT = 1
_ABOVE_ALL = b"\xff" * ENTRY_BYTES
_RECURS_FLAG = 0x80
_FAN_IN = 8
SUFFIXES = {DUE: ".due", IDS: ".ids"}


class IndexFolder(NamedTuple):
    """Where an index keeps its files, and the threads that wait for them."""

    folder: Path
    files: Files
    pool: Executor


class Saved(NamedTuple):
    runs: dict[Layout, list[Run]]
    mark: bytes
    read_from: int
    number: int
    open_since: dict[int, int]
    pending: int
    """How many messages wait in the runs, behind the mark."""


class Said(NamedTuple):
    """What the file of the state says: runs by their names."""

    runs: tuple[str, ...]
    mark: bytes
    read_from: int
    open_since: dict[int, int]
    pending: int


NOTHING_SAVED = Saved({}, NOTHING_DELIVERED, -1, 0, {}, 0)


def split(packed: bytes | bytearray) -> list[bytes]:
    content = bytes(packed)
    return [content[at : at + ENTRY_BYTES] for at in range(0, len(content), ENTRY_BYTES)]


def behind(prefix: bytes) -> bytes:
    """The lowest bytes above all that begin with these; of the last ones there are, all of them."""
    number = int.from_bytes(prefix, "big") + 1
    return number.to_bytes(len(prefix) + 1, "big")[1:] if number >> 8 * len(prefix) == 0 else b"\xff" * 64


def find(packed: bytes | bytearray, entry: bytes) -> int:
    """Where an entry is among others; -1 if it is not."""
    at = packed.find(entry)
    while at >= 0 and at % ENTRY_BYTES:
        at = packed.find(entry, at + 1)
    return at


def with_ids(runs: Sequence[Run], hashes: Sequence[bytes]) -> dict[bytes, list[bytes]]:
    """The entries of these ids, which come in order, in any of the runs."""
    found: dict[bytes, list[bytes]] = {}
    for run in runs:
        for id_hash, items in zip(hashes, run.of_each((each, behind(each)) for each in hashes), strict=True):
            if items:
                found.setdefault(id_hash, []).extend(item[HASH_BYTES:] for item in items)
    return found


def below(runs: Sequence[Run], base_offset: int) -> list[bytes]:
    found: list[bytes] = []
    for run in runs:
        for items in run.items():
            found += [entry for entry in items if base_of(entry) < base_offset]
    return found


def up_to_minute(due_ms: int) -> int:
    return -(-due_ms // MINUTE_MS) * MINUTE_MS


def between(run: Run, low: bytes, high: bytes) -> list[memoryview]:
    return list(run.between(low, high))


def path_of(place: IndexFolder, layout: Layout, number: int) -> Path:
    return place.folder / f"{number:020}{SUFFIXES[layout]}"


def choose(runs: Sequence[Run]) -> list[Run]:
    """Runs of one size class that are enough to be merged."""
    classes: dict[int, list[Run]] = {}
    for run in runs:
        size = 0
        while run.count > SAVE_AFTER * _FAN_IN**size:
            size += 1
        classes.setdefault(size, []).append(run)
    return next((found for found in classes.values() if len(found) >= _FAN_IN), [])


def without_passed(runs: dict[Layout, list[Run]], mark: bytes) -> tuple[dict[Layout, list[Run]], list[Path]]:
    """Runs of which everything was delivered go; those by id go when they are merged."""
    gone = [run for run in runs[DUE] if run.last <= mark]
    return {**runs, DUE: [run for run in runs[DUE] if run not in gone]}, [run.path for run in gone]


def merge_runs(
    files: Files,
    path: Path,
    layout: Layout,
    runs: Sequence[Run],
    mark: bytes,
    is_whole: bool,
    moved: Container[bytes] = (),
) -> Run:
    """One run of several, without those whose places are `moved`; if these are all there are, what cancels goes with
    what is cancelled.

    An entry sorts right behind what cancels it, by id too: both have the same id, and no other entry is in between.
    """
    entry_at = layout.width - ENTRY_BYTES

    def kept() -> Iterator[list[bytes]]:
        dropped = b""
        for chunk in merged(run.items() for run in runs):
            items = []
            for item in chunk:
                entry = item[entry_at:]
                if entry <= mark or entry[:PLACE_BYTES] in moved:
                    continue
                if is_cancel(entry):
                    # It stays, unless what it cancels can be in no other run.
                    dropped = entry[:PLACE_BYTES]
                    if is_whole:
                        continue
                elif entry[:PLACE_BYTES] == dropped:
                    continue
                items.append(item)
            yield items

    return write_run(files, path, layout, kept())


def recurring(runs: Sequence[Run]) -> list[bytes]:
    """The entries of messages that recur, and what cancels some of them."""
    found: list[bytes] = []
    for run in runs:
        for piece in run.between(b"", _ABOVE_ALL):
            # Most blocks have none, and there may be thousands of blocks.
            flags = bytes(piece[PLACE_BYTES::ENTRY_BYTES])
            if max(flags) >= _RECURS_FLAG:
                starts = (at * ENTRY_BYTES for at, flag in enumerate(flags) if flag >= _RECURS_FLAG)
                found += (bytes(piece[start : start + ENTRY_BYTES]) for start in starts)
    found.sort()
    cancels = [cancelled(entry) for entry in found]
    for run in runs if found else ():
        for items in run.of_each((cancel, behind(cancel)) for cancel in cancels):
            found += items
    return found


def reset_runs(
    place: IndexFolder, number: int, layout: Layout, runs: Sequence[Run], mark: bytes, moved: Container[bytes]
) -> tuple[list[Run], list[Path]]:
    """Runs without what is at or below the mark, or moved: the ones that are left, and the files of those that go."""
    stale = [run for run in runs if layout is not DUE or moved or run.first <= mark]
    if not stale:
        return list(runs), []
    kept = [run for run in runs if run not in stale]
    new = merge_runs(place.files, path_of(place, layout, number), layout, stale, mark, not kept, moved)
    gone = [run.path for run in stale]
    if new.count:
        kept.append(new)
    else:
        gone.append(new.path)
    return kept, gone


def save_runs(place: IndexFolder, number: int, items: dict[Layout, list[bytes]]) -> dict[Layout, list[Run]]:
    made: dict[Layout, list[Run]] = {DUE: [], IDS: []}
    for layout, found in items.items():
        if found:
            found.sort()
            made[layout].append(write_run(place.files, path_of(place, layout, number), layout, [found]))
            number += 1
    return made


def save_state(place: IndexFolder, state: Saved, gone: list[Path]) -> None:
    content = {
        "format": _FORMAT,
        "runs": sorted(run.path.name for found in state.runs.values() for run in found),
        "mark": state.mark.hex(),
        "read_from": state.read_from,
        "open_since": state.open_since,
        "pending": state.pending,
    }
    place.files.replace(place.folder / STATE_FILE, json.dumps(content).encode())
    for path in gone:
        place.files.remove(path)


def read_state(content: bytes) -> Said:
    """What the state says; StorageError if it cannot be understood."""
    try:
        said = json.loads(content)
        return Said(
            tuple(map(str, said["runs"])),
            bytes.fromhex(said["mark"]),
            int(said["read_from"]),
            {int(producer): int(start) for producer, start in said["open_since"].items()},
            int(said["pending"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{STATE_FILE} cannot be understood: {error}") from error


def load(place: IndexFolder) -> Saved:
    content = place.files.read(place.folder / STATE_FILE)
    names = place.files.list_folder(place.folder)
    runs: dict[Layout, list[Run]] = {DUE: [], IDS: []}
    said = Said((), NOTHING_DELIVERED, -1, {}, 0) if content is None else read_state(content)
    number = 0
    for name in names:
        for layout, suffix in SUFFIXES.items():
            if name.endswith(suffix) and name not in said.runs:
                place.files.remove(place.folder / name)
            elif name.endswith(suffix):
                runs[layout].append(open_run(place.files, place.folder / name, layout))
                number = max(number, int(name[: -len(suffix)]) + 1)
    missing = set(said.runs) - {run.path.name for found in runs.values() for run in found}
    if missing:
        raise StorageError(f"{', '.join(sorted(missing))} is missing")
    return Saved(runs, said.mark, said.read_from, number, said.open_since, said.pending)


def forget(place: IndexFolder) -> None:
    place.files.remove(place.folder / STATE_FILE)
    place.files.sync_folder(place.folder)
    for name in place.files.list_folder(place.folder):
        if name.endswith(tuple(SUFFIXES.values())):
            place.files.remove(place.folder / name)
