"""The dead letters of a group: list, resend and purge them.

The dead-letter topic itself records what was done with a dead letter: a state record in the same partition, behind it,
without key and value, whose header `penstock-settled` says `resent 42` or `purged 42`.

**A dead letter is resent once.** A process that resends takes over the group's transactional id for dead letters first,
which aborts what an earlier one left open and fences it. Then it reads all state records to the end of the topic, and
sends each dead letter without one to its retry topic, in one transaction with its new state record.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from operator import attrgetter
from types import TracebackType

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from penstock.admin.connection import AdminConnection
from penstock.admin.errors import REQUEST_TIMED_OUT, AdminError, UnreachableError, admin_error
from penstock.admin.offsets import OffsetOperations
from penstock.admin.topics import TopicOperations
from penstock.clock import SystemClock
from penstock.errors import Code
from penstock.ids import TopicPartition
from penstock.sdk.errors import FencedError, TransactionError
from penstock.sdk.headers import RETRY_TOPIC, SETTLED, Origin, failures_of, text_of
from penstock.sdk.kafka.librdkafka import received_of
from penstock.sdk.kafka.settings import transactional_settings
from penstock.sdk.kafka.transactional_producer import KafkaTransactionalProducer
from penstock.sdk.kafka.unused_group import concerns_unused_group
from penstock.sdk.message import Message
from penstock.sdk.ports import Outgoing, Received
from penstock.sdk.receive.disposition import resent_record
from penstock.sdk.receive.topic_layout import RetryTopic
from penstock.sdk.send.sending_options import Sending
from penstock.sdk.topic_names import dead_topic, is_retry_topic, retry_topic, shared_retry_topic

_ID = re.compile(r"(\d{1,9})/(\d{1,18})", re.ASCII)
_STATE = re.compile(r"([a-z]+) (\d{1,18})", re.ASCII)


class DeadLetterState(Enum):
    """What was done with a dead letter."""

    WAITING = "waiting"
    RESENT = "resent"
    PURGED = "purged"


@dataclass(frozen=True, slots=True, order=True)
class DeadLetterId:
    """The partition and offset of a dead letter; people write `3/42`."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}/{self.offset}"


