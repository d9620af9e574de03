"""/api/clusters/{cluster}/topics: topics, their partitions and settings."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from penstock.admin import SettingDescription
from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.parameters import MAX_OFFSET, MAX_PARTITION, ClusterName, PartitionIndex, Rows, TopicName
from penstock.console.operations.paging import ItemResult, RowPage
from penstock.console.operations.topics import ReplicaSegments, SegmentRow, TopicDetail, TopicSetting
from penstock.console.polling.snapshot import PartitionRow, TopicRow

router = APIRouter(prefix="/clusters/{cluster}/topics", tags=["topics"])
meanings_router = APIRouter(prefix="/topic-settings", tags=["topics"])

MAX_PARTITIONS = 100_000
Name = Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[A-Za-z0-9._-]+$")]
Text = Annotated[str, Field(max_length=4096)]
SettingName = Annotated[str, Field(min_length=1, max_length=200)]
Index = Annotated[int, Field(ge=0, le=MAX_PARTITION)]


class TopicRequest(BaseModel):
    name: Name
    partitions: int | None = Field(None, ge=1, le=MAX_PARTITIONS)
    replication_factor: int | None = Field(None, ge=1, le=32_767)
    settings: dict[SettingName, Text] = Field(default_factory=dict, max_length=100)


class ViewRequest(BaseModel):
    name: Name
    view_of: Name
    tags: str = Field(min_length=1, max_length=1000, description="A tag expression: a,b or 'a and not (b or c)'.")


class SettingsChange(BaseModel):
    set: dict[SettingName, Text] = Field(default_factory=dict, max_length=100)
    delete: list[SettingName] = Field(default_factory=list, max_length=100)
    validate_only: bool = False


class PartitionTotal(BaseModel):
    total: int = Field(ge=1, le=MAX_PARTITIONS)


class Retirement(BaseModel):
    partitions: list[Index] = Field(min_length=1, max_length=1000)
    validate_only: bool = False


class Confirmation(BaseModel):
    confirm: str = Field(max_length=255, description="The name once more.")


class Deletion(Confirmation):
    before: dict[Index, Annotated[int, Field(ge=-1, le=MAX_OFFSET)]] = Field(
        min_length=1, max_length=10_000, description="For each partition the offset before which all goes; -1: all."
    )


@meanings_router.get("")
async def setting_meanings(console: TheConsole, caller: TheCaller) -> tuple[SettingDescription, ...]:
    """What can be set for a topic, and what it means."""
    return await console.topics.setting_meanings(caller)


@router.get("")
async def list_topics(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, rows: Rows, internal: bool = False
) -> RowPage[TopicRow]:
    return await console.topics.list(caller, cluster, rows, internal)


@router.post("", status_code=201)
async def create_topic(console: TheConsole, caller: TheCaller, cluster: ClusterName, body: TopicRequest) -> TopicRow:
    return await console.topics.create(
        caller, cluster, body.name, body.partitions, body.replication_factor, body.settings
    )


@router.post("/views", status_code=201)
async def create_view(console: TheConsole, caller: TheCaller, cluster: ClusterName, body: ViewRequest) -> TopicRow:
    """Makes a topic that shows the messages of another one that have certain tags."""
    return await console.topics.create_view(caller, cluster, body.name, body.view_of, body.tags)


@router.get("/{topic}")
async def describe_topic(console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName) -> TopicDetail:
    return await console.topics.describe(caller, cluster, topic)


@router.post("/{topic}/deletion", status_code=204)
async def delete_topic(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, body: Confirmation
) -> None:
    """Deletes a topic and everything in it."""
    await console.topics.delete(caller, cluster, topic, body.confirm)


@router.get("/{topic}/partitions")
async def list_partitions(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, rows: Rows
) -> RowPage[PartitionRow]:
    return await console.topics.partitions(caller, cluster, topic, rows)


@router.get("/{topic}/segments")
async def list_segments(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, rows: Rows
) -> RowPage[ReplicaSegments]:
    """The replicas of a topic: how many segments their logs have, from which offset to which, how large and how old."""
    return await console.topics.segments(caller, cluster, topic, rows)


@router.get("/{topic}/partitions/{partition}/segments")
async def list_partition_segments(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, partition: PartitionIndex
) -> tuple[SegmentRow, ...]:
    """Each log segment of each replica of a partition."""
    return await console.topics.partition_segments(caller, cluster, topic, partition)


@router.put("/{topic}/partitions", status_code=204)
async def add_partitions(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, body: PartitionTotal
) -> None:
    """Gives a topic more partitions, up to a total."""
    await console.topics.add_partitions(caller, cluster, topic, body.total)


@router.post("/{topic}/retirement")
async def retire_partitions(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, body: Retirement
) -> dict[int, int]:
    """Retires the topic's last partitions; gives the successor of each."""
    return dict(await console.topics.retire_partitions(caller, cluster, topic, body.partitions, body.validate_only))


@router.get("/{topic}/settings")
async def list_settings(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName
) -> tuple[TopicSetting, ...]:
    return await console.topics.settings(caller, cluster, topic)


@router.patch("/{topic}/settings")
async def alter_settings(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, body: SettingsChange
) -> tuple[TopicSetting, ...]:
    """Changes settings of a topic: the broker applies all of them or none."""
    return await console.topics.alter_settings(caller, cluster, topic, body.set, body.delete, body.validate_only)


@router.post("/{topic}/records-deletion")
async def delete_records(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, body: Deletion
) -> tuple[ItemResult, ...]:
    """Deletes the messages of partitions before an offset, for good."""
    return await console.topics.delete_records(caller, cluster, topic, body.before, body.confirm)
