"""A lake: one Delta table, changed by compare-and-set of its version.

Rules:
- A change is checked on the version that it follows, and becomes the very next version or nothing: we tell delta-rs not
  to retry and not to judge conflicts (docs/internals/pipeline.md, "The archive").
- Only the driver changes a lake; tasks write files under names of their own.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from penstock.pipeline.failure import PipelineError
from penstock.pipeline.lake.contents import TopicContents, contents_of
from penstock.pipeline.lake.object_store import checked, first_look, unreachable
from penstock.pipeline.lake.record_table import CLUSTER, PARTITIONED_BY, SCHEMA, missing_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_ATTEMPTS = 50
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class LakeLocation:
    """Where a lake is, for code that reads or writes files in it."""

    uri: str
    storage: Mapping[str, str] = field(default_factory=dict)
    """Options of the object store, by delta-rs's names."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "storage", checked(self.uri, self.storage))

    @property
    def folder(self) -> Path | None:
        """The folder, if it is one of this machine."""
        parts = urlparse(self.uri)
        if parts.scheme == "file":
            return Path(parts.path)
        return Path(self.uri) if not parts.scheme else None


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of the table."""

    path: str
    """Below the table's own."""
    size: int
    topic: str
    date: str
    rows: int
    stats: str
    """As Delta has them: JSON."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a version does."""

    added: Sequence[LakeFile] = ()
    removed: Sequence[LakeFile] = ()
    marks: Mapping[str, int] = field(default_factory=dict)
    changes_data: bool = True
    """Whether a reader gets other rows than before."""
    note: Mapping[str, str] = field(default_factory=dict)


class Lake:
    """The table as of the version that was looked at last."""

    def __init__(self, location: LakeLocation, table: DeltaTable) -> None:
        self.location = location
        self._table = table
        # Of one version: each look-up reads all that was written since the table's last checkpoint.
        self._marks: dict[str, int | None] = {}
        self._marks_version = self.version

    @property
    def version(self) -> int:
        return int(self._table.version())

    @property
    def cluster_id(self) -> str | None:
        """Of the cluster that it is the archive of."""
        return self._table.metadata().configuration.get(CLUSTER)

    def refresh(self) -> None:
        with _reaching(self.location):
            self._table.update_incremental()

    def mark(self, key: str) -> int | None:
        """A number that a version has left under this name."""
        if self._marks_version != self.version:
            self._marks, self._marks_version = {}, self.version
        if key not in self._marks:
            with _reaching(self.location):
                found = self._table.transaction_version(key)
            self._marks[key] = None if found is None else int(found)
        return self._marks[key]

    def unknown_columns(self) -> list[str]:
        """Columns that a newer version of Penstock or another program has added."""
        return [field.name for field in _arrow(self._table) if SCHEMA.get_field_index(field.name) < 0]

    def vacuum(self, hours: int, *, is_rehearsal: bool) -> list[str]:
        """Deletes files that no version since so many hours ago has, if they are as old; gives their names."""
        with _reaching(self.location):
            gone = self._table.vacuum(
                retention_hours=hours, dry_run=is_rehearsal, enforce_retention_duration=False, full=True
            )
        self.refresh()
        return list(gone)

    def changed_ms(self) -> int | None:
        """When this version was made; None if the table does not say."""
        with _reaching(self.location):
            told = self._table.history(1)
        return int(told[0]["timestamp"]) if told and "timestamp" in told[0] else None

    def contents(self) -> tuple[TopicContents, ...]:
        """What the table has of each topic now."""
        import pyarrow as pa

        return contents_of(pa.table(self._table.get_add_actions(flatten=True)))

    def files(self, topic: str | None = None) -> list[LakeFile]:
        """All that the table has now, or has of a topic."""
        import json

        import pyarrow as pa
        import pyarrow.compute as pc

        actions = pa.table(self._table.get_add_actions(flatten=False))
        if topic is not None:
            actions = actions.filter(pc.equal(pc.struct_field(actions.column("partition"), "topic"), topic))
        files = []
        for action in actions.to_pylist():
            stats = {
                "numRecords": action["num_records"],
                "minValues": _plain(action["min"]),
                "maxValues": _plain(action["max"]),
                "nullCount": _plain(action["null_count"]),
            }
            folder = action["partition"]
            files.append(
                LakeFile(
                    path=action["path"],
                    size=action["size_bytes"],
                    topic=folder["topic"],
                    date=str(folder["date"]),
                    rows=action["num_records"],
                    stats=json.dumps(stats),
                )
            )
        return files

    def commit(self, change: Change, check: Callable[[], bool]) -> bool:
        """Makes a change the next version. Calls `check` on every version that the change might follow: `check` raises
        if the change must not be made, and is false if it has been made already. Returns whether it was made here.
        """
        from deltalake.exceptions import CommitFailedError

        for _ in range(_ATTEMPTS):
            self.refresh()
            if not check():
                return False
            try:
                with _reaching(self.location):
                    self._write(change)
            except CommitFailedError:
                # Another writer was first; or this commit succeeded and the answer got lost. The next look tells.
                time.sleep(random.random() * _PAUSE_S)
                continue
            made = self.version + 1
            self._sync(made)
            # This version is known without a look: the one before, and what was changed.
            known = self._marks if self._marks_version == self.version else {}
            self._marks, self._marks_version = known | dict(change.marks), made
            self.refresh()
            return True
        raise PipelineError(f"{self.location.uri}: other writers were faster in each of {_ATTEMPTS} attempts to commit")

    def _write(self, change: Change) -> None:
        from deltalake import CommitProperties, Transaction

        now_ms = time.time_ns() // 1_000_000
        actions: list[Any] = [_add(each, now_ms, change.changes_data) for each in change.added]
        actions += [_remove(each, now_ms, change.changes_data) for each in change.removed]
        self._table.create_write_transaction(
            actions,
            "append",
            self._table.schema(),
            list(PARTITIONED_BY),
            commit_properties=CommitProperties(
                custom_metadata=dict(change.note) or None,
                max_commit_retries=0,
                app_transactions=[Transaction(key, number) for key, number in change.marks.items()],
            ),
        )

    def _sync(self, version: int) -> None:
        """On a disk of this machine, makes a version survive a power loss before any caller hears of it."""
        if self.location.folder is not None:
            log = self.location.folder / "_delta_log"
            for path in (log / f"{version:020}.json", log):
                sync(path)


