"""`penstock dump`: prints any file that Penstock writes; exits with 1 if a file is damaged."""

from __future__ import annotations

import asyncio
import json as json_format
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, cast

import typer

from penstock.cli.formats import exact, readable, time_text
from penstock.cli.options import Json
from penstock.errors import CoordinationError

KNOWN = (
    ".log, .index, .timeindex, .aborted, .producers and .tags of a segment; .due and .ids of timers; epochs,"
    " partition.json, compaction.json, timers.json, checkpoint.json, coordination.db, meta.json, life.json"
)
# The files that describe the whole folder, and what each of them says at least.
_FOLDER_FILES = {
    "meta.json": frozenset({"format", "broker_id", "cluster_id"}),
    "life.json": frozenset({"boot", "is_clean", "is_whole"}),
}
_TIMES = ("base_timestamp", "max_timestamp", "timestamp", "last_seen", "at", "due", "delivered_up_to")


def dump(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files in a data folder.")],
    records: Annotated[bool, typer.Option("--records", help="Decode the records of each batch.")] = False,
    json: Json = False,
) -> None:
    """Print files of a data folder: segments, indexes, snapshots, metadata. The broker may be running."""
    damaged = False
    for path in files:
        read = _reader_of(path, records)
        if read is None:
            raise typer.BadParameter(f"{path} is not a file that Penstock writes; those are {KNOWN}", param_hint="FILE")
        if not path.is_file():
            raise typer.BadParameter(f"{path} does not exist", param_hint="FILE")
        if len(files) > 1 and not json:
            typer.echo(f"{path}:")
        for row in read():
            damaged = damaged or "damage" in row
            typer.echo(_json_line(path, row) if json else _line(row))
    if damaged:
        raise typer.Exit(1)


def _reader_of(path: Path, records: bool) -> Callable[[], Iterator[Mapping[str, object]]] | None:
    from penstock.delay import index_dump
    from penstock.storage.segmented.reading.file_dump import reader_of

    if path.name == "coordination.db":
        return lambda: _nodes(path)
    if path.name in _FOLDER_FILES:
        return lambda: _described(path, _FOLDER_FILES[path.name])
    return reader_of(path, with_records=records) or index_dump.reader_of(path)


def _nodes(path: Path) -> Iterator[Mapping[str, object]]:
    from penstock.cluster.coordination.embedded import EmbeddedCoordination

    async def collect() -> list[Mapping[str, object]]:
        tree = await EmbeddedCoordination.open(path)
        found: list[Mapping[str, object]] = []
        try:
            waiting = ["/"]
            while waiting:
                at = waiting.pop()
                node = await tree.get(at)
                if node is not None and at != "/":
                    found.append({"path": at, "version": node.version, "value": node.value})
                children = [f"{at.rstrip('/')}/{name}" for name in await tree.children(at)]
                waiting += sorted(children, reverse=True)
        finally:
            await tree.close()
        return found

    if path.stat().st_size == 0:
        yield {"damage": "the file is empty"}
        return
    try:
        yield from asyncio.run(collect())
    except CoordinationError as error:
        yield {"damage": str(error)}


def _described(path: Path, keys: frozenset[str]) -> Iterator[Mapping[str, object]]:
    try:
        data = json_format.loads(path.read_bytes())
        if not isinstance(data, dict) or not keys <= data.keys():
            raise ValueError("not the description of a data folder")
        yield data
    except ValueError as error:
        yield {"damage": str(error)}


def _json_line(path: Path, row: Mapping[str, object]) -> str:
    return json_format.dumps({"file": str(path), **{key: _plain(value) for key, value in row.items()}})


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return exact(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _line(row: Mapping[str, object]) -> str:
    """`key=value` pairs on one line, records of a batch on lines of their own, damage first."""
    content = cast("list[Mapping[str, object]]", row.get("content", ()))
    parts = [f"DAMAGED {row['damage']}"] if "damage" in row else []
    parts += [f"{key}={_text(key, value)}" for key, value in row.items() if key not in ("damage", "content")]
    return "\n".join([" ".join(parts), *(f"  {_line(record)}" for record in content)])


def _text(key: str, value: object) -> str:
    if isinstance(value, bytes):
        return readable(value)
    if value is None:
        return "<null>"
    if key in _TIMES and isinstance(value, int) and value >= 0:
        return time_text(value)
    if key == "headers" and isinstance(value, tuple):
        return "{" + ", ".join(f"{readable(name.encode())}={readable(each)}" for name, each in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_text("", each) for each in value) + "]"
    if isinstance(value, Mapping):
        return "{" + " ".join(f"{name}={_text(name, each)}" for name, each in value.items()) + "}"
    return readable(str(value).encode())
