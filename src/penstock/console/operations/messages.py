"""Operations on messages: browse, show one, search, follow, download, produce, resend.

Every one of them shows a message as the caller's role may see it (`security/masking.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import asdict, dataclass, replace

from penstock.admin import AtOffset, AtTime, Cluster, Earliest, OffsetBounds, Position, TopicPartition
from penstock.clock import Clock
from penstock.config.view import VIEW_OF_SETTING
from penstock.console.errors import InvalidError, MissingError, RefusedError
from penstock.console.messages.message_row import NO_SCHEMAS, MessageRow, message_row
from penstock.console.messages.reader import ReadPage, read_one, read_page, scan
from penstock.console.messages.search import Searches, SearchProgress, SearchQuery, Sight
from penstock.console.messages.sending import SentMessage, first_problem, send
from penstock.console.messages.tail import Tails
from penstock.console.operations.clusters import Clusters, ManagedCluster
from penstock.console.operations.operation import Changed, Scope, Service, change, query
from penstock.console.pipeline.archived_messages import ArchivedMessages, archived_messages
from penstock.console.schemas.topic_schemas import TopicSchemas
from penstock.console.security.masking import Mask, MaskingRules
from penstock.console.security.roles import Caller, Role
from penstock.console.settings import MessageSettings
from penstock.console.state.audit import AuditLog
from penstock.errors import PenstockError
from penstock.sdk.headers import BIZ_ID, DELAY, TAGS, TIMING, origin_of, without
from penstock.sdk.ports import Headers, Outgoing, Received

_INTERNAL_PREFIX = "__"
_DOWNLOAD_BATCH = 500
MAX_SENT = 1000


@dataclass(frozen=True, slots=True)
class BrowsePosition:
    """Where to begin: `earliest`, `latest` (the newest messages), `offset` or `time` (milliseconds since 1970)."""

    at: str = "latest"
    value: int = 0
    partitions: tuple[int, ...] = ()
    """Empty: all."""
    continued: Mapping[int, int] | None = None
    """Where a page before ended; in place of `at`."""


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages; `next` continues the list, None if it was read to the end."""

    rows: tuple[MessageRow, ...]
    next: str | None
    starts: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to produce."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    tags: tuple[str, ...] = ()
    biz_id: str | None = None
    delay: str | None = None
    """Such as `30s`: the broker delivers it then."""


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """Where a message is."""

    partition: int
    offset: int


