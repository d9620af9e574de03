"""/api/clusters/{cluster}/topics/{topic}/timers: delayed messages."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.parameters import MAX_PARTITION, MAX_TIME_MS, ClusterName, TopicName
from penstock.console.operations.paging import ItemResult
from penstock.console.operations.timers import MAX_BINS, TimerHistogram, TimerPage, TimerRow

router = APIRouter(prefix="/clusters/{cluster}/topics/{topic}/timers", tags=["timers"])

Time = Annotated[int, Query(ge=0, le=MAX_TIME_MS)]
TimerId = Annotated[str, Field(min_length=1, max_length=1000)]


class Cancellation(BaseModel):
    timer_ids: list[TimerId] = Field(min_length=1, max_length=1000)
    partition: int | None = Field(None, ge=0, le=MAX_PARTITION)


class Rescheduling(BaseModel):
    timer_id: TimerId
    due_ms: int = Field(ge=0, le=MAX_TIME_MS)


class Firing(BaseModel):
    timer_id: TimerId


@router.get("")
async def list_timers(
    console: TheConsole,
    caller: TheCaller,
    cluster: ClusterName,
    topic: TopicName,
    due_from_ms: Time = 0,
    due_until_ms: Annotated[int | None, Query(ge=0, le=MAX_TIME_MS)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[str | None, Query(max_length=50_000)] = None,
) -> TimerPage:
    """What waits, by due time."""
    return await console.timers.list(caller, cluster, topic, due_from_ms, due_until_ms, limit, after)


@router.get("/found")
async def find_timer(
    console: TheConsole,
    caller: TheCaller,
    cluster: ClusterName,
    topic: TopicName,
    timer_id: Annotated[str, Query(min_length=1, max_length=1000)],
) -> tuple[TimerRow, ...]:
    """The messages that wait under a timer id."""
    return await console.timers.find(caller, cluster, topic, timer_id)


@router.get("/histogram")
async def timer_histogram(
    console: TheConsole,
    caller: TheCaller,
    cluster: ClusterName,
    topic: TopicName,
    from_ms: Time,
    bin_ms: Annotated[int, Query(ge=1000, le=10**12)] = 60_000,
    bins: Annotated[int, Query(ge=1, le=MAX_BINS)] = 60,
) -> TimerHistogram:
    """How many messages are due when."""
    return await console.timers.histogram(caller, cluster, topic, from_ms, bin_ms, bins)


@router.post("/cancellation")
async def cancel_timers(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, body: Cancellation
) -> tuple[ItemResult, ...]:
    return await console.timers.cancel(caller, cluster, topic, body.timer_ids, body.partition)


@router.post("/rescheduling")
async def reschedule_timer(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, body: Rescheduling
) -> tuple[ItemResult, ...]:
    return await console.timers.reschedule(caller, cluster, topic, body.timer_id, body.due_ms)


@router.post("/firing")
async def fire_timer(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, body: Firing
) -> tuple[ItemResult, ...]:
    """Has a message delivered now."""
    return await console.timers.fire(caller, cluster, topic, body.timer_id)
