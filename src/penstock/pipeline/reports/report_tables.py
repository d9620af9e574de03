"""Results as Delta tables in a folder of the lake, where Spark, SQL and every Delta reader finds them.

They lie in `_reports`, a name that vacuum of the record table passes over. Every run appends; what is older than
`KEPT_DAYS` goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from penstock.pipeline.lake.delta import LakeLocation
from penstock.pipeline.reports.results import Result

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from penstock.pipeline.querying.stored_files import StoredFile

FOLDER = "_reports"
KEPT_DAYS = 90
SAMPLES = "lag_samples"
TABLES = (
    "volume",
    "latency",
    "lag_now",
    "lag_over_time",
    SAMPLES,
    "failures",
    "partitions",
    "hot_keys",
    "delays",
    "delay_spread",
    "sizes",
    "size_spread",
    "reconciliation",
    "reconciliation_differences",
)
"""All that reports make."""

_MOST_FILES = 100
_VACUUM_HOURS = 168


def store(location: LakeLocation, results: Iterable[Result], run_at: datetime) -> list[str]:
    """Adds what was computed to the tables of the same names; gives their addresses."""
    import pyarrow as pa

    stored = []
    for result in results:
        if result.table.num_rows:
            moments = pa.array([run_at] * result.table.num_rows, pa.timestamp("us", tz="UTC"))
            stored.append(append(location, result.name, result.table.add_column(0, "run_at", moments), "run_at"))
    return stored


def append(location: LakeLocation, name: str, rows: pa.Table, time_column: str) -> str:
    """Adds rows to a table, which is made if there is none; gives its address."""
    from deltalake import DeltaTable, write_deltalake

    uri, options = address(location, name), dict(location.storage) or None
    write_deltalake(uri, rows, mode="append", schema_mode="merge", storage_options=options)
    _tidy(DeltaTable(uri, storage_options=options), time_column)
    return uri


def files_of(location: LakeLocation, name: str) -> list[StoredFile]:
    """The files that a table has now; none if there is no such table."""
    import pyarrow as pa
    from deltalake import DeltaTable

    # It loads PySpark, which who only counts has no use for.
    from penstock.pipeline.querying.stored_files import StoredFile

    uri, options = address(location, name), dict(location.storage) or None
    if not DeltaTable.is_deltatable(uri, options):
        return []
    actions = pa.table(DeltaTable(uri, storage_options=options).get_add_actions()).select(["path", "size_bytes"])
    return [StoredFile(f"{FOLDER}/{name}/{each['path']}", each["size_bytes"]) for each in actions.to_pylist()]


def sizes_of(location: LakeLocation, name: str) -> tuple[int, int, int] | None:
    """Rows, bytes and files of a table; None if there is no such table."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    uri, options = address(location, name), dict(location.storage) or None
    if not DeltaTable.is_deltatable(uri, options):
        return None
    actions = pa.table(DeltaTable(uri, storage_options=options).get_add_actions(flatten=True))
    rows, size = (pc.sum(actions.column(column)).as_py() or 0 for column in ("num_records", "size_bytes"))
    return rows, size, actions.num_rows


def address(location: LakeLocation, name: str) -> str:
    return f"{location.uri.rstrip('/')}/{FOLDER}/{name}"


def _tidy(table: DeltaTable, time_column: str) -> None:
    """Now and then: removes old rows, merges small files, and deletes files that no version refers to."""
    if len(table.file_uris()) <= _MOST_FILES:
        return
    before = datetime.now(UTC) - timedelta(days=KEPT_DAYS)
    table.delete(f"{time_column} < '{before.isoformat()}'")
    table.optimize.compact()
    table.vacuum(retention_hours=_VACUUM_HOURS, dry_run=False)
