"""Messages in flight: the partition they come from, each attempt to deliver them, and which offset can be committed."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from penstock.ids import TopicPartition
from penstock.sdk.message import HandlerResult, Message, MessageTransaction, Reply
from penstock.sdk.payloads.codecs import JSON_ONLY, Codecs
from penstock.sdk.ports import Received
from penstock.sdk.receive.disposition import Disposition, Retry


class AssignedPartition:
    """One partition while it is assigned to this member."""

    __slots__ = ("entries", "offsets", "topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.offsets = OffsetTracker()
        self.entries: set[InFlightMessage] = set()
        """Messages in flight."""

    @property
    def is_busy(self) -> bool:
        """Whether a handler, or the settlement after it, works on one of the messages."""
        return any(entry.is_with_handler for entry in self.entries)


class InFlightMessage:
    """One message from its arrival until it is settled or its partition is lost."""

    __slots__ = (
        "_token",
        "has_returned",
        "is_disposed",
        "is_with_handler",
        "local_retry",
        "offset",
        "order_key",
        "partition",
        "received",
    )

    def __init__(self, received: Received, partition: AssignedPartition, order_key: Hashable) -> None:
        self.received = received
        """As the next attempt delivers it: a retry in the process changes its headers."""
        self.offset = received.offset
        self.partition = partition
        self.order_key = order_key
        self._token: str | None = None
        self.is_with_handler = False
        """A handler has it, and it is not queued for a retry."""
        self.has_returned = False
        """Its handler has returned."""
        self.is_disposed = False
        """The result of its handler has been carried out."""
        self.local_retry: Retry | None = None
        """The retry in this process that is due (`ordered`)."""

    @property
    def token(self) -> str:
        """The token of its dedup claim, which one thread asks for first."""
        if self._token is None:
            self._token = uuid.uuid4().hex
        return self._token


class AttemptListener(Protocol):
    """Receives what a handler decides about a message."""

    def settle_attempt(self, attempt: DeliveryAttempt, result: HandlerResult) -> None: ...

    def extend(self, attempt: DeliveryAttempt, by_ms: int) -> None: ...


class DeliveryAttempt:
    """One delivery of a message to a handler. A retry is another attempt, so late verbs of an earlier one are
    recognised.
    """

    __slots__ = ("_listener", "began_ms", "deadline_ms", "entry", "has_claim", "is_settled", "message", "transaction")

    def __init__(
        self,
        entry: InFlightMessage,
        listener: AttemptListener,
        reply: Reply | None,
        transaction: MessageTransaction | None,
        codecs: Codecs = JSON_ONLY,
    ) -> None:
        self.entry = entry
        self._listener = listener
        self.transaction = transaction
        self.message = Message(entry.received, self, reply, transaction, codecs)
        self.is_settled = False
        self.has_claim = False
        self.began_ms = 0.0
        self.deadline_ms: float | None = None
        """None until the handler is called."""

    def settle(self, result: HandlerResult) -> None:
        self._listener.settle_attempt(self, result)

    def extend(self, by_ms: int) -> None:
        self._listener.extend(self, by_ms)


class Cancellable(Protocol):
    """A handler call that can be cancelled."""

    def cancel(self) -> object: ...


@dataclass(eq=False, slots=True)
class HandlerCall:
    """One call of a handler, with one message or a batch."""

    attempts: list[DeliveryAttempt]
    task: Cancellable | None = field(default=None)
    """None where nothing can cancel it, as in a thread."""


class Settlement(Protocol):
    """How messages are settled: one by one, committed before the handler runs, or in transactions."""

    is_transactional: bool
    outlives_assignment: bool
    """Whether handlers still run for messages whose partition another member owns by now."""

    @property
    def needs_polling(self) -> bool:
        """Whether it waits for an answer that arrives inside `GroupConsumer.poll`."""
        ...

    def arrived(self, entries: Sequence[InFlightMessage]) -> None:
        """Enqueue these messages, now or later. Called without the lock."""

    def settle(self, attempt: DeliveryAttempt, result: HandlerResult, disposition: Disposition) -> None:
        """Settle the message. Called without the lock."""

    def complete(self, attempts: Sequence[DeliveryAttempt]) -> None:
        """Settle messages that were acknowledged together, unless it is transactional. Called without the lock."""

    def forget(self, partitions: Set[AssignedPartition], are_lost: bool) -> None:
        """Deliver nothing more of these partitions; if they are lost, settle nothing either. Called with the
        dispatcher's lock.
        """


MAX_SETTLED_AHEAD = 10_000
"""Messages of a partition that may be settled behind one that is not. They would be delivered again after a crash, so
the partition pauses at this number."""


class OffsetTracker:
    """Which offsets of an assigned partition were delivered and settled, and so which offset can be committed.

    Pure. Offsets are added in order, with gaps for records that are never delivered (compacted, aborted, delayed and
    control records, records that a view omits). They are settled in any order. The committable offset is the one before
    which everything is settled. A partition that is assigned again gets a new tracker.
    """

    def __init__(self) -> None:
        self.is_assigned = True
        """False once the partition was given away: results no longer count."""
        self._open: deque[int] = deque()
        """Delivered offsets in order, from the first that is not settled."""
        self._settled: set[int] = set()
        """Members of `_open` that are settled."""
        self._next_offset: int | None = None
        """Behind the last offset that was delivered or skipped."""
        self._reported: int | None = None
        """What `newly_committable` returned last."""

    @property
    def in_flight(self) -> int:
        """Delivered and not settled."""
        return len(self._open) - len(self._settled)

    @property
    def is_far_ahead(self) -> bool:
        return len(self._settled) >= MAX_SETTLED_AHEAD

    def accepts(self, offset: int) -> bool:
        """False if the consumer went back, as after a reset of the group or a truncation of the log."""
        return self._next_offset is None or offset >= self._next_offset

    def add(self, offset: int) -> None:
        assert self.accepts(offset), "offsets are handed out in order"
        self._open.append(offset)
        self._next_offset = offset + 1

    def settle(self, offset: int) -> None:
        """Call it once for each offset."""
        self._settled.add(offset)
        while self._open and self._open[0] in self._settled:
            self._settled.discard(self._open.popleft())

    def skip_to(self, position: int) -> None:
        """The consumer is at this position: nothing before it is left to deliver."""
        if self._next_offset is None or position > self._next_offset:
            self._next_offset = position

    @property
    def committable(self) -> int | None:
        """Everything before this offset is settled; None if nothing is known of the partition yet."""
        return self._open[0] if self._open else self._next_offset

    def newly_committable(self) -> int | None:
        """The committable offset, if it differs from the last one returned."""
        position = self.committable
        if position is None or position == self._reported:
            return None
        self._reported = position
        return position
