"""/api/clusters/{cluster}/topics/{topic}/messages, and searches: reading and sending messages."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.parameters import (
    MAX_OFFSET,
    MAX_PARTITION,
    MAX_TIME_MS,
    ClusterName,
    Id,
    Offset,
    PartitionIndex,
    TopicName,
)
from penstock.console.api.topics import Name
from penstock.console.errors import InvalidError
from penstock.console.messages.json_path import MAX_PATH
from penstock.console.messages.message_row import MessageRow
from penstock.console.messages.search import SearchProgress, SearchQuery
from penstock.console.messages.sending import SentMessage
from penstock.console.operations.messages import (
    MAX_SENT,
    BrowsePosition,
    MessagePage,
    MessagePlace,
    NewMessage,
    parse_positions,
)

router = APIRouter(prefix="/clusters/{cluster}/topics/{topic}", tags=["messages"])
search_router = APIRouter(prefix="/searches", tags=["messages"])

_MAX_PAYLOAD = 3 << 20
At = Literal["earliest", "latest", "offset", "time"]
Partition = Annotated[int, Field(ge=0, le=MAX_PARTITION)]
Word = Annotated[str, Field(max_length=1000)]


def _position(
    at: At = "latest",
    value: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0,
    partition: Annotated[list[Annotated[int, Query(ge=0, le=MAX_PARTITION)]] | None, Query(max_length=1000)] = None,
    after: Annotated[str | None, Query(max_length=50_000, description="`next` of the page before.")] = None,
) -> BrowsePosition:
    continued = None if after is None else parse_positions(after)
    return BrowsePosition(at, min(value, MAX_TIME_MS) if at == "time" else value, tuple(partition or ()), continued)


Position = Annotated[BrowsePosition, Depends(_position)]


class Content(BaseModel):
    """Bytes as text, or as base64."""

    text: str | None = Field(None, max_length=_MAX_PAYLOAD)
    base64: str | None = Field(None, max_length=_MAX_PAYLOAD)

    def raw(self) -> bytes | None:
        if self.text is not None and self.base64 is not None:
            raise InvalidError("give text or base64, not both; nothing was sent")
        if self.base64 is not None:
            try:
                return base64.b64decode(self.base64, validate=True)
            except (binascii.Error, ValueError):
                raise InvalidError("the base64 text cannot be decoded; nothing was sent") from None
        return None if self.text is None else self.text.encode("utf-8", "surrogatepass")


class HeaderBody(BaseModel):
    name: str = Field(min_length=1, max_length=500)
    value: Content | None = None


class MessageRequest(BaseModel):
    value: Content | None = None
    key: Content | None = None
    headers: list[HeaderBody] = Field(default_factory=list, max_length=100)
    partition: Partition | None = None
    tags: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(default_factory=list, max_length=50)
    biz_id: Word | None = None
    delay: str | None = Field(None, max_length=50, description="Such as 30s: the broker delivers it then.")

    def message(self) -> NewMessage:
        return NewMessage(
            value=None if self.value is None else self.value.raw(),
            key=None if self.key is None else self.key.raw(),
            headers=tuple((each.name, None if each.value is None else each.value.raw()) for each in self.headers),
            partition=self.partition,
            tags=tuple(self.tags),
            biz_id=self.biz_id,
            delay=self.delay,
        )


class PlaceBody(BaseModel):
    partition: Partition
    offset: int = Field(ge=0, le=MAX_OFFSET)


class ResendRequest(BaseModel):
    messages: list[PlaceBody] = Field(min_length=1, max_length=MAX_SENT)
    to: Name | None = Field(None, description="Another topic; default: the same.")


class SearchRequest(BaseModel):
    key: Word | None = None
    biz_id: Word | None = None
    tag: Word | None = None
    header: Word | None = None
    header_value: Word | None = None
    text: Word | None = None
    json_path: str | None = Field(None, max_length=MAX_PATH)
    json_value: Word | None = None
    since_ms: int | None = Field(None, ge=0, le=MAX_TIME_MS)
    until_ms: int | None = Field(None, ge=0, le=MAX_TIME_MS)
    at: Literal["earliest", "latest", "offset"] = "earliest"
    value: int = Field(0, ge=0, le=MAX_OFFSET)
    partitions: list[Partition] = Field(default_factory=list, max_length=1000)

    def query(self) -> SearchQuery:
        names = SearchQuery.__dataclass_fields__
        return SearchQuery(**{name: getattr(self, name) for name in names})


@router.get("/messages")
async def browse(
    console: TheConsole,
    caller: TheCaller,
    cluster: ClusterName,
    topic: TopicName,
    position: Position,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> MessagePage:
    """Messages from a position on; `latest` gives the newest, the newest first."""
    return await console.messages.browse(caller, cluster, topic, position, limit)


@router.get("/messages/{partition}/{offset}")
async def show_message(
    console: TheConsole,
    caller: TheCaller,
    cluster: ClusterName,
    topic: TopicName,
    partition: PartitionIndex,
    offset: Offset,
    raw: Annotated[bool, Query(description="As it is stored, not decoded by a schema.")] = False,
) -> MessageRow:
    return await console.messages.show(caller, cluster, topic, MessagePlace(partition, offset), raw)


@router.post("/messages", status_code=201)
async def produce(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, body: MessageRequest
) -> SentMessage:
    return await console.messages.produce(caller, cluster, topic, body.message())


@router.post("/messages/resend")
async def resend(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, body: ResendRequest
) -> tuple[SentMessage, ...]:
    """Sends copies of messages; a result for each."""
    places = [MessagePlace(each.partition, each.offset) for each in body.messages]
    return await console.messages.resend(caller, cluster, topic, places, body.to)


@router.get("/download", response_class=StreamingResponse, responses={200: {"content": {"application/x-ndjson": {}}}})
async def download(
    console: TheConsole,
    caller: TheCaller,
    cluster: ClusterName,
    topic: TopicName,
    position: Position,
    limit: Annotated[int, Query(ge=1, le=1_000_000)] = 10_000,
) -> StreamingResponse:
    """Messages as lines of JSON."""
    lines = await console.messages.download(caller, cluster, topic, position, limit)
    headers = {"content-disposition": f'attachment; filename="{topic.lstrip(".")}.jsonl"'}
    return StreamingResponse(lines, media_type="application/x-ndjson", headers=headers)


@router.get("/tail", response_class=StreamingResponse, responses={200: {"content": {"text/event-stream": {}}}})
async def tail(
    console: TheConsole,
    caller: TheCaller,
    cluster: ClusterName,
    topic: TopicName,
    partition: Annotated[list[Annotated[int, Query(ge=0, le=MAX_PARTITION)]] | None, Query(max_length=1000)] = None,
) -> StreamingResponse:
    """New messages as server-sent events, one a second: `{"rows": [...], "skipped": n}`."""
    turns = await console.messages.follow(caller, cluster, topic, tuple(partition or ()))

    async def events() -> AsyncIterator[str]:
        yield ": following\n\n"
        async for rows, skipped in turns:
            told = json.dumps({"rows": [asdict(row) for row in rows], "skipped": skipped}, ensure_ascii=False)
            yield f"data: {told}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})


@router.post("/searches", status_code=202)
async def start_search(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, body: SearchRequest
) -> SearchProgress:
    """Starts a search; ask /api/searches/{id} for its progress and hits."""
    position = BrowsePosition(body.at, body.value, tuple(body.partitions))
    return await console.messages.search(caller, cluster, topic, body.query(), position)


@search_router.get("/{id}")
async def search_progress(
    console: TheConsole, caller: TheCaller, id: Id, after: Annotated[int, Query(ge=0, le=1_000_000)] = 0
) -> SearchProgress:
    """How far a search is, with the hits behind the first `after`."""
    return await console.messages.search_progress(caller, id, after)


@search_router.delete("/{id}", status_code=204)
async def cancel_search(console: TheConsole, caller: TheCaller, id: Id) -> None:
    await console.messages.cancel_search(caller, id)