class MessageOperations(Service):
    """Messages of topics."""

    def __init__(
        self,
        audit: AuditLog,
        clusters: Clusters,
        masking: MaskingRules,
        schemas: TopicSchemas,
        settings: MessageSettings,
        clock: Clock,
        lake_batch: int,
        current: Callable[[Caller], Awaitable[Caller | None]],
    ) -> None:
        """`lake_batch` is how many records of a lake a search has in memory; `current` gives a caller with the rights
        that it has now, or None.
        """
        super().__init__(audit)
        self._current = current
        self._clusters = clusters
        self._masking = masking
        self._schemas = schemas
        self._settings = settings
        self._lake_batch = lake_batch
        self.searches = Searches(settings, clock)
        self._tails = Tails(settings, clock)

    @query("messages.browse", Role.VIEWER, Scope.TOPIC, is_audited=True)
    async def browse(
        self, caller: Caller, cluster: str, topic: str, position: BrowsePosition, limit: int = 50
    ) -> MessagePage:
        """Messages from a position on, by time; from `latest`, the newest first."""
        view = await self._view(caller, cluster, topic)
        link = self._clusters[cluster].link
        bounds = await self._bounds(cluster, topic, position.partitions)
        limit = min(limit, self._settings.page_size)
        starts = await self._starts(cluster, topic, bounds, position, limit)
        ranges = {index: (starts[index], bounds[index].end) for index in starts}

        def read(_: Cluster) -> ReadPage:
            return read_page(
                link,
                topic,
                ranges,
                limit=limit * len(ranges) if _is_newest(position) else limit,
                max_bytes=self._settings.page_bytes,
                timeout_s=self._settings.read_timeout_ms / 1000,
            )

        page = await link.run(read)
        rows = await view.rows(page.messages, self._settings.shown_bytes)
        if _is_newest(position):
            rows.sort(key=lambda row: (row.timestamp_ms or 0, row.partition, row.offset), reverse=True)
            rows = rows[:limit]
        following = None if _is_newest(position) or not page.next else spell_positions(page.next)
        return MessagePage(
            tuple(rows),
            following,
            {index: held.start for index, held in bounds.items()},
            {index: held.end for index, held in bounds.items()},
        )

    @query("messages.show", Role.VIEWER, Scope.TOPIC, is_audited=True)
    async def show(
        self, caller: Caller, cluster: str, topic: str, place: MessagePlace, is_raw: bool = False
    ) -> MessageRow:
        """One message, whole; raw: as it is stored, whatever schemas there are."""
        view = await self._view(caller, cluster, topic)
        found, is_archived = await self._one(cluster, topic, place)
        size = self._settings.page_bytes
        sight = await view.sight(found)
        schemas = NO_SCHEMAS if is_raw else sight.schemas
        return await asyncio.to_thread(message_row, found, sight.mask, size, schemas, size, is_archived=is_archived)

    @query("messages.search", Role.VIEWER, Scope.TOPIC, is_audited=True)
    async def search(
        self, caller: Caller, cluster: str, topic: str, wanted: SearchQuery, position: BrowsePosition
    ) -> SearchProgress:
        """Starts a search through the messages from a position on; ask for its progress."""
        view = await self._view(caller, cluster, topic)
        link = self._clusters[cluster].link
        bounds = await self._bounds(cluster, topic, position.partitions)
        begin = BrowsePosition("time", wanted.since_ms) if wanted.since_ms is not None else position
        starts = await self._starts(cluster, topic, bounds, begin, self._settings.search_records)
        ranges = {index: (starts[index], bounds[index].end) for index in starts}
        # A search runs in a thread: rules for where messages come from are looked up before, and a new origin waits
        # for the event loop.
        loop = asyncio.get_running_loop()

        def sight_of(message: Received) -> Sight:
            known = view.known_sight(message)
            return asyncio.run_coroutine_threadsafe(view.sight(message), loop).result() if known is None else known

        archive, problem = None, ""
        try:
            # The lake has keys as they are stored, and the query may be for a decoded one.
            stored = replace(wanted, key=None) if (await view.sight(None)).schemas else wanted
            archive = await self._archive(cluster, topic, bounds, begin, stored)
        except PenstockError as error:
            problem = f"the lake was not searched: {error}"
        id = self.searches.start(link, caller.name, topic, ranges, wanted, sight_of, archive, problem)
        return self.searches.progress(id, caller.name, 0)

    @query("messages.search_progress", Role.VIEWER, Scope.ANY)
    async def search_progress(self, caller: Caller, id: str, after: int = 0) -> SearchProgress:
        """How far the caller's own search is, with the hits behind the first `after`."""
        return self.searches.progress(id, caller.name, after)

    @query("messages.cancel_search", Role.VIEWER, Scope.ANY)
    async def cancel_search(self, caller: Caller, id: str) -> None:
        self.searches.cancel(id, caller.name)

    @query("messages.follow", Role.VIEWER, Scope.TOPIC, is_audited=True)
    async def follow(
        self, caller: Caller, cluster: str, topic: str, partitions: Sequence[int] = ()
    ) -> AsyncIterator[tuple[tuple[MessageRow, ...], int]]:
        """Messages as they come, a bounded number a second, and how many were left out. They come for long: of each
        turn the caller sees what it may see then, and the last turn is that in which it may no more.
        """
        await self._view(caller, cluster, topic)
        link = self._clusters[cluster].link
        bounds = await self._bounds(cluster, topic, tuple(partitions))

        async def turns() -> AsyncIterator[tuple[tuple[MessageRow, ...], int]]:
            async with aclosing(self._tails.follow(link, topic, list(bounds))) as followed:
                async for turn in followed:
                    current = await self._current(caller)
                    if current is None or not current.sees_topic(cluster, topic):
                        return
                    try:
                        view = await self._view(current, cluster, topic)
                    except RefusedError:
                        return
                    yield tuple(await view.rows(turn.messages, self._settings.shown_bytes)), turn.skipped

        return turns()

    @query("messages.download", Role.VIEWER, Scope.TOPIC, is_audited=True)
    async def download(
        self, caller: Caller, cluster: str, topic: str, position: BrowsePosition, limit: int
    ) -> AsyncIterator[bytes]:
        """Messages as lines of JSON."""
        view = await self._view(caller, cluster, topic)
        link = self._clusters[cluster].link
        bounds = await self._bounds(cluster, topic, position.partitions)
        starts = await self._starts(cluster, topic, bounds, position, limit)
        ranges = {index: (starts[index], bounds[index].end) for index in starts}
        timeout_s = self._settings.read_timeout_ms / 1000

        async def lines() -> AsyncIterator[bytes]:
            left = min(limit, self._settings.download_records)
            with closing(scan(link, topic, ranges, timeout_s=timeout_s)) as messages:
                while left > 0:
                    batch = await asyncio.to_thread(_taken, messages, min(left, _DOWNLOAD_BATCH))
                    if not batch:
                        return
                    left -= len(batch)
                    shown = await view.rows(batch, self._settings.page_bytes)
                    yield "".join(f"{json.dumps(asdict(row), ensure_ascii=False)}\n" for row in shown).encode(
                        "utf-8", "backslashreplace"
                    )

        return lines()

    @change("messages.produce", Role.OPERATOR, Scope.TOPIC, hidden=("message",))
    async def produce(self, caller: Caller, cluster: str, topic: str, message: NewMessage) -> Changed[SentMessage]:
        _check_not_internal(topic)
        managed = self._clusters[cluster]
        await self._bounds(cluster, topic, () if message.partition is None else (message.partition,))
        outgoing = _outgoing(topic, message)
        sent = await managed.link.run(lambda _: send(managed.link, [outgoing]))
        first_problem(sent)
        managed.poller.hasten()
        return Changed(sent[0], None, {"partition": sent[0].partition, "offset": sent[0].offset})

    @change("messages.resend", Role.OPERATOR, Scope.TOPIC)
    async def resend(
        self,
        caller: Caller,
        cluster: str,
        topic: str,
        places: Sequence[MessagePlace],
        to: str | None = None,
    ) -> Changed[tuple[SentMessage, ...]]:
        """Sends copies of messages to the same topic, or to another one; a result for each."""
        target = to or topic
        _check_not_internal(target)
        if not caller.role_on_topic(cluster, target).covers(Role.OPERATOR):
            raise RefusedError(f"sending to {target} needs the role operator there; nothing was sent")
        if len(places) > MAX_SENT:
            raise InvalidError(f"at most {MAX_SENT} messages are resent at once; nothing was sent")
        view = await self._view(caller, cluster, topic)
        managed = self._clusters[cluster]
        await self._bounds(cluster, target, ())
        found = [(await self._one(cluster, topic, place))[0] for place in places]
        if target != topic and any([bool(await view.mask(each)) for each in found]):
            raise RefusedError(
                f"parts of these messages are masked for you, and {target} may have no such rule; nothing was sent"
            )
        outgoing = [_copy(each, target) for each in found]
        sent = await managed.link.run(lambda _: send(managed.link, outgoing))
        managed.poller.hasten()
        problem = "; ".join(each.error for each in sent if each.error)
        after = [f"{each.partition}/{each.offset}" for each in sent if not each.error]
        return Changed(tuple(sent), None, {"to": target, "sent": after}, problem)

    def close(self) -> None:
        self.searches.close()

    async def _one(self, cluster: str, topic: str, place: MessagePlace) -> tuple[Received, bool]:
        """A message, and whether it comes from the lake, because brokers have deleted it."""
        managed = self._clusters[cluster]
        link = managed.link
        bounds = await self._bounds(cluster, topic, (place.partition,))
        held = bounds[place.partition]
        if place.offset < held.start and managed.lake is not None:
            wanted = {place.partition: (place.offset, place.offset + 1)}
            stored = await archived_messages(managed.lake, topic, wanted, SearchQuery(), self._lake_batch)
            found = None if stored is None else await asyncio.to_thread(stored.first)
            if found is not None:
                return found, True
        if not held.start <= place.offset < held.end:
            raise MissingError(
                f"partition {place.partition} of {topic} has offsets {held.start} to {held.end - 1}, not {place.offset}"
            )
        timeout_s = self._settings.read_timeout_ms / 1000
        return await link.run(lambda _: read_one(link, topic, place.partition, place.offset, timeout_s)), False

    async def _archive(
        self,
        cluster: str,
        topic: str,
        bounds: Mapping[int, OffsetBounds],
        begin: BrowsePosition,
        wanted: SearchQuery,
    ) -> ArchivedMessages | None:
        """What lies before the log and is looked for too."""
        lake = self._clusters[cluster].lake
        if lake is None:
            return None
        ranges = {index: (self._wanted_from(begin, held), held.start) for index, held in bounds.items()}
        before = {index: (start, end) for index, (start, end) in ranges.items() if start < end}
        return await archived_messages(lake, topic, before, wanted, self._lake_batch) if before else None

    def _wanted_from(self, begin: BrowsePosition, held: OffsetBounds) -> int:
        """The offset from which on a search looks, whether the log has it or not."""
        match begin.at:
            case "offset":
                return begin.value
            case "latest":
                return max(0, held.end - self._settings.search_records)
            case _:
                return 0

    async def _view(self, caller: Caller, cluster: str, topic: str) -> MaskedView:
        """RefusedError if the caller's role does not view messages of the topic."""
        view = await masked_view(self._clusters[cluster], self._masking, caller, topic, self._schemas)
        if (await view.mask(None)).hides_messages:
            raise RefusedError(f"your role does not view messages of {topic}; nothing was read")
        return view

    async def _bounds(self, cluster: str, topic: str, partitions: tuple[int, ...]) -> dict[int, OffsetBounds]:
        managed = self._clusters[cluster]
        link = managed.link
        # To describe a topic costs the metadata of the whole cluster: the poller knows most of them already.
        known = range(len(managed.snapshot.partitions.get(topic, ())))
        if not known or any(each not in known for each in partitions):
            described = (await link.detail(("topic", topic), lambda admin: admin.topics.describe([topic])))[topic]
            known = range(len(described.partitions))
        if unknown := [each for each in partitions if each not in known]:
            raise MissingError(f"{topic} has no partition {unknown[0]}: the last is {len(known) - 1}")
        wanted = [TopicPartition(topic, each) for each in partitions or known]
        found = (await link.run(lambda admin: admin.offsets.ranges(wanted))).all()
        return {at.partition: held for at, held in found.items()}

    async def _starts(
        self,
        cluster: str,
        topic: str,
        bounds: Mapping[int, OffsetBounds],
        position: BrowsePosition,
        limit: int,
    ) -> dict[int, int]:
        if position.continued is not None:
            return {index: bounds[index].clamp(start) for index, start in position.continued.items() if index in bounds}
        if _is_newest(position):
            return {index: held.clamp(held.end - limit) for index, held in bounds.items()}
        target = _position(position)
        link = self._clusters[cluster].link
        held = {TopicPartition(topic, index): each for index, each in bounds.items()}
        found = (await link.run(lambda admin: admin.offsets.resolve(held, target))).all()
        return {at.partition: offset for at, offset in found.items()}


