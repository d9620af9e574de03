"""Lists delayed messages that wait in a partition, for clients that do not deliver them: from its companion, read as it
is, and from what the leader has not taken in yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.brokerless.sql.link import Link
from penstock.clock import SystemClock
from penstock.cluster.metadata import TopicImage
from penstock.config.broker import Limits, LogSettings
from penstock.delay.contents import hash_of
from penstock.delay.delay_headers import DelayHeaderError, DelayRules, parse_delay_headers
from penstock.delay.due_index import DueIndex
from penstock.delay.listing import ByDueTime, ById, Listing
from penstock.delay.timer_pages import first_number
from penstock.delay.timers import Saving, Timers
from penstock.ids import TopicPartition, companion_of
from penstock.records.batch import MAX_SEQUENCE, read_header
from penstock.records.records import headers_of, records_block, walk
from penstock.sdk.headers import CANCEL, TIMER_ID, text_of
from penstock.sdk.timers import TimerQuery, WaitingMessage
from penstock.sql.database import Connection
from penstock.storage.sql import inbox_table
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.inbox_table import INBOX_PRODUCER_ID, InboxBatch
from penstock.storage.sql.stored_state import queue_id_of

_PAGE_BYTES = 1 << 20
_HALF = 1 << 30


async def waiting_in(link: Link, at: TopicPartition, topic: TopicImage, query: TimerQuery) -> list[WaitingMessage]:
    """What waits in a partition and matches a query, by due time; at most as many as the query says."""
    database = topic.partitions[at.partition].database
    queue_id = queue_id_of(at, topic.id)
    # The inbox first: what is taken from it meanwhile is found in the companion, and known by its number, for the log
    # and its companion are read as they are at one moment.
    inbox = await link.groups[database].read(lambda connection: _inbox(connection, queue_id))
    engine = SqlEngine(link.groups, LogSettings(), Limits(), SystemClock(), link.image.cluster_id)
    try:
        log = await engine.open_read_only(at, topic.id, link.config(topic), database)
        companion = engine.logs.get(companion_of(at))
        found: list[WaitingMessage] = []
        if companion is not None:
            timers = Timers(log, companion, DueIndex(None), Saving())
            await timers.start()
            while await timers.take_in(companion.end_offset):
                pass
            found = await _listed(Listing(timers), at, query)
        entry = log.producers.entry(INBOX_PRODUCER_ID)
        taken = entry.batches[-1].last_sequence if entry is not None and entry.batches else None
    finally:
        await engine.close()
    config = link.config(topic)
    rules = DelayRules(config.delay_max_ms, config.delay_levels)
    found = _with_inbox(found, [each for each in inbox if not _is_taken(each, taken)], at, rules)
    matching = [each for each in found if _matches(each, query)]
    return sorted(matching, key=lambda each: each.due_ms)[: query.limit]


def _inbox(connection: Connection, queue_id: int) -> list[InboxBatch]:
    return inbox_table.read_of(connection, [queue_id]) if inbox_table.exists(connection) else []


def _is_taken(each: InboxBatch, last_sequence: int | None) -> bool:
    return last_sequence is not None and (last_sequence - each.base_sequence) & MAX_SEQUENCE < _HALF


async def _listed(listing: Listing, at: TopicPartition, query: TimerQuery) -> list[WaitingMessage]:
    if query.timer_id is not None:
        named = ById(listing, int.from_bytes(hash_of(query.timer_id.encode()), "big"), 0)
        await named.advance(_PAGE_BYTES)
        return list(_messages(named.parts, at))
    found: list[WaitingMessage] = []
    position = first_number(query.from_ms)
    while True:
        page = ByDueTime(listing, position, 0)
        await page.advance(_PAGE_BYTES)
        found += _messages(page.parts, at)
        is_past = query.until_ms is not None and found and found[-1].due_ms >= query.until_ms
        if page.position <= position or is_past or sum(_matches(each, query) for each in found) >= query.limit:
            return found
        position = page.position


def _messages(batches: Iterable[bytes], at: TopicPartition) -> Iterable[WaitingMessage]:
    for batch in batches:
        header = read_header(batch)
        block = records_block(memoryview(batch), header)
        for record in walk(block, header.record_count):
            yield WaitingMessage(
                at.topic,
                at.partition,
                header.base_timestamp + record.timestamp_delta,
                None if record.value is None else bytes(record.value),
                None if record.key is None else bytes(record.key),
                headers_of(block, record),
            )


def _with_inbox(
    found: Sequence[WaitingMessage], inbox: Sequence[InboxBatch], at: TopicPartition, rules: DelayRules
) -> list[WaitingMessage]:
    """As it will be when the leader has taken everything in: names replace and cancel each other."""
    result = list(found)
    now_ms = SystemClock().now_ms()
    for message in _messages((each.batch for each in inbox), at):
        try:
            request = parse_delay_headers(((name.encode(), value) for name, value in message.headers), now_ms, rules)
        except DelayHeaderError:
            continue
        name = text_of(message.headers, TIMER_ID) or text_of(message.headers, CANCEL)
        if name is not None:
            result = [each for each in result if each.timer_id != name]
        if request is not None and request.cancels is None:
            result.append(
                WaitingMessage(at.topic, at.partition, request.due_ms, message.value, message.key, message.headers)
            )
    return result


def _matches(message: WaitingMessage, query: TimerQuery) -> bool:
    if query.timer_id is not None:
        return message.timer_id == query.timer_id
    return query.from_ms <= message.due_ms and (query.until_ms is None or message.due_ms < query.until_ms)
