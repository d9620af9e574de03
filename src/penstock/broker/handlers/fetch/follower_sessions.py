"""Fetch sessions of followers: one for each, so that a fetch names only what has changed (after KIP-227).

A follower names all partitions that it follows in its first fetch. Later fetches name only partitions whose fetch
offset or epoch has changed, or which the follower has begun or stopped to follow. A response names only partitions with
news. Rules:

- Each response carries a number in the place of a session id, and the next fetch repeats it. That fetch may have been
  under way for long, but the follower sent it after it had received the response. A fetch with another number gets an
  error, and the follower names everything again. A session is for one connection at a time: a follower that has lost a
  response begins another session.
- A partition that a fetch does not name is still followed, in the epoch and from the offset of the fetch that named it.
  `Heard` tells the partitions' leaderships so; a partition that is forgotten is taken out of it.
- Only what a fetch names moves a follower's log end offset, and with it the high watermark. Every named partition is in
  the response.
- Only the other brokers of the cluster have sessions, and each has one: the broker closes a connection that fetches in
  any other name. A session ends when its broker leaves, or when it names more partitions than there can be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from itertools import count
from typing import NamedTuple

from penstock.broker.handlers.fetch.parked_fetches import ParkedFetch, ParkedFetches
from penstock.broker.handlers.fetch.partition_reads import FollowerReads
from penstock.broker.requests.response_frame import ResponseFrame
from penstock.broker.requests.sliced_work import Slices, Work
from penstock.clock import Clock
from penstock.config.broker import Limits
from penstock.errors import ApiError, Code, ProtocolError, StorageError, code_of
from penstock.ids import BrokerId
from penstock.parts import size_of
from penstock.protocol.fetch import FetchPartition, FetchRequest, FetchResult, encode_in_steps, encode_response
from penstock.replication.leadership import Heard
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas

NEW_SESSION = 0
_MAX_NUMBER = (1 << 31) - 1

Key = tuple[bytes, int]
"""A topic's id, and the index of a partition."""


class _Followed:
    """One partition of a session; the partition tells it when there is more, or something else is new."""

    __slots__ = ("_session", "partition", "told", "wanted")

    def __init__(self, session: _Session, wanted: FetchPartition) -> None:
        self._session = session
        self.wanted = wanted
        self.partition: Partition | None = None
        self.told: tuple[int, int] | None = None
        """The high watermark and the start of the log that it was told last; None if it has to be answered."""

    def grew(self, appended_bytes: int) -> None:
        session = self._session
        session.news[self] = None
        if appended_bytes:
            session.has_grown = True
            if session.parked is not None:
                session.parked.wake()

    def answer_now(self, since_ms: float) -> None:
        session = self._session
        if session.heard.followed_ms < since_ms:
            session.called[self] = None
            if session.parked is not None:
                session.parked.wake()

    def find(self, replicas: Replicas) -> Partition:
        """The partition, or the error that the follower gets when it is not here."""
        topic = replicas.topic_of(self.wanted.topic_id or b"")
        if topic is None:
            raise ApiError(Code.UNKNOWN_TOPIC_ID)
        found = replicas.find(topic, self.wanted.index)
        if found is not self.partition:
            self.leave()
            self.partition = found
            found.park_follower(self)
        return found

    def leave(self) -> None:
        if self.partition is not None:
            self.partition.unpark_follower(self)
            self.partition = None

    def is_told_all(self) -> bool:
        partition = self.partition
        return partition is None or self.told == (partition.high_watermark, partition.log.start_offset)


class _Session:
    """One follower, as long as none of its fetches is lost."""

    def __init__(self, follower: BrokerId, number: int) -> None:
        self.follower = follower
        self.number = number
        """Of the last answer."""
        self.answered_ms = float("-inf")
        self.heard = Heard()
        self.followed: dict[Key, _Followed] = {}
        self.news: dict[_Followed, None] = {}
        """Those that have to be looked at, in the order in which that was found out."""
        self.has_grown = False
        self.parked: ParkedFetch | None = None
        """The fetch that waits for something to grow."""
        self.called: dict[_Followed, None] = {}
        """Those whose leader has to know whether it is still followed: the fetch is answered at once."""

    def take(self, request: FetchRequest) -> None:
        """Notes what has changed."""
        for _, topic_id, index in request.forgotten:
            gone = self.followed.pop((topic_id or b"", index), None)
            if gone is not None:
                self._stop_hearing_of(gone)
                gone.leave()
                self.news.pop(gone, None)
        # What is named comes first, in its order: the first that has something gets a whole batch, however large.
        others, self.news = self.news, {}
        for wanted in request.partitions:
            key = wanted.topic_id or b"", wanted.index
            known = self.followed.get(key)
            if known is None:
                known = self.followed[key] = _Followed(self, wanted)
            self._stop_hearing_of(known)
            known.wanted, known.told = wanted, None
            self.news[known] = None
        self.news.update(others)
        # Only now: by this fetch nothing is heard of those that it forgets, or names in another epoch.
        self.heard.followed_ms = self.answered_ms

    def take_news(self) -> list[_Followed]:
        news = list(self.news)
        self.news.clear()
        self.has_grown = False
        return news

    def take_called(self) -> list[_Followed]:
        called = list(self.called)
        self.called.clear()
        return called

    def end(self) -> None:
        for followed in self.followed.values():
            followed.leave()
        if self.parked is not None:
            self.parked.wake()

    def _stop_hearing_of(self, followed: _Followed) -> None:
        partition = followed.partition
        if partition is not None and partition.leadership is not None:
            partition.leadership.unheard(self.follower)


