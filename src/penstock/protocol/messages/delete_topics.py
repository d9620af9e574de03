"""DeleteTopics (20)."""

from __future__ import annotations

from uuid import UUID

from penstock.ids import NO_TOPIC_ID
from penstock.protocol.schema import i16, i32, message, nullable_since, since, struct, until


@struct
class DeleteTopicState:
    name: str | None = None
    topic_id: UUID = NO_TOPIC_ID


@message(flexible_from=4)
class DeleteTopicsRequest:
    """Names until version 5, names or ids from version 6."""

    topics: tuple[DeleteTopicState, ...] = since(6, default=())
    topic_names: tuple[str, ...] = until(5, default=())
    timeout_ms: i32


@struct
class DeletableTopicResult:
    name: str | None = nullable_since(6)
    topic_id: UUID = since(6, default=NO_TOPIC_ID)
    error_code: i16 = 0
    error_message: str | None = since(5, default=None)


@message(flexible_from=4)
class DeleteTopicsResponse:
    throttle_time_ms: i32 = 0
    responses: tuple[DeletableTopicResult, ...]
