"""/api/clusters: the list of clusters and the overview of each."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.parameters import MAX_TIME_MS, ClusterName
from penstock.console.operations.clusters import ClusterSummary, Overview
from penstock.console.polling.samples import SampleSeries

router = APIRouter(prefix="/clusters", tags=["clusters"])


@router.get("")
async def list_clusters(console: TheConsole, caller: TheCaller) -> tuple[ClusterSummary, ...]:
    return await console.cluster.list(caller)


@router.get("/{cluster}")
async def overview(console: TheConsole, caller: TheCaller, cluster: ClusterName) -> Overview:
    """Health, traffic, lag, and what needs attention first."""
    return await console.cluster.overview(caller, cluster)


@router.get("/{cluster}/samples")
async def samples(
    console: TheConsole,
    caller: TheCaller,
    cluster: ClusterName,
    series: Annotated[list[Annotated[str, Query(max_length=300)]], Query(min_length=1, max_length=100)],
    from_ms: Annotated[int | None, Query(ge=0, le=MAX_TIME_MS)] = None,
    until_ms: Annotated[int | None, Query(ge=0, le=MAX_TIME_MS)] = None,
) -> tuple[SampleSeries, ...]:
    """Points of series `in`, `lag`, `topic.NAME`, `group.NAME`: the last minutes, or a time of the past."""
    return await console.cluster.samples(caller, cluster, series, from_ms, until_ms)