def parse_dead_letter_id(text: str) -> DeadLetterId:
    """Parse `3/42`. Raises ValueError."""
    match = _ID.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not the id of a dead letter: write PARTITION/OFFSET, such as 3/42")
    return DeadLetterId(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter."""

    received: Received
    state: DeadLetterState

    @property
    def id(self) -> DeadLetterId:
        return DeadLetterId(self.received.partition, self.received.offset)

    @property
    def died_ms(self) -> int | None:
        """When the message became a dead letter."""
        return self.received.timestamp_ms

    @property
    def origin(self) -> Origin:
        return Message(self.received).origin

    @property
    def attempts(self) -> int:
        return failures_of(self.received.headers)

    @property
    def error(self) -> str:
        return Message(self.received).error or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSelection:
    """Which dead letters to select: those that match every filter that is set."""

    ids: frozenset[DeadLetterId] = frozenset()
    since_ms: int | None = None
    """Died then or later."""
    until_ms: int | None = None
    """Died before."""
    error: str | None = None
    """A part of the error, in any case."""
    origin: str | None = None
    """TOPIC, TOPIC/PARTITION or TOPIC/PARTITION/OFFSET."""
    states: frozenset[DeadLetterState] = frozenset({DeadLetterState.WAITING})
    shown_error: Callable[[DeadLetter], str] = field(default=attrgetter("error"), repr=False)
    """What of an error the one who selects may see, and so may select by."""

    def matches(self, letter: DeadLetter) -> bool:
        died_ms = letter.died_ms
        return (
            letter.state in self.states
            and (not self.ids or letter.id in self.ids)
            and (self.since_ms is None or (died_ms is not None and died_ms >= self.since_ms))
            and (self.until_ms is None or (died_ms is not None and died_ms < self.until_ms))
            and (self.error is None or self.error.casefold() in self.shown_error(letter).casefold())
            and (self.origin is None or _is_from(letter.origin, self.origin))
        )


def _is_from(origin: Origin, wanted: str) -> bool:
    parts = wanted.split("/")
    return [origin.topic, str(origin.partition), str(origin.offset)][: len(parts)] == parts


def state_record(letter: DeadLetterId, topic: str, state: DeadLetterState) -> Outgoing:
    """The record that says what was done with a dead letter."""
    said = f"{state.value} {letter.offset}"
    return Outgoing(topic, None, headers=((SETTLED, said.encode()),), partition=letter.partition)


class DeadLetterStates:
    """What was done with which dead letters; all others are waiting."""

    def __init__(self) -> None:
        self._states: dict[int, dict[int, DeadLetterState]] = {}

    def is_state_record(self, received: Received) -> bool:
        return text_of(received.headers, SETTLED) is not None

    def read(self, received: Received) -> None:
        """Read a state record; ignores one that is malformed."""
        match = _STATE.fullmatch(text_of(received.headers, SETTLED) or "")
        if match is not None and match[1] in {state.value for state in DeadLetterState}:
            self.add(DeadLetterId(received.partition, int(match[2])), DeadLetterState(match[1]))

    def add(self, letter: DeadLetterId, state: DeadLetterState) -> None:
        self._states.setdefault(letter.partition, {})[letter.offset] = state

    def state_of(self, received: Received) -> DeadLetterState:
        return self._states.get(received.partition, {}).get(received.offset, DeadLetterState.WAITING)


Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and how much there is."""

LETTERS_PER_TRANSACTION = 200
"""Dead letters that one transaction settles."""

_POLL_S = 0.1
_BATCH = 500
_TRANSACTION_PATIENCE_S = 30.0
_STALLED_S = 90.0
"""Longer than an abandoned open transaction delays readers."""
_TRANSACTION_TIMEOUT_MS = 15_000
"""How long readers of the retry topic wait if this process is killed."""

_Ranges = dict[int, tuple[int, int]]


def _no_progress(what: str, done: int, total: int) -> None:
    pass


def _behind(after: DeadLetterId | None, ranges: _Ranges) -> _Ranges:
    """What lies behind a dead letter, in the order of ids."""
    if after is None:
        return ranges
    later = {number: held for number, held in ranges.items() if number > after.partition}
    low, high = ranges.get(after.partition, (0, 0))
    if after.offset + 1 < high:
        later[after.partition] = (max(low, after.offset + 1), high)
    return later


class DeadLetters:
    """The dead letters of one group. Use it in a `with` block."""

    def __init__(
        self,
        connection: AdminConnection,
        topics: TopicOperations,
        offsets: OffsetOperations,
        group: str,
        progress: Progress = _no_progress,
    ) -> None:
        """Raises UNKNOWN_TOPIC_OR_PARTITION if the group has no dead-letter topic."""
        self.group = group
        self.topic = dead_topic(group)
        self._connection = connection
        self._topics = topics
        self._offsets = offsets
        self._progress = progress
        self._partition_count()
        self._consumer = Consumer(
            connection.settings.settings_for(
                {
                    # librdkafka requires a group id; the consumer joins no group and commits nothing.
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

    def select(self, selection: DeadLetterSelection) -> Iterator[DeadLetter]:
        """The selected dead letters that exist now, in order within a partition."""
        ranges = self._ranges()
        return self._selected(selection, ranges, self._read_states(ranges, is_exact=False))

    def page(self, selection: DeadLetterSelection, limit: int, after: DeadLetterId | None) -> list[DeadLetter]:
        """The first `limit` selected dead letters behind `after`, by id.

        State records lie behind the dead letters they are about, so nothing before `after` has to be read.
        """
        ranges = _behind(after, self._ranges())
        states = self._read_states(ranges, is_exact=False)
        found: list[DeadLetter] = []
        for number in sorted(ranges):
            with closing(self._selected(selection, {number: ranges[number]}, states)) as letters:
                found += islice(letters, limit - len(found))
            if len(found) == limit:
                break
        return found

    def resend(self, selection: DeadLetterSelection) -> list[DeadLetterId]:
        """Send the selected dead letters that wait to their retry topics.

        Returns:
            The ids of those that were sent.

        Raises:
            AdminError: The group has no dead-letter topic or no retry topic, the commit failed, another process
                resends or purges, or no broker answers.
        """
        known: dict[tuple[str, ...], RetryTopic] = {}

        def outgoing(letter: DeadLetter) -> list[Outgoing]:
            names = self._retry_topics_of(letter)
            if names not in known:
                known[names] = self._existing_retry_topic(names, letter)
            return [
                resent_record(letter.received, known[names]),
                state_record(letter.id, self.topic, DeadLetterState.RESENT),
            ]

        return self._settle("resending", selection, outgoing)

    def purge(self, selection: DeadLetterSelection) -> list[DeadLetterId]:
        """Discard the selected dead letters that wait, and delete everything before the first one that still waits.

        Returns:
            The ids of those that were discarded.

        Raises:
            AdminError: The group has no dead-letter topic, the commit failed, another process resends or purges, or
                no broker answers.
        """
        purged = self._settle(
            "purging", selection, lambda letter: [state_record(letter.id, self.topic, DeadLetterState.PURGED)]
        )
        self._delete_settled()
        return purged

    def _retry_topics_of(self, letter: DeadLetter) -> tuple[str, ...]:
        """Where it may go, the best first: version 0.1 did not record where, and had one topic for all."""
        written = text_of(letter.received.headers, RETRY_TOPIC)
        # Any producer can write this header: resend only to topics of this group.
        noted = [written] if written is not None and is_retry_topic(self.group, written) else []
        return (*noted, retry_topic(self.group, letter.origin.topic), shared_retry_topic(self.group))

    def _existing_retry_topic(self, names: tuple[str, ...], letter: DeadLetter) -> RetryTopic:
        existing = self._topics.describe(names).values
        for name in names:
            if name in existing:
                return RetryTopic(name, len(existing[name].partitions))
        raise AdminError(
            Code.UNKNOWN_TOPIC_OR_PARTITION.name,
            f"could not resend {letter.id}: group {self.group} has no retry topic for {letter.origin.topic}; "
            f"a subscription of the group to {letter.origin.topic} creates it when it starts",
        )

    def _settle(
        self, what: str, selection: DeadLetterSelection, outgoing: Callable[[DeadLetter], list[Outgoing]]
    ) -> list[DeadLetterId]:
        """Use transactions with the group's id: a later process fences this one."""
        producer = self._new_producer()
        settled: list[DeadLetterId] = []
        try:
            ranges = self._ranges()
            states = self._read_states(ranges, is_exact=True)
            with closing(self._selected(selection, ranges, states, what)) as left:
                while letters := list(islice(left, LETTERS_PER_TRANSACTION)):
                    self._in_transaction(producer, [each for letter in letters for each in outgoing(letter)])
                    settled += [letter.id for letter in letters]
        finally:
            producer.close()
        return settled

    def _new_producer(self) -> KafkaTransactionalProducer:
        settings = transactional_settings(Sending(delivery="exactly-once"), f"penstock-deadletters-{self.group}")
        timeouts = {"transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS, "message.timeout.ms": _TRANSACTION_TIMEOUT_MS}
        try:
            return KafkaTransactionalProducer(
                self._connection.settings.settings_for(settings | timeouts), _TRANSACTION_PATIENCE_S, SystemClock()
            )
        except TransactionError as error:
            raise AdminError(Code.COORDINATOR_NOT_AVAILABLE.name, str(error)) from None

    def _in_transaction(self, producer: KafkaTransactionalProducer, outgoing: list[Outgoing]) -> None:
        try:
            producer.begin()
            for each in outgoing:
                producer.send_soon(each)
            producer.commit()
        except FencedError:
            raise AdminError(
                Code.PRODUCER_FENCED.name,
                f"another process resends or purges dead letters of group {self.group}: "
                "this one stopped; nothing is lost or sent twice",
            ) from None
        except TransactionError as error:
            producer.abort()
            raise AdminError(Code.TRANSACTION_ABORTABLE.name, str(error)) from None
        except BaseException:
            producer.abort()
            raise

    def _delete_settled(self) -> None:
        """Delete everything before the first waiting dead letter, with the state records of what is deleted."""
        ranges = self._ranges()
        states = self._read_states(ranges, is_exact=True)
        first_waiting: dict[int, int] = {}
        for letter in self._selected(DeadLetterSelection(), ranges, states):
            first_waiting.setdefault(letter.id.partition, letter.id.offset)
        delete_before = {number: first_waiting.get(number, high) for number, (_, high) in ranges.items()}
        wanted = {
            TopicPartition(self.topic, number): first
            for number, first in delete_before.items()
            if first > ranges[number][0]
        }
        for error in self._topics.delete_records(wanted).errors.values():
            raise AdminError(
                error.code, f"could not delete purged dead letters from {self.topic}; they stay purged: {error}"
            )

    def _selected(
        self, selection: DeadLetterSelection, ranges: _Ranges, states: DeadLetterStates, what: str = "looking"
    ) -> Generator[DeadLetter, None, None]:
        with closing(self._read(what, ranges, is_exact=False)) as records:
            for received in records:
                if states.is_state_record(received):
                    continue
                letter = DeadLetter(received, states.state_of(received))
                if selection.matches(letter):
                    yield letter

    def _read_states(self, ranges: _Ranges, is_exact: bool) -> DeadLetterStates:
        states = DeadLetterStates()
        with closing(self._read("reading", ranges, is_exact)) as records:
            for received in records:
                if states.is_state_record(received):
                    states.read(received)
        return states

    def _partition_count(self) -> int:
        found = self._topics.describe([self.topic]).values.get(self.topic)
        if found is None:
            raise AdminError(
                Code.UNKNOWN_TOPIC_OR_PARTITION.name,
                f"group {self.group} has no dead letters: topic {self.topic} does not exist",
            )
        return len(found.partitions)

    def _ranges(self) -> _Ranges:
        """The start and end offset of each partition now, including open transactions; omits empty ones."""
        wanted = [TopicPartition(self.topic, number) for number in range(self._partition_count())]
        found = self._offsets.ranges(wanted).all()
        return {at.partition: (held.start, held.end) for at, held in found.items() if held.start < held.end}

    def _read(self, what: str, ranges: _Ranges, is_exact: bool) -> Generator[Received, None, None]:
        """Everything that is committed in these ranges, in order within a partition.

        If `is_exact`, wait for what lies behind an open transaction; otherwise omit it.
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
        patience_s = _STALLED_S if is_exact else self._connection.timeout_s
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
                elif not concerns_unused_group(error):
                    raise admin_error(error)
            topic_partitions = self._consumer.position([KafkaPartition(self.topic, number) for number in ends])
            for tp in topic_partitions:
                if tp.offset >= ends[tp.partition]:
                    left.pop(tp.partition, None)
            now = sum(max(0, tp.offset) for tp in topic_partitions)
            if now != before:
                moved_s, before = time.monotonic(), now
            elif time.monotonic() - moved_s > patience_s:
                raise UnreachableError(
                    REQUEST_TIMED_OUT,
                    f"could not read {self.topic} to its end: a transaction is open, or no broker answers",
                )
