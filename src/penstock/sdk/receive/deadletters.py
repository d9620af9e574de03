"""The dead letters of a group: looked at, sent again, thrown away.

**Sending again happens once.** Whoever resends takes the group's own transactional id first, which ends what an earlier
one has left unfinished and keeps it from going on. Then the notes are read up to the end, and each letter that has none
is sent to the group's retry topic in one transaction with its note. So however often it is asked for, by however many
people at once, and wherever a process was killed: the group gets a letter once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from types import TracebackType

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from penstock.clock import SystemClock
from penstock.sdk.access import Access
from penstock.sdk.decoding import received_of
from penstock.sdk.errors import FencedError, TopicError, TransactionError
from penstock.sdk.failures import reason_of
from penstock.sdk.names import dead_topic, retry_topic
from penstock.sdk.ports import Outgoing, Received
from penstock.sdk.positions import positions
from penstock.sdk.receive.forwarding import resend_of
from penstock.sdk.receive.letters import Letter, LetterId, Notes, Selection, State, note_of
from penstock.sdk.send.sending import Sending, transactional_settings
from penstock.sdk.send.transactional import TransactionalProducer
from penstock.sdk.topics import Topics

Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is, and how much there is."""

A_TRANSACTION = 200
"""Letters that are settled together."""

_ANSWER_S = 10.0
_POLL_S = 0.1
_BATCH = 500
_PATIENCE_S = 30.0
_STALLED_S = 90.0
"""Longer than a transaction that somebody has left open holds up readers."""
_TIMEOUT_MS = 15_000
"""The same for ours: readers of the retry topic are held up by it if this process is killed."""

_Ranges = dict[int, tuple[int, int]]


def _no_progress(what: str, done: int, total: int) -> None:
    pass


