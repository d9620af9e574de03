"""The lake of a cluster, read without Spark: what is in it, and how far each partition is archived.

Rules:
- delta-rs and Arrow block: they are called in two threads of the lake's own.
- One look serves all viewers for `lake_ttl_ms`. A look has a row for each topic, and a number for each partition of the
  topics that are in the lake; never one for each file or record.
- A lake of another cluster is refused: its topics may have the same names.
"""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from penstock.admin import TopicIdentity
from penstock.clock import Clock
from penstock.console.errors import ConflictError, MissingError
from penstock.console.polling.cluster_link import ClusterLink
from penstock.console.settings import PipelineSettings

if TYPE_CHECKING:
    from penstock.pipeline.lake.contents import TopicContents
    from penstock.pipeline.lake.delta import Lake, LakeLocation

T = TypeVar("T")

_READERS = ("deltalake", "pyarrow")
_INSTALL = "pip install 'penstock[pipeline]'"


@dataclass(frozen=True, slots=True)
class ArchivedTopic:
    """A topic of the cluster that is in the lake."""

    topic_id: str
    watermarks: tuple[int | None, ...]
    """By partition: the first offset that is not archived; None if nothing of it ever was."""


@dataclass(frozen=True, slots=True)
class LakeLook:
    """A lake at one version."""

    version: int
    changed_ms: int | None
    contents: tuple[TopicContents, ...]
    topics: Mapping[str, ArchivedTopic] = field(default_factory=dict)
    """Those that the cluster still has."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of results."""

    name: str
    rows: int
    size_bytes: int
    files: int


class LakeView:
    """One lake."""

    def __init__(self, uri: str, link: ClusterLink, settings: PipelineSettings, clock: Clock) -> None:
        self.uri = uri
        self._link = link
        self._ttl_ms = settings.lake_ttl_ms
        self._clock = clock
        self._threads = ThreadPoolExecutor(2, thread_name_prefix=f"lake-{link.name}")
        self._lock = threading.Lock()
        self._lake: Lake | None = None
        self._held: tuple[float, asyncio.Future[LakeLook]] | None = None

    async def look(self) -> LakeLook:
        """The lake as of a moment ago; an error that says why if it cannot be read."""
        now_ms = self._clock.monotonic_ms()
        if self._held is not None:
            at_ms, held = self._held
            # Later callers wait for the look that is under way; a failed one is not kept.
            if not held.done() or (now_ms - at_ms < self._ttl_ms and held.exception() is None):
                return await asyncio.shield(held)
        asked = asyncio.ensure_future(self._look())
        asked.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._held = (now_ms, asked)
        return await asyncio.shield(asked)

    async def reports(self) -> tuple[ReportTable, ...]:
        """The tables that reports have left in the lake."""
        location = self.location()
        return await self._in_thread(lambda: _report_tables(location))

    async def run(self, call: Callable[[Lake], T]) -> T:
        """One call on the lake as it is now, in a thread."""
        await self.look()
        return await self._in_thread(lambda: self._locked(call))

    def location(self) -> LakeLocation:
        """For tasks that read its files."""
        require_readers()
        from penstock.pipeline.lake.delta import LakeLocation

        return LakeLocation(self.uri)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _look(self) -> LakeLook:
        require_readers()
        cluster_id = await self._link.detail(("cluster-id",), lambda admin: admin.id())
        version, changed_ms, contents = await self._in_thread(lambda: self._locked(_seen, cluster_id))
        found = await self._link.run(lambda admin: admin.topics.identify(each.topic for each in contents))
        topics = await self._in_thread(lambda: self._locked(lambda lake: _watermarks(lake, found.values)))
        return LakeLook(version, changed_ms, contents, topics)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _locked(self, call: Callable[..., T], *arguments: object) -> T:
        from penstock.pipeline.lake.delta import open_lake

        with self._lock:
            if self._lake is None:
                self._lake = open_lake(self.location())
            return call(self._lake, *arguments)


def _seen(lake: Lake, cluster_id: str) -> tuple[int, int | None, tuple[TopicContents, ...]]:
    lake.refresh()
    if lake.cluster_id != cluster_id:
        raise ConflictError(
            f"{lake.location.uri} is the archive of cluster {lake.cluster_id}, and this is cluster {cluster_id}; "
            "nothing was read"
        )
    return lake.version, lake.changed_ms(), lake.contents()


def _watermarks(lake: Lake, known: Mapping[str, TopicIdentity]) -> dict[str, ArchivedTopic]:
    from penstock.pipeline.lake.record_table import offset_key

    return {
        name: ArchivedTopic(
            each.id, tuple(lake.mark(offset_key(each.id, index)) for index in range(each.partition_count))
        )
        for name, each in known.items()
    }


def _report_tables(location: LakeLocation) -> tuple[ReportTable, ...]:
    from penstock.pipeline.reports.report_tables import TABLES, sizes_of

    found = ((name, sizes_of(location, name)) for name in TABLES)
    return tuple(ReportTable(name, *sizes) for name, sizes in found if sizes is not None)


def require_readers() -> None:
    """ConflictError with the command that installs what is missing."""
    _require(_READERS, "a lake is read")


def require_spark() -> None:
    _require((*_READERS, "pyspark"), "queries, reports and replays run")


def _require(libraries: tuple[str, ...], what: str) -> None:
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        raise ConflictError(
            f"{what} with {', '.join(missing)}, which is not installed where the console runs: {_INSTALL}. "
            "Nothing was done"
        )


def require_lake(lake: LakeView | None, cluster: str) -> LakeView:
    """MissingError for a cluster without one."""
    if lake is None:
        raise MissingError(
            f"the console knows no lake of cluster {cluster}; start it with --lake {cluster}=PATH. Nothing was done"
        )
    return lake
