"""A replica fetcher: copies all partitions that this broker follows from one leader, over one connection, in a loop.

What a response means for a partition is decided in `divergence`; the partition does what follows. This module decides
which partitions the next request names, for how long a partition that cannot go on is left out, and what to do when the
leader does not answer.

The leader remembers earlier requests, so a request names only what has changed: the other side is
`broker/handlers/fetch/follower_sessions.py`.

The fetcher requests a throttled partition (usually a new replica) when the throttle has room, and no more than that;
the others never wait for it. Once it has reached the leader's high watermark it is no longer throttled, because from
then on the leader waits for it before it acknowledges anything.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.background_loop import run_forever
from penstock.errors import ApiError, Code, PeerError, PenstockError, ProtocolError
from penstock.ids import BrokerId, TopicPartition
from penstock.logs import fields
from penstock.net.peer import Peer
from penstock.protocol import replica_fetch
from penstock.protocol.apis import FETCH
from penstock.protocol.fetch import FetchPartition
from penstock.protocol.replica_fetch import ReplicaResult
from penstock.replication.throttle import Throttle, draw, settle

logger = logging.getLogger(__name__)

_NEW_SESSION = 0
_SAME_SESSION = 1
_LOOK_AGAIN_S = 1.0
"""The longest time between two looks at whether a limit has changed."""


Key = tuple[bytes, int]
"""A topic's id, and the index of a partition."""


class Followed(Protocol):
    """A partition that follows."""

    @property
    def leader_epoch(self) -> int: ...

    @property
    def can_follow(self) -> bool: ...

    def wanted(self, max_bytes: int) -> FetchPartition:
        """What to ask the leader for; it changes with the epoch and by `take`."""
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
    first_back_off_s: float
    """How long a partition that cannot go on is left alone the first time; then twice as long each time. Mostly one of
    the two brokers has not heard of the other's epoch yet, and will in a moment.
    """
    back_off_s: float
    """How long a partition is left alone at most, and a broker that does not answer."""
    lag_time_s: float
    """For how long a follower that had all that there was counts as keeping up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast partitions are copied."""

    is_slowed: Callable[[TopicPartition], bool]
    throttles: Collection[Throttle]
    """What is copied of those that are slowed counts against each of them."""


class _Request(NamedTuple):
    partitions: Mapping[Key, FetchPartition]
    """All requested partitions."""
    named: Sequence[FetchPartition]
    """Those of which the leader does not know it from before."""
    forgotten: Sequence[Key]
    """Partitions of earlier requests that this one leaves out."""
    wait_s: float
    """After this time there is more to ask for, whatever happens."""
    drawn: Mapping[Key, int]
    """For those that are slowed: the bytes that were drawn for them."""


class _Pause(NamedTuple):
    until: float
    """In the loop's time."""
    length_s: float