class DeadLetters:
    """Of one group. Closed when it is no longer needed."""

    def __init__(self, access: Access, group: str, progress: Progress = _no_progress) -> None:
        self.group = group
        self.topic = dead_topic(group)
        self._access = access
        self._progress = progress
        self._topics = Topics(access)
        self._admin = AdminClient(access.settings_for())
        self._consumer = Consumer(
            access.settings_for(
                {
                    # The library demands a name; nothing is joined or committed.
                    "group.id": "penstock-deadletters",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_committed",
                    "enable.partition.eof": True,
                }
            )
        )

    def __enter__(self) -> DeadLetters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._consumer.close()

    def letters(self, selection: Selection) -> Iterator[Letter]:
        """Those that are meant, those of a partition as they came; what is there when this is called."""
        ranges = self._ranges()
        return self._selected(selection, ranges, self._notes(ranges, is_exact=False))

    def resend(self, selection: Selection) -> list[LetterId]:
        """Sends those that are meant and wait to the group's retry topic; gives those that were sent."""
        retry = retry_topic(self.group)
        partitions = self._topics.partitions(retry)

        def outgoing(letter: Letter) -> list[Outgoing]:
            return [
                resend_of(letter.received, retry, partitions),
                note_of(letter.id, self.topic, State.RESENT),
            ]

        return self._settle("resending", selection, outgoing)

    def purge(self, selection: Selection) -> list[LetterId]:
        """Throws away those that are meant and wait; gives them. What lies before the first that waits is deleted."""
        purged = self._settle("purging", selection, lambda letter: [note_of(letter.id, self.topic, State.PURGED)])
        self._trim()
        return purged

    def _settle(self, what: str, selection: Selection, outgoing: Callable[[Letter], list[Outgoing]]) -> list[LetterId]:
        """In transactions under the group's id: whoever comes later fences this one."""
        # The topic has to be there before a transaction is begun in which it is written to.
        self._topics_own_partitions()
        producer = self._new_producer()
        settled: list[LetterId] = []
        try:
            ranges = self._ranges()
            notes = self._notes(ranges, is_exact=True)
            left = self._selected(selection, ranges, notes, what)
            while letters := list(islice(left, A_TRANSACTION)):
                self._in_transaction(producer, [each for letter in letters for each in outgoing(letter)])
                settled += [letter.id for letter in letters]
        finally:
            producer.close()
        return settled

    def _new_producer(self) -> TransactionalProducer:
        settings = transactional_settings(Sending(delivery="exactly-once"), f"penstock-deadletters-{self.group}")
        timeouts = {"transaction.timeout.ms": _TIMEOUT_MS, "message.timeout.ms": _TIMEOUT_MS}
        return TransactionalProducer(self._access.settings_for(settings | timeouts), _PATIENCE_S, SystemClock())

    def _in_transaction(self, producer: TransactionalProducer, outgoing: list[Outgoing]) -> None:
        try:
            producer.begin()
            for each in outgoing:
                producer.send_soon(each)
            producer.commit()
        except FencedError:
            raise TransactionError(
                f"somebody else has begun to resend or purge dead letters of group {self.group}: "
                "what is not done yet is left to them"
            ) from None
        except BaseException:
            producer.abort()
            raise

    def _trim(self) -> None:
        """Deletes everything before the first letter that waits: notes there are of letters that go with them."""
        ranges = self._ranges()
        notes = self._notes(ranges, is_exact=True)
        waiting: dict[int, int] = {}
        for letter in self._selected(Selection(), ranges, notes):
            waiting.setdefault(letter.id.partition, letter.id.offset)
        firsts = {number: waiting.get(number, high) for number, (_, high) in ranges.items()}
        wanted = [
            KafkaPartition(self.topic, number, first) for number, first in firsts.items() if first > ranges[number][0]
        ]
        if not wanted:
            return
        try:
            for answer in self._admin.delete_records(wanted, request_timeout=_ANSWER_S).values():
                answer.result(_ANSWER_S)
        except KafkaException as error:
            raise TopicError(f"purged letters stay in {self.topic} for now: {reason_of(error)}") from None

    def _selected(self, selection: Selection, ranges: _Ranges, notes: Notes, what: str = "looking") -> Iterator[Letter]:
        for received in self._read(what, ranges, is_exact=False):
            if notes.is_note(received):
                continue
            letter = Letter(received, notes.state_of(received))
            if selection.matches(letter):
                yield letter

    def _notes(self, ranges: _Ranges, is_exact: bool) -> Notes:
        notes = Notes()
        for received in self._read("reading", ranges, is_exact):
            if notes.is_note(received):
                notes.read(received)
        return notes

    def _topics_own_partitions(self) -> int:
        shape = self._topics.shape(self.topic)
        if shape is None:
            raise TopicError(f"group {self.group} has no dead letters: there is no topic {self.topic}")
        return shape.partitions

    def _ranges(self) -> _Ranges:
        """Where each partition begins and ends now, open transactions included; those that are empty are left out."""
        places = [KafkaPartition(self.topic, number) for number in range(self._topics_own_partitions())]
        lows = self._offsets(places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        highs = self._offsets(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return {number: (lows[number], highs[number]) for number in lows if lows[number] < highs[number]}

    def _offsets(self, places: list[KafkaPartition], spec: OffsetSpec) -> dict[int, int]:
        try:
            found = positions(self._admin, dict.fromkeys(places, spec), _ANSWER_S).all()
        except KafkaException as error:
            raise TopicError(f"{self.topic} cannot be read: {reason_of(error)}") from None
        return {place.partition: offset for place, offset in found.items()}

    def _read(self, what: str, ranges: _Ranges, is_exact: bool) -> Iterator[Received]:
        """Everything that is committed in these ranges, in the order of its partition.

        If it has to be exact, what lies behind an open transaction is waited for; else it is left out.
        """
        total, done = sum(high - low for low, high in ranges.values()), 0
        self._progress(what, 0, total)
        if not ranges:
            return
        self._consumer.assign([KafkaPartition(self.topic, number, low) for number, (low, _) in ranges.items()])
        try:
            for received in self._read_assigned({number: high for number, (_, high) in ranges.items()}, is_exact):
                yield received
                done += 1
                self._progress(what, done, total)
        finally:
            self._consumer.unassign()
        self._progress(what, total, total)

    def _read_assigned(self, ends: dict[int, int], is_exact: bool) -> Iterator[Received]:
        left, moved_s, before = dict(ends), time.monotonic(), -1
        while left:
            for message in self._consumer.consume(_BATCH, _POLL_S):
                number, error = message.partition() or 0, message.error()
                if error is None:
                    received = received_of(message)
                    if number in left and received.offset < left[number]:
                        yield received
                elif error.code() == KafkaError._PARTITION_EOF:
                    if not is_exact or (message.offset() or 0) >= ends[number]:
                        left.pop(number, None)
                else:
                    raise TopicError(f"{self.topic}-{number} cannot be read: {error.str()}")
            places = self._consumer.position([KafkaPartition(self.topic, number) for number in ends])
            for place in places:
                if place.offset >= ends[place.partition]:
                    left.pop(place.partition, None)
            now = sum(max(0, place.offset) for place in places)
            if now != before:
                moved_s, before = time.monotonic(), now
            elif time.monotonic() - moved_s > _STALLED_S:
                raise TopicError(f"{self.topic} cannot be read to its end: a transaction is open, or no broker answers")
