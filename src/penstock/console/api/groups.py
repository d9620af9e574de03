"""/api/clusters/{cluster}/groups: consumer groups."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from penstock.admin import GroupPause, TopicPartition
from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.parameters import MAX_PARTITION, ClusterName, GroupName, Rows
from penstock.console.api.topics import Confirmation, Name
from penstock.console.operations.groups import GroupDetail, ResetPreview, ResetWish
from penstock.console.operations.paging import ItemResult, RowPage
from penstock.console.polling.snapshot import GroupRow

router = APIRouter(prefix="/clusters/{cluster}/groups", tags=["groups"])

_LONG = 2**62


class PartitionName(BaseModel):
    topic: Name
    partition: int = Field(ge=0, le=MAX_PARTITION)

    def value(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


Partitions = Annotated[list[PartitionName], Field(max_length=10_000)]


class ResetRequest(BaseModel):
    to: Literal["earliest", "latest", "offset", "time", "shift"]
    value: int = Field(0, ge=-_LONG, le=_LONG, description="Offset, milliseconds since 1970, or shift.")
    partitions: Partitions | None = Field(None, description="Default: all that the group has committed.")
    include_retries: bool = False

    def wish(self) -> ResetWish:
        chosen = None if self.partitions is None else tuple(each.value() for each in self.partitions)
        return ResetWish(self.to, self.value, chosen, self.include_retries)


class PauseRequest(BaseModel):
    topics: list[Name] = Field(default_factory=list, max_length=1000, description="Empty: everything.")


class OffsetDeletion(BaseModel):
    partitions: Partitions


@router.get("")
async def list_groups(console: TheConsole, caller: TheCaller, cluster: ClusterName, rows: Rows) -> RowPage[GroupRow]:
    return await console.groups.list(caller, cluster, rows)


@router.get("/{group}")
async def describe_group(console: TheConsole, caller: TheCaller, cluster: ClusterName, group: GroupName) -> GroupDetail:
    return await console.groups.describe(caller, cluster, group)


@router.post("/{group}/reset-preview")
async def preview_reset(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, group: GroupName, body: ResetRequest
) -> ResetPreview:
    """What a reset would skip and repeat; changes nothing."""
    return await console.groups.preview_reset(caller, cluster, group, body.wish())


@router.post("/{group}/reset")
async def reset_group(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, group: GroupName, body: ResetRequest
) -> ResetPreview:
    """Sets committed offsets, whether the group runs or not."""
    return await console.groups.reset(caller, cluster, group, body.wish())


@router.post("/{group}/pause")
async def pause_group(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, group: GroupName, body: PauseRequest
) -> GroupPause:
    """Members stay joined and receive nothing."""
    return await console.groups.pause(caller, cluster, group, body.topics)


@router.post("/{group}/resume")
async def resume_group(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, group: GroupName, body: PauseRequest
) -> GroupPause:
    return await console.groups.resume(caller, cluster, group, body.topics)


@router.post("/{group}/offset-deletion")
async def delete_offsets(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, group: GroupName, body: OffsetDeletion
) -> tuple[ItemResult, ...]:
    """The group forgets partitions; refused while a member reads the topic."""
    return await console.groups.delete_offsets(caller, cluster, group, [each.value() for each in body.partitions])


@router.post("/{group}/deletion", status_code=204)
async def delete_group(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, group: GroupName, body: Confirmation
) -> None:
    """Deletes a group without members, with its offsets."""
    await console.groups.delete(caller, cluster, group, body.confirm)