class ReplicaFetcher:
    """Follows one broker."""

    def __init__(
        self,
        me: BrokerId,
        broker_epoch: Callable[[], int],
        peer: Peer,
        name: str,
        rules: FetchRules,
        pace: Pace,
    ) -> None:
        self._me = me
        self._broker_epoch = broker_epoch
        self._peer = peer
        self._name = name
        self._rules = rules
        self._pace = pace
        self._partitions: dict[TopicPartition, Followed] = {}
        self._left_alone: dict[TopicPartition, _Pause] = {}
        self._caught_up: dict[TopicPartition, float] = {}
        """When each was last seen to have what is acknowledged, in the loop's time."""
        self._last_turn: TopicPartition | None = None
        self._changed = asyncio.Event()
        self._asking: asyncio.Task[memoryview] | None = None
        self._is_silent = False
        self._session_id = 0
        """What the last answer carried; repeating it tells the leader that we have received it. 0: it knows nothing."""
        self._said: dict[Key, FetchPartition] = {}
        """What the leader knows of our requests."""
        self._moved: set[TopicPartition] = set()
        """Those that may want something else than was said."""
        self._is_settled = False
        """No partition is left out, or throttled: except for those that moved, the next request equals the last."""
        self._task = asyncio.get_running_loop().create_task(run_forever(name, self._fetch_once), name=name)

    def follow(self, partitions: Mapping[TopicPartition, Followed]) -> None:
        """From now on these, and no others."""
        came = partitions.keys() - self._partitions.keys()
        self._moved.update(at for at, partition in partitions.items() if self._partitions.get(at) != partition)
        self._partitions = dict(sorted(partitions.items()))
        self._is_settled = False
        self._left_alone = {at: pause for at, pause in self._left_alone.items() if at in partitions}
        self._caught_up = {at: when for at, when in self._caught_up.items() if at in partitions}
        self._changed.set()
        if came and self._asking is not None:
            # The leader may be holding our request until there is something to say about the others.
            self._asking.cancel()

    def look_again(self) -> None:
        """Epochs, or who is slowed, may not be what they were."""
        self._is_settled = False

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        await self._peer.close()

    async def _fetch_once(self) -> None:
        request = self._next_request(asyncio.get_running_loop().time())
        if not request.partitions:
            await self._rest(request.wait_s)
            return
        copied = 0
        try:
            results = await self._ask(request)
            copied = sum(len(each.records) for each in results if (each.topic_id, each.index) in request.drawn)
        except (PeerError, ProtocolError) as error:
            if not self._is_silent:
                logger.warning("the leader does not answer", extra=fields(fetcher=self._name, reason=str(error)))
            self._is_silent = True
            self._say_everything()
            await asyncio.sleep(self._rules.back_off_s)
            return
        finally:
            settle(self._pace.throttles, sum(request.drawn.values()), copied)
        self._is_silent = False
        for result in results:
            await self._take(request.partitions.get((result.topic_id, result.index)), result)

    def _next_request(self, now: float) -> _Request:
        if self._is_settled and not self._left_alone:
            named = [self._partitions[at].wanted(self._rules.partition_bytes) for at in self._moved]
            self._said.update((_key(wanted), wanted) for wanted in named)
            return _Request(self._said, named, (), math.inf, {})
        return self._new_request(now)

    def _new_request(self, now: float) -> _Request:
        waits_s = [pause.until - now for pause in self._left_alone.values() if pause.until > now]
        due = [at for at in self._partitions if at not in self._left_alone or self._left_alone[at].until <= now]
        unable = {at for at in due if not self._partitions[at].can_follow}
        if unable:
            due = [at for at in due if at not in unable]
            waits_s.append(self._rules.back_off_s)
        slowed = [at for at in due if self._is_slowed(at, now)]
        if slowed:
            waits_s.append(_LOOK_AGAIN_S)
        asked: dict[Key, FetchPartition] = {}
        named: list[FetchPartition] = []
        drawn: dict[Key, int] = {}
        # Those for which there is room come first, where a batch is given whole, however large it is. They take turns.
        last = self._last_turn
        for at in sorted(slowed, key=lambda at: (last is not None and at <= last, at)):
            room = draw(self._pace.throttles, self._rules.partition_bytes, now)
            if not room:
                waits_s.append(max(each.wait_s(self._rules.partition_bytes, now) for each in self._pace.throttles))
                break
            wanted = self._partitions[at].wanted(room)
            asked[_key(wanted)], drawn[_key(wanted)] = wanted, room
            named.append(wanted)
            self._last_turn = at
        left_out = set(slowed)
        said = {(each.topic, each.index): each for each in self._said.values()}
        for at in due:
            if at in left_out:
                continue
            partition, known = self._partitions[at], said.get(at)
            if known is None or at in self._moved or known.current_leader_epoch != partition.leader_epoch:
                known = partition.wanted(self._rules.partition_bytes)
                named.append(known)
            asked[_key(known)] = known
        self._is_settled = not unable and not any(self._pace.is_slowed(at) for at in due)
        forgotten = sorted(key for key in self._said if key not in asked)
        return _Request(asked, named, forgotten, min(waits_s, default=math.inf), drawn)

    def _is_slowed(self, at: TopicPartition, now: float) -> bool:
        return self._pace.is_slowed(at) and now - self._caught_up.get(at, -math.inf) > self._rules.lag_time_s

    async def _rest(self, wait_s: float) -> None:
        """Waits until a partition comes, or may be requested again."""
        self._changed.clear()
        try:
            async with asyncio.timeout(None if wait_s == math.inf else wait_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _ask(self, request: _Request) -> list[ReplicaResult]:
        self._moved.clear()
        is_known = self._session_id != 0
        body = replica_fetch.encode_request(
            self._me,
            self._broker_epoch(),
            request.named,
            forgotten=request.forgotten,
            session_id=self._session_id,
            session_epoch=_SAME_SESSION if is_known else _NEW_SESSION,
            # Partitions that are left out now do not wait for news of the others.
            max_wait_ms=math.ceil(min(self._rules.wait_ms, request.wait_s * 1000)),
            min_bytes=1,
            max_bytes=self._rules.answer_bytes,
        )
        self._asking = self._peer.start_call(FETCH.key, replica_fetch.VERSION, body, is_flexible=True)
        try:
            code, self._session_id, results = replica_fetch.decode_response(await self._asking)
        except asyncio.CancelledError:
            if self._task.cancelling():
                self._asking.cancel()
                raise
            self._say_everything()
            return []  # called back because there is more to ask for
        finally:
            self._asking = None
        if code == Code.FETCH_SESSION_ID_NOT_FOUND and is_known:
            self._say_everything()
            return []
        if code:
            raise PeerError(f"the fetch was answered with error {code}")
        if any(each.error_code == Code.TOPIC_AUTHORIZATION_FAILED for each in results):
            raise PeerError(
                "it does not take this broker for a broker of the cluster: the endpoint that it advertises for its "
                "inter-broker listener leads to another listener"
            )
        if not self._session_id:
            self._say_everything()
        elif request.partitions is not self._said:
            self._said = dict(request.partitions)
        return results

    def _say_everything(self) -> None:
        """What the leader knows is not known any more."""
        self._session_id = 0
        self._said = {}
        self._is_settled = False

    async def _take(self, asked: FetchPartition | None, result: ReplicaResult) -> None:
        if asked is None:
            return
        at = TopicPartition(asked.topic or "", asked.index)
        partition = self._partitions.get(at)
        if partition is None:
            return  # it follows another broker by now
        if len(result.records) or result.diverging is not None or result.error_code:
            self._moved.add(at)
        try:
            goes_on = await partition.take(asked, result)
        except PenstockError as error:
            if not isinstance(error, ApiError):
                logger.error("cannot replicate a partition", extra=fields(log=str(at), reason=str(error)))
            goes_on = False
        if goes_on:
            self._left_alone.pop(at, None)
            if self._pace.is_slowed(at) and _has_acknowledged(partition, result):
                self._caught_up[at] = asyncio.get_running_loop().time()
        else:
            before = self._left_alone.get(at)
            length_s = self._rules.first_back_off_s if before is None else 2 * before.length_s
            length_s = min(length_s, self._rules.back_off_s)
            self._left_alone[at] = _Pause(asyncio.get_running_loop().time() + length_s, length_s)


def _key(asked: FetchPartition) -> Key:
    return asked.topic_id or b"", asked.index


def _has_acknowledged(partition: Followed, result: ReplicaResult) -> bool:
    """Whether a follower has, with this answer, all that its leader has acknowledged."""
    is_told = result.error_code == 0 and result.diverging is None
    return is_told and partition.wanted(0).fetch_offset >= result.high_watermark
