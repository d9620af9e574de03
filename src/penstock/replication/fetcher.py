"""A follower's fetching: all partitions that it follows from one broker, over one connection, in a loop.

What an answer means for a partition is decided in `following`, what is done with it in the partition. Here: who is
asked for in the next request, how long a partition that cannot go on is left out, and what happens when the other
broker does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import ApiError, PeerError, PenstockError, ProtocolError
from penstock.ids import BrokerId, TopicPartition
from penstock.logs import fields
from penstock.net.peer import Peer
from penstock.protocol import replica_fetch
from penstock.protocol.apis import FETCH
from penstock.protocol.fetch import FetchPartition
from penstock.protocol.replica_fetch import ReplicaResult

logger = logging.getLogger(__name__)


class Followed(Protocol):
    """A partition that follows."""

    topic_partition: TopicPartition

    def wanted(self, max_bytes: int) -> FetchPartition:
        """What to ask the leader for."""
        ...

    async def take(self, asked: FetchPartition, result: ReplicaResult) -> bool:
        """Does what the answer asks for; False if there is nothing to be done before some time has passed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRules:
    wait_ms: int
    """How long the leader may wait for something to answer with."""
    partition_bytes: int
    answer_bytes: int
    back_off_s: float
    """How long a partition or a broker that failed is left alone."""


class Fetcher:
    """Follows one broker."""

    def __init__(self, me: BrokerId, broker_epoch: Callable[[], int], peer: Peer, name: str, rules: FetchRules) -> None:
        self._me = me
        self._broker_epoch = broker_epoch
        self._peer = peer
        self._name = name
        self._rules = rules
        self._partitions: dict[TopicPartition, Followed] = {}
        self._left_alone: dict[TopicPartition, float] = {}
        """Until when, in the loop's time."""
        self._changed = asyncio.Event()
        self._asking: asyncio.Task[memoryview] | None = None
        self._is_silent = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    def follow(self, partitions: Mapping[TopicPartition, Followed]) -> None:
        """From now on these, and no others."""
        came = partitions.keys() - self._partitions.keys()
        self._partitions = dict(partitions)
        self._left_alone = {at: until for at, until in self._left_alone.items() if at in partitions}
        self._changed.set()
        if came and self._asking is not None:
            # The leader may be holding our request until there is something to say about the others.
            self._asking.cancel()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        await self._peer.close()

    async def _run(self) -> None:
        while True:
            asked = self._next_request()
            if not asked:
                await self._rest()
                continue
            try:
                results = await self._ask(list(asked.values()))
            except (PeerError, ProtocolError) as error:
                if not self._is_silent:
                    logger.warning("leader does not answer", extra=fields(fetcher=self._name, reason=str(error)))
                self._is_silent = True
                await asyncio.sleep(self._rules.back_off_s)
                continue
            self._is_silent = False
            for result in results:
                await self._take(asked.get((result.topic_id, result.index)), result)

    def _next_request(self) -> dict[tuple[bytes, int], FetchPartition]:
        now = asyncio.get_running_loop().time()
        wanted = [
            partition.wanted(self._rules.partition_bytes)
            for at, partition in sorted(self._partitions.items())
            if self._left_alone.get(at, 0.0) <= now
        ]
        return {(each.topic_id or b"", each.index): each for each in wanted}

    async def _rest(self) -> None:
        """Until a partition comes, or one may be asked for again."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), self._rules.back_off_s if self._left_alone else None)
        except TimeoutError:
            return

    async def _ask(self, wanted: list[FetchPartition]) -> list[ReplicaResult]:
        body = replica_fetch.encode_request(
            self._me,
            self._broker_epoch(),
            wanted,
            max_wait_ms=self._rules.wait_ms,
            min_bytes=1,
            max_bytes=self._rules.answer_bytes,
        )
        call = self._peer.call(FETCH.key, replica_fetch.VERSION, body, is_flexible=True)
        self._asking = asyncio.get_running_loop().create_task(call)
        try:
            code, results = replica_fetch.decode_response(await self._asking)
        except asyncio.CancelledError:
            if self._task.cancelling():
                self._asking.cancel()
                raise
            return []  # called back because there is more to ask for
        finally:
            self._asking = None
        if code:
            raise PeerError(f"the fetch was answered with error {code}")
        return results

    async def _take(self, asked: FetchPartition | None, result: ReplicaResult) -> None:
        if asked is None:
            return
        at = TopicPartition(asked.topic or "", asked.index)
        partition = self._partitions.get(at)
        if partition is None:
            return  # it follows somebody else by now
        try:
            goes_on = await partition.take(asked, result)
        except PenstockError as error:
            if not isinstance(error, ApiError):
                logger.error("following failed", extra=fields(log=str(at), reason=str(error)))
            goes_on = False
        if goes_on:
            self._left_alone.pop(at, None)
        else:
            self._left_alone[at] = asyncio.get_running_loop().time() + self._rules.back_off_s
