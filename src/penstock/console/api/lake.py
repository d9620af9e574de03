"""/api/clusters/{cluster}/lake: what is archived, and how far behind the archive is."""

from __future__ import annotations

from fastapi import APIRouter

from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.parameters import ClusterName, Rows, TopicName
from penstock.console.operations.lake import ArchiveLag, LakeSummary, LakeTables, PartitionArchiveLag
from penstock.console.operations.paging import RowPage

router = APIRouter(prefix="/clusters/{cluster}/lake", tags=["pipeline"])


@router.get("")
async def lake_summary(console: TheConsole, caller: TheCaller, cluster: ClusterName) -> LakeSummary:
    """Whether there is a lake, and what is in it."""
    return await console.lake.summary(caller, cluster)


@router.get("/lag")
async def archive_lag(console: TheConsole, caller: TheCaller, cluster: ClusterName, rows: Rows) -> RowPage[ArchiveLag]:
    """How far behind the archive is, by topic."""
    return await console.lake.lag(caller, cluster, rows)


@router.get("/lag/{topic}")
async def partition_archive_lag(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName
) -> tuple[PartitionArchiveLag, ...]:
    """The same by partition."""
    return await console.lake.partition_lag(caller, cluster, topic)


@router.get("/tables")
async def lake_tables(console: TheConsole, caller: TheCaller, cluster: ClusterName) -> LakeTables:
    """Tables of topics and of reports."""
    return await console.lake.tables(caller, cluster)
