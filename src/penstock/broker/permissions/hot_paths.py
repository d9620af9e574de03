"""The checks of Produce and Fetch: one look-up for each partition, and none for brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from penstock.broker.permissions.access import Access, Permissions
from penstock.errors import ApiError, Code
from penstock.net.caller import Caller
from penstock.protocol.produce import ProducePartition, ProduceRequest, ProduceResult
from penstock.security.acls import Operation, ResourceType

_ATTRIBUTES_LOW_BYTE = 22
_TRANSACTIONAL = 0x10


def permitted_writes(
    permissions: Permissions, request: ProduceRequest, caller: Caller
) -> tuple[ProduceRequest, list[ProduceResult]]:
    """The request without what its sender may not write, and the answers to that."""
    access = Access(permissions, caller, "Produce")
    transactional_id = request.transactional_id
    if transactional_id is not None and not access.may(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    ):
        denied = [_denied(each, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED) for each in request.partitions]
        return replace(request, partitions=[]), denied
    writable = permissions.decisions(caller, Operation.WRITE, ResourceType.TOPIC)
    allowed: list[ProducePartition] = []
    refused: list[ProduceResult] = []
    for each in request.partitions:
        if not writable[each.topic]:
            access.deny(Operation.WRITE, ResourceType.TOPIC, each.topic)
            refused.append(_denied(each, Code.TOPIC_AUTHORIZATION_FAILED))
        elif transactional_id is None and _is_transactional(each.records):
            # It would become part of the transaction of an id that the sender may have no permission for.
            access.deny(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "")
            refused.append(_denied(each, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        else:
            allowed.append(each)
    return (replace(request, partitions=allowed), refused) if refused else (request, refused)


class ReadCheck(NamedTuple):
    """Whether one caller may read topics."""

    permissions: Permissions
    caller: Caller
    readable: Mapping[str, bool]

    @classmethod
    def of(cls, permissions: Permissions, caller: Caller) -> ReadCheck | None:
        """None for a broker: it repairs what is damaged with what others have."""
        if caller.is_inter_broker:
            return None
        return cls(permissions, caller, permissions.decisions(caller, Operation.READ, ResourceType.TOPIC))

    def require(self, topic: str) -> None:
        """ApiError if the topic may not be read, whether it exists or not."""
        if not self.readable[topic]:
            self.permissions.denials.note(self.caller, "Fetch", Operation.READ, ResourceType.TOPIC, topic)
            raise ApiError(Code.TOPIC_AUTHORIZATION_FAILED)


def _is_transactional(records: memoryview | None) -> bool:
    return (
        records is not None
        and len(records) > _ATTRIBUTES_LOW_BYTE
        and bool(records[_ATTRIBUTES_LOW_BYTE] & _TRANSACTIONAL)
    )


def _denied(wanted: ProducePartition, code: Code) -> ProduceResult:
    return ProduceResult(wanted.topic, wanted.index, code, error_message="not authorized")
