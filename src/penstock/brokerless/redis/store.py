"""A queue in Redis. `docs/internals/brokerless.md` has its rules."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence

from penstock.brokerless.batch_admission import delay_requests
from penstock.brokerless.delay_request import headers_when_delivered, next_due_ms
from penstock.brokerless.redis import scripts
from penstock.brokerless.redis.message_fields import fields_of, message_of, received
from penstock.brokerless.redis.server import RedisServer, Value, texts
from penstock.brokerless.redis.topics import DEFAULT_RETENTION_MESSAGES, RETENTION_MESSAGES, RedisTopics
from penstock.brokerless.store import (
    Claim,
    Granted,
    GroupClaims,
    GroupMember,
    GroupOffsets,
    IdFence,
    ReadPage,
    SendBatch,
    StoreRefusedError,
)
from penstock.brokerless.topic_entries import DEFAULT_PARTITIONS, TopicEntry
from penstock.delay.delay_headers import DelayRequest
from penstock.ids import TopicPartition
from penstock.sdk.errors import ClosedError, TopicError
from penstock.sdk.headers import TIMING
from penstock.sdk.ports import Outgoing
from penstock.sdk.timers import TimerQuery, WaitingMessage

MAX_DELAYED = 1_000_000
"""How many delayed messages are kept."""
_BLOCK_MS = 1_000
"""A call that waits must be answered before it times out."""
_DUE = 200


class RedisStore:
    """A `QueueStore` in Redis."""

    incarnation = ""

    def __init__(
        self, server: RedisServer, *, partitions: int = DEFAULT_PARTITIONS, max_delayed: int = MAX_DELAYED
    ) -> None:
        self._server = server
        self._max_delayed = max_delayed
        self.topics = RedisTopics(server, partitions)
        self._closing = threading.Event()
        self.timers_changed = threading.Event()
        """Set when this client added a delayed message."""

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def server(self) -> RedisServer:
        return self._server

    def settings(self, topic: str) -> Mapping[str, str]:
        return self._entry(topic).settings

    # Messages

    def append(self, batch: SendBatch) -> Sequence[int | None]:
        return self.commit_transaction([batch], None, None)[0]

    def is_writable(self, topic_partition: TopicPartition) -> bool:
        return True

    def read(self, topic_partition: TopicPartition, offset: int, max_count: int) -> ReadPage:
        self._check_partition(topic_partition)
        rows = self._server.command("XRANGE", self._log(topic_partition), f"{offset + 1}-0", "+", "COUNT", max_count)
        messages = [received(topic_partition, entry_id, _fields(entry)) for entry_id, entry in rows]
        return ReadPage(messages, messages[-1].offset + 1 if messages else offset)

    def bounds(self, topic_partition: TopicPartition) -> tuple[int, int]:
        self._check_partition(topic_partition)
        first, end = self._server.call(scripts.BOUNDS, *topic_partition)
        return int(first), int(end)

    def wait(self, positions: Mapping[TopicPartition, int], timeout_s: float) -> None:
        left_ms = int(timeout_s * 1000)
        if not positions:
            self._closing.wait(timeout_s)
            return
        ids = {self._log(tp): f"{offset}-1" for tp, offset in positions.items()}
        while left_ms > 0 and not self._closing.is_set():
            block_ms = min(left_ms, _BLOCK_MS)
            if self._server.read_streams(ids, block_ms):
                return
            left_ms -= block_ms

    def read_timers(self, query: TimerQuery) -> list[WaitingMessage]:
        entry = self._entry(query.topic)
        rows = self._server.call(
            scripts.LIST,
            query.topic,
            "" if query.partition is None else query.partition,
            query.timer_id or "",
            entry.partitions,
            query.from_ms,
            "" if query.until_ms is None else query.until_ms,
            query.limit,
        )
        found = []
        for partition, due, has, value, key, headers in rows:
            message = message_of(has.decode(), value, key, headers)
            found.append(
                WaitingMessage(
                    query.topic, int(partition), int(float(due)), message.value, message.key, message.headers
                )
            )
        return sorted(found, key=lambda each: each.due_ms)[: query.limit]

    # Groups

    def heartbeat(self, group: str, member: GroupMember, session_ms: int) -> GroupClaims:
        self._check_open()
        topics = json.dumps(sorted(member.topics))
        members, claims = self._server.call(scripts.HEARTBEAT, group, member.name, topics, session_ms)
        found: dict[TopicPartition, Claim] = {}
        for field, value in _pairs(claims):
            epoch, _, owner = value.partition(":")
            topic, _, partition = field.rpartition(":")
            if owner:
                found[TopicPartition(topic, int(partition))] = Claim(owner, int(epoch))
        return GroupClaims(
            [GroupMember(name, frozenset(json.loads(value.split(":", 2)[2]))) for name, value in _pairs(members)], found
        )

    def claim(self, group: str, member: str, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, Granted]:
        self._check_open()
        rows = self._server.call(scripts.CLAIM, group, member, len(wanted), *_flat(wanted))
        granted = {}
        for topic, partition, epoch, committed in map(texts, rows):
            granted[TopicPartition(topic, int(partition))] = Granted(int(epoch), int(committed) if committed else None)
        return granted

    def release(self, group: str, member: str, epochs: Mapping[TopicPartition, int]) -> None:
        args = [value for tp, epoch in epochs.items() for value in (*tp, epoch)]
        self._server.call(scripts.RELEASE, group, member, len(epochs), *args)

    def leave(self, group: str, member: str) -> None:
        self._server.call(scripts.LEAVE, group, member)

    def committed(self, group: str, asked: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        rows = self._server.call(scripts.COMMITTED, group, len(asked), *_flat(asked))
        return {tp: int(row) for tp, row in zip(asked, rows, strict=True) if row}

    def commit(self, offsets: GroupOffsets) -> None:
        self.commit_transaction([], offsets, None)

    def commit_initial(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        args = [value for tp, position in positions.items() for value in (*tp, position)]
        self._server.call(scripts.COMMIT_INITIAL, group, len(positions), *args)

    # Transactions

    def fence(self, transactional_id: str) -> IdFence:
        epoch = self._server.command("HINCRBY", self._server.key("fences"), transactional_id, 1)
        return IdFence(transactional_id, int(epoch))

    def commit_transaction(
        self, batches: Sequence[SendBatch], offsets: GroupOffsets | None, fence: IdFence | None
    ) -> Sequence[Sequence[int | None]]:
        self._check_open()
        now_ms = self._now_ms(batches)
        args: list[Value] = ["", ""] if fence is None else [fence.transactional_id, fence.epoch]
        args += _offset_args(offsets)
        batch_args: list[Value] = []
        delayed = 0
        for number, batch in enumerate(batches):
            delayed += self._add_batch(batch_args, number, batch, now_ms)
        args += [self._max_delayed, delayed, len(batches), *batch_args]
        rows = self._server.call(scripts.COMMIT, *args)
        if delayed:
            self.timers_changed.set()
        return [_offsets(row) for row in rows]

    def close(self) -> None:
        self._closing.set()
        self.timers_changed.set()
        self._server.close()

    # What `RedisMaintenance` does in the background.

    def deliver(self) -> int:
        """Deliver what is due, each message once even if several processes try. Returns for how many milliseconds
        nothing else is due; 0 if something was due, -1 if no message waits.
        """
        now, following, rows = self._server.call(scripts.DUE, _DUE)
        now_ms = int(now)
        if not rows:
            return max(1, int(float(following)) - now_ms) if following else -1
        args: list[Value] = []
        for topic, number, due, partition, has, value, key, headers in rows:
            message = message_of(has.decode(), value, key, headers)
            due_ms = int(float(due))
            comes_again_ms = next_due_ms(message.headers, due_ms, now_ms)
            shown = fields_of(message.value, message.key, headers_when_delivered(message.headers, due_ms))
            most = self._most_messages(topic.decode())
            args += (topic, number, due_ms, "" if comes_again_ms is None else comes_again_ms, partition, most, *shown)
        self._server.call(scripts.DELIVER, len(rows), *args)
        return 0

    def trim_acknowledged(self) -> None:
        """Remove what all groups have committed."""
        topics = self.topics.all()
        for topic, entry in topics.items():
            if entry.view_of is None:
                views = [name for name, other in topics.items() if other.view_of == topic]
                for partition in range(entry.partitions):
                    self._server.call(scripts.TRIM_ACKNOWLEDGED, partition, 1 + len(views), topic, *views)

    # Internals

    def _add_batch(self, args: list[Value], number: int, batch: SendBatch, now_ms: int) -> int:
        """Add the arguments of a batch; how many of its messages are delayed."""
        tp = batch.topic_partition
        self._check_open()
        requests = delay_requests(number, batch, self._entry(tp.topic), now_ms)
        args += (*tp, batch.sequence.producer_id, batch.sequence.first, self._most_messages(tp.topic))
        args.append(len(batch.messages))
        for message, request in zip(batch.messages, requests, strict=True):
            args += _message_args(message, request)
        return sum(request is not None and request.cancels is None for request in requests)

    def _now_ms(self, batches: Sequence[SendBatch]) -> int:
        """The time of the server, if a message needs it."""
        if not any(name in TIMING for batch in batches for message in batch.messages for name, _ in message.headers):
            return 0
        seconds, micros = self._server.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def _most_messages(self, topic: str) -> int:
        return self._entry(topic).number(RETENTION_MESSAGES, DEFAULT_RETENTION_MESSAGES)

    def _log(self, tp: TopicPartition) -> str:
        return self._server.key(f"log:{tp.topic}:{tp.partition}")

    def _check_partition(self, tp: TopicPartition) -> TopicEntry:
        self._check_open()
        entry = self._entry(tp.topic)
        if tp.partition >= entry.partitions:
            raise StoreRefusedError(f"topic {tp.topic} has no partition {tp.partition}: it has {entry.partitions}")
        return entry

    def _entry(self, topic: str) -> TopicEntry:
        entry = self.topics.entry(topic)
        if entry is None:
            raise TopicError(f"topic {topic} does not exist")
        return entry

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise ClosedError(f"{self.address} is closed")


def _message_args(message: Outgoing, request: DelayRequest | None) -> tuple[Value, ...]:
    has, value, key, headers = fields_of(message.value, message.key, message.headers)
    if request is None:
        time = "" if message.timestamp_ms is None else message.timestamp_ms
        return "now", has, time, "", value, key, headers
    if request.cancels is not None:
        return "cancel", "", "", request.cancels, b"", b"", b""
    if request.timer_id is not None:
        return "named", has, request.due_ms, request.timer_id, value, key, headers
    return "later", has, request.due_ms, "", value, key, headers


def _offset_args(offsets: GroupOffsets | None) -> list[Value]:
    if offsets is None:
        return ["", "", 0]
    args: list[Value] = [offsets.group, offsets.member, len(offsets.positions)]
    for tp, position in offsets.positions.items():
        args += (*tp, position, offsets.epochs.get(tp, -1))
    return args


def _offsets(row: bytes) -> list[int | None]:
    return [None if each == "-" else int(each) for each in row.decode().split(",")] if row else []


def _flat(tps: Sequence[TopicPartition]) -> list[Value]:
    return [value for tp in tps for value in tp]


def _pairs(rows: Sequence[bytes]) -> list[tuple[str, str]]:
    flat = texts(rows)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _fields(entry: Mapping[bytes, bytes] | Sequence[bytes]) -> Mapping[bytes, bytes]:
    if isinstance(entry, Mapping):
        return entry
    return dict(zip(entry[::2], entry[1::2], strict=True))
