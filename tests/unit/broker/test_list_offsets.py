"""Where a log ends, as clients are told, while a new leader does not know yet what was acknowledged (KIP-207)."""

from __future__ import annotations

from pathlib import Path

from penstock.broker.handlers.offsets import OffsetHandlers
from penstock.broker.requests.context import RequestContext
from penstock.delay.delays import Delays
from penstock.errors import Code
from penstock.protocol.messages.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.views.catalogue import Catalogue
from support import callers
from support.followed import Leader
from support.logs import AT, NOW_MS

NEW, OLD = 7, 4
"""Versions: the first knows a word for it."""


class Asker:
    """A client that asks one partition."""

    def __init__(self, leader: Leader, folder: Path) -> None:
        self._handlers = OffsetHandlers(leader.replicas, Catalogue(leader.image), Delays(leader.clock), folder)

    async def ask(self, timestamp: int, version: int = NEW) -> tuple[int, int]:
        """The error and the offset."""
        wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topics = (ListOffsetsTopic(name=AT.topic, partitions=(wanted,)),)
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)
        answer = await self._handlers.list_offsets(request, RequestContext(version, callers.client()))
        found = answer.topics[0].partitions[0]
        return found.error_code, found.offset


async def test_an_end_that_may_be_too_low_is_not_told(leader: Leader, tmp_path: Path) -> None:
    asker = Asker(leader, tmp_path)
    assert await asker.ask(LATEST_TIMESTAMP) == (Code.NONE, 0)
    await leader.append(0)
    assert await asker.ask(LATEST_TIMESTAMP) == (Code.NONE, 0), "who has led all along knows"
    await leader.change(0, 1)
    assert await asker.ask(LATEST_TIMESTAMP) == (Code.OFFSET_NOT_AVAILABLE, -1)
    assert await asker.ask(LATEST_TIMESTAMP, OLD) == (Code.LEADER_NOT_AVAILABLE, -1)
    assert await asker.ask(NOW_MS) == (Code.OFFSET_NOT_AVAILABLE, -1)
    assert await asker.ask(MAX_TIMESTAMP) == (Code.OFFSET_NOT_AVAILABLE, -1)
    assert await asker.ask(EARLIEST_TIMESTAMP) == (Code.NONE, 0)
    assert await asker.ask(NOW_MS + 1) == (Code.NONE, -1), "nothing is that late, acknowledged or not"
    await leader.fetch((0, 1), epoch=1)
    assert await asker.ask(LATEST_TIMESTAMP) == (Code.NONE, 1)
    assert await asker.ask(NOW_MS) == (Code.NONE, 0)