class _Found(NamedTuple):
    results: dict[Key, FetchResult]
    size: int
    is_urgent: bool
    """Something is wrong: the follower shall not wait."""


class FollowerSessions:
    """Answers the fetches of the other brokers."""

    def __init__(
        self,
        replicas: Replicas,
        parked: ParkedFetches,
        limits: Limits,
        clock: Clock,
        may_have_caught_up: Callable[[], None],
        slices: Slices,
        is_broker: Callable[[int], bool],
    ) -> None:
        self._slices = slices
        self._is_broker = is_broker
        self._max_followed = limits.partitions
        self._replicas = replicas
        self._parked = parked
        self._max_bytes = limits.fetch_bytes
        self._max_wait_ms = limits.idle_connection_ms
        self._clock = clock
        self._may_have_caught_up = may_have_caught_up
        self._sessions: dict[int, _Session] = {}
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._sessions)

    def keep_only(self, brokers: Collection[BrokerId]) -> None:
        """Ends the sessions of all others."""
        for follower in [found for found in self._sessions if found not in brokers]:
            self._sessions.pop(follower).end()

    async def fetch(self, version: int, correlation_id: int, request: FetchRequest) -> ResponseFrame:
        if not self._is_broker(request.replica_id):
            raise ProtocolError(f"a fetch as broker {request.replica_id}, which is not one of this cluster")
        session = self._session_of(request)
        if session is None:
            parts = encode_response(version, correlation_id, (), error_code=Code.FETCH_SESSION_ID_NOT_FOUND)
            return ResponseFrame(parts, size_of(parts), failed=True)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request.max_wait_ms, self._max_wait_ms) / 1000
        reads = FollowerReads(session.follower, session.heard, self._may_have_caught_up)
        now_ms = self._clock.monotonic_ms()
        session.take(request)
        found = await self._look_at(session, session.take_news(), reads, request)
        session.heard.fetched_ms = now_ms
        for called in session.take_called():
            if called.partition is not None:
                called.partition.follower_heard()
        while self._may_wait(session, found):
            if not session.has_grown:
                await self._park(session, deadline)
            if loop.time() >= deadline:
                session.news.update((each, None) for each in session.followed.values() if not each.is_told_all())
            more = await self._look_at(session, session.take_news(), reads, request)
            found = more._replace(results=found.results | more.results)
            if loop.time() >= deadline:
                break
        return await self._answer(version, correlation_id, session, found)

    def _session_of(self, request: FetchRequest) -> _Session | None:
        follower = request.replica_id
        known = self._sessions.get(follower)
        if known is not None and len(known.followed) > self._max_followed:
            self._sessions.pop(follower).end()
            known = None
        if request.session_epoch > NEW_SESSION:
            return known if known is not None and known.number == request.session_id else None
        session = self._sessions[follower] = _Session(BrokerId(follower), self._next_number())
        if known is not None:
            known.end()
        return session

    def _may_wait(self, session: _Session, found: _Found) -> bool:
        is_due = found.size or found.is_urgent or session.called or self._parked.is_closing
        return not is_due and self._is_current(session)

    def _is_current(self, session: _Session) -> bool:
        """Whether the follower has not begun another session meanwhile: what it said in this one is old then."""
        return self._sessions.get(session.follower) is session

    async def _park(self, session: _Session, deadline: float) -> None:
        def register(parked: ParkedFetch) -> None:
            session.parked = parked

        try:
            await self._parked.wait(register, 1, deadline)
        finally:
            session.parked = None

    async def _look_at(
        self, session: _Session, followed: Iterable[_Followed], reads: FollowerReads, request: FetchRequest
    ) -> _Found:
        results: dict[Key, FetchResult] = {}
        room = min(request.max_bytes, self._max_bytes)
        size, is_urgent = 0, False
        async for each in Work(self._slices).over(followed):
            if not self._is_current(session):
                break
            wanted = each.wanted
            key = wanted.topic_id or b"", wanted.index
            try:
                partition = each.find(self._replicas)
                result = await reads.read(partition, wanted, room - size, is_first=size == 0)
            except (ApiError, StorageError) as error:
                is_urgent = True
                session.news[each] = None
                results[key] = FetchResult(wanted.topic, wanted.topic_id, wanted.index, code_of(error))
                continue
            is_wrong = result.diverging is not None or result.error_code != 0
            if is_wrong or wanted.fetch_offset != partition.log.end_offset:
                session.news[each] = None
            told = result.high_watermark, result.log_start_offset
            if result.size or is_wrong or told != each.told:
                results[key] = result
                each.told = told
            size += result.size
            is_urgent = is_urgent or is_wrong
        return _Found(results, size, is_urgent)

    def _next_number(self) -> int:
        return next(self._numbers) % _MAX_NUMBER + 1

    async def _answer(self, version: int, correlation_id: int, session: _Session, found: _Found) -> ResponseFrame:
        session.number = number = self._next_number()
        session.answered_ms = self._clock.monotonic_ms()
        results = list(found.results.values())
        steps = encode_in_steps(version, correlation_id, results, session_id=number)
        return ResponseFrame(await Work(self._slices).through(steps), found.size + 64, found.is_urgent)