async def masked_view(
    managed: ManagedCluster,
    masking: MaskingRules,
    caller: Caller,
    topic: str,
    schemas: TopicSchemas | None = None,
) -> MaskedView:
    """What a caller sees of a topic; RefusedError if it is internal and the caller no admin."""
    cluster = managed.link.name
    role = caller.role_on_topic(cluster, topic)
    if topic.startswith(_INTERNAL_PREFIX) and not role.covers(Role.ADMIN):
        raise RefusedError(f"messages of the internal topic {topic} need the role admin; nothing was read")
    settings = await managed.link.detail(("settings", topic), lambda admin: admin.topics.configs([topic]))
    entry = settings[topic].get(VIEW_OF_SETTING)
    base = entry.value if entry is not None and entry.value else None
    return MaskedView(masking, cluster, (topic,) if base is None else (topic, base), role, schemas)


class MaskedView:
    """What one caller sees of a topic: masks, and schemas to decode with. A message that comes from another topic has
    that one's masks too, and its schemas.
    """

    def __init__(
        self,
        rules: MaskingRules,
        cluster: str,
        topics: tuple[str, ...],
        role: Role,
        schemas: TopicSchemas | None = None,
    ) -> None:
        self._rules = rules
        self._schemas = schemas
        self._cluster = cluster
        self._topics = topics
        self._role = role
        self._sights: dict[str, Sight] = {}

    async def mask(self, message: Received | None) -> Mask:
        return (await self.sight(message)).mask

    async def sight(self, message: Received | None) -> Sight:
        origin = _origin(message)
        if origin not in self._sights:
            topics = [*self._topics, origin] if origin else self._topics
            mask = await self._rules.mask(self._cluster, topics, self._role)
            schemas = NO_SCHEMAS if self._schemas is None else await self._schemas.of(self._cluster, topics)
            self._sights[origin] = Sight(mask, schemas)
        return self._sights[origin]

    def known_sight(self, message: Received) -> Sight | None:
        """Without asking; None if it is not known yet."""
        return self._sights.get(_origin(message))

    async def rows(self, messages: Sequence[Received], shown_bytes: int) -> list[MessageRow]:
        """What the caller sees of each."""
        seen = [(each, await self.sight(each)) for each in messages]

        def rows() -> list[MessageRow]:
            return [message_row(each, sight.mask, shown_bytes, sight.schemas) for each, sight in seen]

        # Decoding is work for the processor, which other viewers must not wait for.
        return await asyncio.to_thread(rows) if any(sight.schemas for _, sight in seen) else rows()


