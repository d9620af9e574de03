"""What a log remembers of each producer: its epoch, its last five batches, and the transaction it has open.

A producer numbers the records it sends to a partition. The next batch must start one above the last; one that was seen
before is a repeat and is answered with the offset it got the first time. Five batches are kept because clients have up
to five in flight.

Nothing from before the producer's last marker is a repeat. Producers of the protocol before KIP-890 keep their epoch
and go on counting behind the marker; one that believes that its last batches did not arrive uses their numbers again in
its next transaction. Success would lose these records: they are refused as out of order, and the producer aborts and
takes its next epoch. A late copy of a batch from before the marker is refused in the same way.

A transaction is open in a log from its first batch there to the marker that ends it. A batch that would open one is
taken only if its caller knows from the coordinator that the transaction is going on. No marker may have come between
that answer and the append: the caller shows the `guard` it took before it asked (KIP-890).

State is changed by `remember` and `remember_marker` alone, at append and at replay alike. The bytes of a snapshot are
in `snapshots`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import ApiError, Code
from penstock.records.batch import MAX_SEQUENCE, BatchHeader
from penstock.records.control import Marker, read_marker
from penstock.storage.aborted import AbortedEntry, AbortedIndex

BATCHES_KEPT = 5
ANY_SEQUENCE = -1
NOT_OPEN = -1


class ProducedBatch(NamedTuple):
    """One batch that a producer got in."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp_ms: int
    """The batch's largest timestamp: where the log stamps the time of the append, that time."""