def open_lake(location: LakeLocation) -> Lake:
    """A lake that exists."""
    found = _opened(location)
    if found is None:
        raise PipelineError(f"there is no lake at {location.uri}; penstock pipeline archive makes one")
    return found


def open_for_archive(location: LakeLocation, cluster_id: str) -> Lake:
    """A lake that has all columns and belongs to the cluster; it is made if there is none."""
    from deltalake import DeltaTable

    found = _opened(location)
    if found is None:
        with _reaching(location):
            table = DeltaTable.create(
                location.uri,
                SCHEMA,
                mode="ignore",
                partition_by=list(PARTITIONED_BY),
                name="penstock",
                description="Records of topics",
                configuration={CLUSTER: cluster_id},
                storage_options=dict(location.storage) or None,
                raise_if_key_not_exists=False,
            )
        found = Lake(location, table)
        found.refresh()
    owner = found._table.metadata().configuration.get(CLUSTER)
    if owner != cluster_id:
        raise PipelineError(f"{location.uri} is the archive of cluster {owner}, and this is cluster {cluster_id}")
    _add_columns(found._table, missing_columns(_arrow(found._table)))
    return found


def sync(path: Path) -> None:
    """Sees a file, or a folder's list of files, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _opened(location: LakeLocation) -> Lake | None:
    from deltalake import DeltaTable

    with _reaching(location):
        look = dict(location.storage) if location.folder is not None else first_look(location.storage)
        if not DeltaTable.is_deltatable(location.uri, look or None):
            return None
        return Lake(location, DeltaTable(location.uri, storage_options=dict(location.storage) or None))


@contextmanager
def _reaching(location: LakeLocation) -> Iterator[None]:
    """What delta-rs cannot do for the sake of the store becomes one line. That a commit was not made is another thing:
    its caller looks why.
    """
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except CommitFailedError:
        raise
    except (OSError, DeltaError) as error:
        raise unreachable(location.uri, location.storage, error) from None


def _arrow(table: DeltaTable) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


def _add_columns(table: DeltaTable, fields: Iterable[pa.Field]) -> None:
    import pyarrow as pa
    from deltalake import Schema

    wanted = list(fields)
    if wanted:
        table.alter.add_columns(Schema.from_arrow(pa.schema(wanted)).fields)
        table.update_incremental()


def _add(file: LakeFile, now_ms: int, changes_data: bool) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(file.path, file.size, _folder(file), now_ms, changes_data, file.stats)


def _remove(file: LakeFile, now_ms: int, changes_data: bool) -> Any:
    from deltalake.transaction import RemoveAction

    return RemoveAction(file.path, changes_data, now_ms, file.size, _folder(file))


def _folder(file: LakeFile) -> dict[str, str | None]:
    return {"topic": file.topic, "date": file.date}


def _plain(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Statistics as JSON can hold them."""
    return {
        name: value.isoformat(timespec="milliseconds").replace("+00:00", "Z") if hasattr(value, "isoformat") else value
        for name, value in (values or {}).items()
        if value is not None
    }