def _origin(message: Received | None) -> str:
    if message is None or not message.headers:
        return ""
    found = origin_of(message.headers)
    return "" if found is None else found.topic


def _taken(messages: object, count: int) -> list[Received]:
    found: list[Received] = []
    for message in messages:  # type: ignore[attr-defined]
        found.append(message)
        if len(found) == count:
            break
    return found


def _is_newest(position: BrowsePosition) -> bool:
    return position.at == "latest" and position.continued is None


def _position(position: BrowsePosition) -> Position:
    match position.at:
        case "earliest":
            return Earliest()
        case "offset":
            return AtOffset(position.value)
        case "time":
            return AtTime(position.value)
        case _:
            raise InvalidError(f"{position.at!r} is no position: earliest, latest, offset or time")


def _check_not_internal(topic: str) -> None:
    if topic.startswith(_INTERNAL_PREFIX):
        raise InvalidError(f"{topic} is internal: only brokers write to it; nothing was sent")


def _outgoing(topic: str, message: NewMessage) -> Outgoing:
    more: list[tuple[str, bytes | None]] = []
    if message.tags:
        more.append((TAGS, ",".join(message.tags).encode()))
    if message.biz_id is not None:
        more.append((BIZ_ID, message.biz_id.encode()))
    if message.delay is not None:
        more.append((DELAY, message.delay.encode()))
    return Outgoing(topic, message.value, message.key, (*message.headers, *more), message.partition)


def _copy(message: Received, topic: str) -> Outgoing:
    """Without the headers that would delay or cancel it once more."""
    headers: Headers = without(message.headers, TIMING)
    partition = message.partition if topic == message.topic and message.key is None else None
    return Outgoing(topic, message.value, message.key, headers, partition)


def spell_positions(positions: Mapping[int, int]) -> str:
    return ",".join(f"{index}:{offset}" for index, offset in sorted(positions.items()))


def parse_positions(text: str) -> dict[int, int]:
    """InvalidError if it does not continue a list."""
    pairs = [item.partition(":") for item in text.split(",")]
    if not all(
        number.isascii() and number.isdigit() and len(number) < 19 for one, _, two in pairs for number in (one, two)
    ):
        raise InvalidError(f"{text[:50]!r} does not continue a list of messages")
    return {int(index): int(offset) for index, _, offset in pairs}
