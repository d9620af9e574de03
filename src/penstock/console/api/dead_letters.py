"""/api/clusters/{cluster}/dead-letters: what groups have given up."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from penstock.admin import DeadLetterSelection, DeadLetterState
from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.messages import Content
from penstock.console.api.parameters import MAX_TIME_MS, ClusterName, GroupName
from penstock.console.messages.sending import SentMessage
from penstock.console.operations.dead_letters import (
    DeadLetterError,
    DeadLetterGroup,
    DeadLetterPage,
    DeadLetterRow,
    parse_ids,
)
from penstock.console.operations.paging import ItemResult

router = APIRouter(prefix="/clusters/{cluster}/dead-letters", tags=["dead letters"])

Time = Annotated[int | None, Field(ge=0, le=MAX_TIME_MS)]
Word = Annotated[str | None, Field(max_length=500)]
LetterId = Annotated[str, Field(pattern=r"^\d{1,9}/\d{1,18}$")]
PartitionPart = Annotated[int, Path(ge=0, le=10**9 - 1)]
OffsetPart = Annotated[int, Path(ge=0, le=10**18 - 1)]


class Selection(BaseModel):
    """Letters that match every filter that is set; all that wait if none is."""

    ids: list[LetterId] = Field(default_factory=list, max_length=10_000)
    since_ms: Time = None
    until_ms: Time = None
    error: Word = Field(None, description="A part of the error, in any case.")
    origin: Word = Field(None, description="TOPIC, TOPIC/PARTITION or TOPIC/PARTITION/OFFSET.")

    def selection(self) -> DeadLetterSelection:
        return DeadLetterSelection(
            ids=parse_ids(self.ids),
            since_ms=self.since_ms,
            until_ms=self.until_ms,
            error=self.error,
            origin=self.origin,
        )


class Purge(Selection):
    confirm: str = Field(max_length=255, description="The group's name.")


class Edit(BaseModel):
    value: Content | None
    key: Content | None = Field(None, description="Another key; default: the letter's.")


@router.get("")
async def list_dead_letter_groups(
    console: TheConsole, caller: TheCaller, cluster: ClusterName
) -> tuple[DeadLetterGroup, ...]:
    return await console.dead_letters.groups(caller, cluster)


@router.get("/{group}/errors")
async def dead_letter_errors(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, group: GroupName
) -> tuple[DeadLetterError, ...]:
    """Those that wait, by error."""
    return await console.dead_letters.errors(caller, cluster, group)


@router.get("/{group}")
async def list_dead_letters(
    console: TheConsole,
    caller: TheCaller,
    cluster: ClusterName,
    group: GroupName,
    state: Annotated[list[DeadLetterState] | None, Query(max_length=3)] = None,
    error: Annotated[str | None, Query(max_length=500)] = None,
    origin: Annotated[str | None, Query(max_length=500)] = None,
    since_ms: Annotated[int | None, Query(ge=0, le=MAX_TIME_MS)] = None,
    until_ms: Annotated[int | None, Query(ge=0, le=MAX_TIME_MS)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    after: Annotated[str | None, Query(max_length=64)] = None,
) -> DeadLetterPage:
    states = frozenset(state or (DeadLetterState.WAITING,))
    selection = DeadLetterSelection(since_ms=since_ms, until_ms=until_ms, error=error, origin=origin, states=states)
    return await console.dead_letters.list(caller, cluster, group, selection, limit, after)


@router.get("/{group}/{partition}/{offset}")
async def show_dead_letter(
    console: TheConsole,
    caller: TheCaller,
    cluster: ClusterName,
    group: GroupName,
    partition: PartitionPart,
    offset: OffsetPart,
) -> DeadLetterRow:
    return await console.dead_letters.show(caller, cluster, group, f"{partition}/{offset}")


@router.post("/{group}/preview")
async def preview_selection(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, group: GroupName, body: Selection
) -> int:
    """How many letters a selection means; changes nothing."""
    return await console.dead_letters.preview(caller, cluster, group, body.selection())


@router.post("/{group}/resend")
async def resend_dead_letters(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, group: GroupName, body: Selection
) -> tuple[ItemResult, ...]:
    """Gives letters to their group once more, each exactly once; a result for each."""
    return await console.dead_letters.resend(caller, cluster, group, body.selection())


@router.post("/{group}/purge")
async def purge_dead_letters(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, group: GroupName, body: Purge
) -> tuple[ItemResult, ...]:
    """Throws letters away for good."""
    return await console.dead_letters.purge(caller, cluster, group, body.selection(), body.confirm)


@router.post("/{group}/{partition}/{offset}/edit")
async def edit_dead_letter(
    console: TheConsole,
    caller: TheCaller,
    cluster: ClusterName,
    group: GroupName,
    partition: PartitionPart,
    offset: OffsetPart,
    body: Edit,
) -> SentMessage:
    """Sends a corrected copy to the topic that the letter comes from, and purges the letter."""
    value = None if body.value is None else body.value.raw()
    key = None if body.key is None else body.key.raw()
    letter = f"{partition}/{offset}"
    return await console.dead_letters.edit(caller, cluster, group, letter, value, key, body.key is None)