class ProducerEntry:
    """One producer as a log knows it."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "first_sequence",
        "last_seen_ms",
        "marker_offset",
        "open_since",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.first_sequence = ANY_SEQUENCE
        """Where the numbers seen in this epoch and since the last marker began, and from there on they have no gap; as
        long as there are none, where they have to begin.
        """
        self.last_seen_ms = -1
        self.coordinator_epoch = -1
        """The epoch of the coordinator that wrote the last marker; -1 before the first."""
        self.marker_offset = -1
        self.open_since = NOT_OPEN
        """The offset at which the open transaction begins."""
        self.batches: deque[ProducedBatch] = deque(maxlen=BATCHES_KEPT)

    @property
    def last_since_marker(self) -> ProducedBatch | None:
        """The last batch, unless a marker came after it."""
        last = self.batches[-1] if self.batches else None
        return last if last is not None and last.base_offset > self.marker_offset else None

    def heed_marker(self) -> None:
        """Takes only those sequences for seen that are certain to have come after the last marker."""
        since = [batch for batch in self.batches if batch.base_offset > self.marker_offset]
        if since and self.marker_offset >= 0:
            self.first_sequence = since[0].first_sequence

    def copy(self) -> ProducerEntry:
        """The entry as it is now."""
        made = ProducerEntry(self.epoch)
        made.first_sequence = self.first_sequence
        made.last_seen_ms = self.last_seen_ms
        made.coordinator_epoch = self.coordinator_epoch
        made.marker_offset = self.marker_offset
        made.open_since = self.open_since
        made.batches = self.batches.copy()
        return made

    def begin_epoch(self, epoch: int, first_sequence: int) -> None:
        self.epoch = epoch
        self.first_sequence = first_sequence
        self.batches.clear()


class ProducerDescription(NamedTuple):
    """A producer as DescribeProducers shows it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class ProducerState:
    """All producers of one log, least recently seen first, with its open and its aborted transactions."""

    def __init__(self, max_producers: int) -> None:
        self.max_producers = max_producers
        self._entries: dict[int, ProducerEntry] = {}
        self._open: dict[int, int] = {}
        """Where the open transaction of each producer begins, ascending: a transaction begins at the end of the log."""
        self._ended: deque[tuple[int, int]] = deque()
        """(first offset, offset of the marker) of transactions whose marker readers may not see yet."""
        self._forgotten_marker = -1
        """The last marker of any producer that was forgotten: the guard of those that are not known."""
        self.aborted = AbortedIndex()

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> Iterator[tuple[int, ProducerEntry]]:
        return iter(self._entries.items())

    def entry(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def check(self, header: BatchHeader, guard: int | None = None, *, sequenced: bool = True) -> ProducedBatch | None:
        """None if the batch may be appended, its first copy if it is a repeat, ApiError if it may not."""
        entry = self._entries.get(header.producer_id)
        if entry is not None and header.producer_epoch < entry.epoch:
            raise _fenced(header.producer_id, header.producer_epoch, entry.epoch)
        if sequenced and entry is not None and header.producer_epoch == entry.epoch:
            repeat = _find_repeat(entry, header)
            if repeat is not None:
                return repeat
        self._check_transaction(entry, header, guard)
        if sequenced:
            _check_sequence(entry, header)
        return None

    def look_back(self, header: BatchHeader) -> ProducedBatch | bool:
        """For a log that takes nothing new: the first copy if the batch is a repeat, else whether it is what would
        have come next here, as far as is known.
        """
        entry = self._entries.get(header.producer_id)
        if entry is not None and header.producer_epoch < entry.epoch:
            raise _fenced(header.producer_id, header.producer_epoch, entry.epoch)
        if entry is not None and header.producer_epoch == entry.epoch:
            repeat = _find_repeat(entry, header)
            if repeat is not None:
                return repeat
        try:
            _check_sequence(entry, header)
        except ApiError as error:
            if error.code is not Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise
            return False
        return True

    def introduce(self, producer_id: int, epoch: int, sequence: int) -> None:
        """A producer goes on here with this sequence, unless more is known of it: what came before is in another log.

        Said again before every batch until one is in the log, so nothing is lost if this is.
        """
        entry = self._entries.get(producer_id) or self._take(producer_id, epoch)
        if entry.epoch == epoch and not entry.batches and entry.first_sequence == ANY_SEQUENCE:
            entry.first_sequence = sequence

    def knows(self, producer_id: int) -> bool:
        """Whether the sequence is known with which a batch of this producer has to begin."""
        entry = self._entries.get(producer_id)
        return entry is not None and bool(entry.batches or entry.first_sequence != ANY_SEQUENCE)

    def check_marker(self, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> None:
        """ApiError if the marker is that of a producer or a coordinator whose time is over."""
        entry = self._entries.get(producer_id)
        if entry is None:
            return
        if producer_epoch < entry.epoch:
            raise _fenced(producer_id, producer_epoch, entry.epoch)
        if coordinator_epoch < entry.coordinator_epoch:
            raise ApiError(
                Code.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {coordinator_epoch} is over, the log has seen {entry.coordinator_epoch}",
            )

    def guard(self, producer_id: int) -> int:
        """A number that changes with every marker of the producer."""
        entry = self._entries.get(producer_id)
        return self._forgotten_marker if entry is None else entry.marker_offset

    def has_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether this producer, in this epoch, has a transaction open here."""
        entry = self._entries.get(producer_id)
        return entry is not None and entry.epoch == producer_epoch and entry.open_since != NOT_OPEN

    def is_open(self, producer_id: int) -> bool:
        """Whether this producer, in whatever epoch, has a transaction open here."""
        return producer_id in self._open

    def first_unstable(self, visible_end: int) -> int | None:
        """Where the oldest transaction begins of which a reader of what lies below `visible_end` cannot know the end.

        `visible_end` never goes back.
        """
        if not self._open and not self._ended:
            return None
        self.settle(visible_end)
        first = next(iter(self._open.values()), None)
        hidden = min((ended[0] for ended in self._ended), default=None)
        return hidden if first is None or (hidden is not None and hidden < first) else first

    def settle(self, visible_end: int) -> None:
        """Readers may see markers below `visible_end` from now on."""
        while self._ended and self._ended[0][1] < visible_end:
            self._ended.popleft()

    def replay(self, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
        """Takes a batch into account that lies in the log already."""
        if not header.is_control:
            self.remember(header, header.base_offset, now_ms)
        elif (marker := read_marker(batch, header)) is not None:
            self.remember_marker(header.producer_id, header.producer_epoch, marker, header.base_offset, now_ms)

    def remember(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Takes an appended or replayed batch of records into account."""
        producer_id = header.producer_id
        entry = self._take(producer_id, header.producer_epoch)
        if entry.epoch != header.producer_epoch:
            # A transaction of the epoch before has ended, even if damage has taken its marker.
            entry.begin_epoch(header.producer_epoch, ANY_SEQUENCE)
            self._close(producer_id, entry)
        if header.base_sequence >= 0:
            if entry.last_since_marker is None:
                entry.first_sequence = header.base_sequence
            entry.batches.append(
                ProducedBatch(header.base_sequence, header.last_sequence, base_offset, header.max_timestamp)
            )
        if header.is_transactional and entry.open_since == NOT_OPEN:
            entry.open_since = self._open[producer_id] = base_offset
        entry.last_seen_ms = now_ms

    def remember_marker(self, producer_id: int, producer_epoch: int, marker: Marker, offset: int, now_ms: int) -> None:
        """Takes an appended or replayed marker into account: it ends what is open and fences what is older."""
        entry = self._take(producer_id, producer_epoch)
        if entry.epoch != producer_epoch:
            entry.begin_epoch(producer_epoch, 0)
        elif entry.batches:
            entry.first_sequence = _next_sequence(entry)
        first_offset = self._close(producer_id, entry)
        if first_offset != NOT_OPEN:
            self._ended.append((first_offset, offset))
            if not marker.committed:
                stable_offset = next(iter(self._open.values()), offset + 1)
                self.aborted.add(AbortedEntry(producer_id, first_offset, offset, stable_offset))
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.marker_offset = offset
        entry.last_seen_ms = now_ms

    def expire(self, before_ms: int) -> None:
        """Forgets producers that have sent nothing since `before_ms` and have nothing open.

        The broker's clock counts: the timestamps in a producer's records say nothing about when it was here.
        """
        for producer_id in [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.last_seen_ms < before_ms and entry.open_since == NOT_OPEN
        ]:
            self._forget(producer_id)

    def last_offsets(self) -> set[int]:
        """Base offsets of the last batch and the last marker of each producer: what a replay cannot do without."""
        offsets = {entry.batches[-1].base_offset for entry in self._entries.values() if entry.batches}
        offsets.update(entry.marker_offset for entry in self._entries.values())
        return offsets

    def describe(self) -> tuple[ProducerDescription, ...]:
        return tuple(
            ProducerDescription(
                producer_id,
                entry.epoch,
                entry.batches[-1].last_sequence if entry.batches else -1,
                entry.batches[-1].timestamp_ms if entry.batches else entry.last_seen_ms,
                entry.coordinator_epoch,
                entry.open_since,
            )
            for producer_id, entry in self._entries.items()
        )

    def restore(self, entries: dict[int, ProducerEntry]) -> None:
        """Replaces producers and open transactions by those of a snapshot."""
        self._entries = entries
        opened = [(entry.open_since, producer) for producer, entry in entries.items() if entry.open_since != NOT_OPEN]
        self._open = {producer: first_offset for first_offset, producer in sorted(opened)}
        self._ended.clear()

    def forget_before_gap(self) -> None:
        """What followed on the state of now is not in the log any more: of each producer only its epochs still count.

        A transaction that was open has ended there, or goes on with the next of its batches that the log has.
        """
        for entry in self._entries.values():
            entry.begin_epoch(entry.epoch, ANY_SEQUENCE)
            entry.open_since = NOT_OPEN
        self._open.clear()

    def go_back(self, earlier: ProducerState, end_offset: int) -> None:
        """Becomes what it was when the log ended at `end_offset`, all of it visible; `earlier` is made from there."""
        self._entries = earlier._entries
        self._open = earlier._open
        self._ended.clear()
        self._forgotten_marker = earlier._forgotten_marker
        self.aborted.cut(end_offset)

    def _take(self, producer_id: int, epoch: int) -> ProducerEntry:
        """The producer's entry, now the most recently seen; a new one has the epoch given."""
        entry = self._entries.pop(producer_id, None)
        if entry is None:
            if len(self._entries) >= self.max_producers:
                self._make_room()
            entry = ProducerEntry(epoch)
            entry.marker_offset = self._forgotten_marker
        self._entries[producer_id] = entry
        return entry

    def _make_room(self) -> None:
        """The producer that was silent longest goes; one with an open transaction stays, whatever the bound."""
        for producer_id, entry in self._entries.items():
            if entry.open_since == NOT_OPEN:
                self._forget(producer_id)
                return

    def _forget(self, producer_id: int) -> None:
        entry = self._entries.pop(producer_id)
        self._forgotten_marker = max(self._forgotten_marker, entry.marker_offset)

    def _close(self, producer_id: int, entry: ProducerEntry) -> int:
        """Gives where the transaction began that was open until now."""
        entry.open_since = NOT_OPEN
        return self._open.pop(producer_id, NOT_OPEN)

    def _check_transaction(self, entry: ProducerEntry | None, header: BatchHeader, guard: int | None) -> None:
        is_open = entry is not None and entry.open_since != NOT_OPEN
        if is_open and (entry is None or header.producer_epoch != entry.epoch):
            reason = "has a transaction of an earlier epoch open here"
        elif is_open and not header.is_transactional:
            reason = "has a transaction open here and sent a batch that is not part of it"
        elif header.is_transactional and not is_open and guard != self.guard(header.producer_id):
            reason = "sent a transactional batch, but its transaction is not open"
        else:
            return
        raise ApiError(Code.INVALID_TXN_STATE, f"producer {header.producer_id} {reason}")


def _find_repeat(entry: ProducerEntry, header: BatchHeader) -> ProducedBatch | None:
    if not entry.batches or header.base_sequence == _next_sequence(entry):
        return None
    last_sequence, marker_offset = header.last_sequence, entry.marker_offset
    for batch in entry.batches:
        if (
            batch.first_sequence == header.base_sequence
            and batch.last_sequence == last_sequence
            and batch.base_offset > marker_offset
        ):
            return batch
    return None


def _check_sequence(entry: ProducerEntry | None, header: BatchHeader) -> None:
    if entry is not None and header.producer_epoch != entry.epoch:
        expected = 0
    elif entry is None or (not entry.batches and entry.first_sequence == ANY_SEQUENCE):
        # Nothing is known: a new producer, or one whose records have all expired. Any sequence may begin, except in a
        # transaction: there, a batch that comes before the one it follows would leave a hole in what is committed.
        if not header.is_transactional:
            return
        expected = 0
    elif entry.batches:
        expected = _next_sequence(entry)
    else:
        expected = entry.first_sequence
    if header.base_sequence == expected:
        return
    last_batch = None if entry is None else entry.last_since_marker
    if entry is not None and last_batch is not None and header.producer_epoch == entry.epoch:
        # Clients take "repeated, too late to say where it is" for success: it must be certain that all of it was taken.
        last = last_batch.last_sequence
        seen = (last - entry.first_sequence) & MAX_SEQUENCE
        behind_first = (last - header.base_sequence) & MAX_SEQUENCE
        behind_last = (last - header.last_sequence) & MAX_SEQUENCE
        if behind_last <= behind_first <= seen:
            raise ApiError(
                Code.DUPLICATE_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence} again, too late to say where",
            )
    raise ApiError(
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {header.base_sequence} where {expected} comes next",
    )


def _next_sequence(entry: ProducerEntry) -> int:
    return (entry.batches[-1].last_sequence + 1) & MAX_SEQUENCE


def _fenced(producer_id: int, sent: int, known: int) -> ApiError:
    return ApiError(Code.INVALID_PRODUCER_EPOCH, f"producer {producer_id} sent epoch {sent}, the log has seen {known}")
