"""A member of a consumer group, on a confluent-kafka consumer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
)
from confluent_kafka import Message as KafkaMessage
from confluent_kafka import TopicPartition as KafkaPartition

from penstock.clock import Clock, SystemClock
from penstock.ids import TopicPartition
from penstock.sdk.errors import TopicError
from penstock.sdk.kafka.connection import ConnectionSettings
from penstock.sdk.kafka.librdkafka import error_of, reason_of, received_of, settings_error
from penstock.sdk.ports import RebalanceListener, Received
from penstock.sdk.problem_log import OngoingProblem
from penstock.sdk.receive.subscription_options import ValidatedOptions
from penstock.sdk.topic_names import is_retry_topic

log = logging.getLogger(__name__)

_REQUEST_TIMEOUT_S = 10.0
_POLL_S = 0.05
_COMMIT_EVERY_MS = 1000
_PREFETCH_KIB = 16 * 1024
"""What librdkafka prefetches, in addition to messages in flight."""
_METADATA_REFRESH_MS = 10_000
"""How soon a topic that is created later, or grows, is noticed."""
_FETCH_BACKOFF_MS = 50
_COMMIT_PROBLEM = (
    "could not commit offsets; handled messages will be delivered again after a crash",
    "committing offsets works",
)
_COMMITTED_TIMEOUT_S = 2.0
"""How long a lookup of committed offsets may delay polling."""


_SESSION_TIMEOUT_MS = 10_000
"""How long a killed member keeps its partitions. librdkafka's default is 45 seconds; it sends heartbeats every 3
seconds in its own thread, which neither a handler nor the GIL delays."""
_CLASSIC_ONLY = ("session.timeout.ms", "partition.assignment.strategy")
"""In the new group protocol (KIP-848) brokers decide about these, and librdkafka refuses them."""


def consumer_settings(options: ValidatedOptions, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The librdkafka settings of a subscription; `given` are those of the application."""
    settings = _consumer_settings(options)
    if str((given or {}).get("group.protocol", "classic")).lower() == "consumer":
        for name in _CLASSIC_ONLY:
            del settings[name]
        # `uniform` counts partitions of all topics together: it may give one member all of a topic and another one all
        # of its retries.
        settings["group.remote.assignor"] = "range"
    return settings


def _consumer_settings(options: ValidatedOptions) -> dict[str, Any]:
    return {
        "group.id": options.group,
        # For `from_beginning=False` the member commits the end offsets when it joins, so that messages sent while
        # no member is connected are not skipped.
        "auto.offset.reset": "earliest",
        "enable.auto.commit": options.delivery == "at-least-once",
        "enable.auto.offset.store": False,
        "auto.commit.interval.ms": _COMMIT_EVERY_MS,
        # A member keeps working on partitions that it keeps in a rebalance.
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": _SESSION_TIMEOUT_MS,
        "isolation.level": "read_committed",
        "queued.max.messages.kbytes": _PREFETCH_KIB,
        "topic.metadata.refresh.interval.ms": _METADATA_REFRESH_MS,
        "fetch.queue.backoff.ms": _FETCH_BACKOFF_MS,
    }


class KafkaGroupConsumer:
    """A member of a group. Creates its consumer when it joins."""

    def __init__(self, connection: ConnectionSettings, options: ValidatedOptions, clock: Clock | None = None) -> None:
        self._connection = connection
        self._options = options
        self._clock = clock or SystemClock()
        self._consumer: Consumer | None = None
        self._listener: RebalanceListener | None = None
        self._group: object = None
        self._committing: tuple[Callable[[bool], None], float] | None = None
        self._problems: dict[str, OngoingProblem] = {}
        self._unreadable: set[str | None] = set()
        """Topics with a read error; None: librdkafka did not say which."""
        self._unverified: set[TopicPartition] = set()
        """Assigned partitions without a message yet; librdkafka may start them at a wrong offset (`_verified`)."""

    def join(self, topics: Sequence[str], listener: RebalanceListener, *, from_end: Sequence[str] = ()) -> None:
        self._listener = listener
        if self._consumer is None:
            settings = consumer_settings(self._options, self._connection.settings) | {"on_commit": self._committed}
            try:
                self._consumer = Consumer(self._connection.settings_for(settings))
            except KafkaException as error:
                raise settings_error(error) from None
        try:
            self._log_start_position([topic for topic in topics if not is_retry_topic(self._options.group, topic)])
            self._commit_end_offsets(from_end)
            self._consumer.subscribe(
                list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
        except KafkaException as error:
            raise TopicError(f"could not join group {self._options.group}: {reason_of(error)}") from None

    def poll(self, max_count: int, timeout_s: float) -> Sequence[Received]:
        # `consume` waits until it has as many messages as requested: so wait for the first one only, and take what else
        # is there.
        consumer = self._joined_consumer()
        first = consumer.poll(timeout_s)
        messages = [] if first is None else [first]
        if first is not None and max_count > 1:
            messages += consumer.consume(max_count - 1, 0)
        self._expire_commit()
        self._refresh_group_metadata()
        return [received_of(message) for message in self._verified([each for each in messages if self._is_valid(each)])]

    def pause(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._try("paused", lambda: self._joined_consumer().pause(_partitions(topic_partitions)))

    def resume(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._try("resumed", lambda: self._joined_consumer().resume(_partitions(topic_partitions)))

    def seek(self, tp: TopicPartition, offset: int) -> bool:
        """Read the partition from this offset on; False if that cannot be done now, or another member has it."""
        try:
            self._joined_consumer().seek(KafkaPartition(tp.topic, tp.partition, offset))
        except KafkaException as error:
            log.debug("could not seek in %s: %s", tp, reason_of(error))
            return False
        return True

    def position(self, tp: TopicPartition) -> int | None:
        try:
            (found,) = self._joined_consumer().position(_partitions([tp]))
        except KafkaException:
            return None
        return found.offset if found.error is None and found.offset >= 0 else None

    def store_offsets(self, positions: Mapping[TopicPartition, int]) -> None:
        for tp, position in positions.items():
            offsets = [KafkaPartition(tp.topic, tp.partition, position)]
            self._try("marked as settled", partial(self._joined_consumer().store_offsets, offsets=offsets))

    def commit(self, positions: Mapping[TopicPartition, int], done: Callable[[bool], None]) -> None:
        assert self._committing is None, "one commit at a time"
        self._committing = (done, self._clock.monotonic_ms())
        offsets = [KafkaPartition(tp.topic, tp.partition, offset) for tp, offset in positions.items()]
        try:
            self._joined_consumer().commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._committed(error_of(error), [])

    def seek_to_committed(self) -> bool:
        consumer = self._joined_consumer()
        try:
            assigned = consumer.assignment()
            for tp in consumer.committed(assigned, timeout=_REQUEST_TIMEOUT_S) if assigned else ():
                if tp.error is not None:
                    raise KafkaException(tp.error)
                offset = OFFSET_BEGINNING if tp.offset == OFFSET_INVALID else tp.offset
                consumer.seek(KafkaPartition(tp.topic, tp.partition, offset))
        except KafkaException as error:
            self._problem("could not read committed offsets", "reading committed offsets works").report(
                reason_of(error)
            )
            return False
        self._problem("could not read committed offsets", "reading committed offsets works").end()
        return True

    def group_metadata(self) -> object:
        return self._group

    def close(self) -> None:
        if self._consumer is None:
            return
        # `close` alone is not enough: in a rebalance before the first assignment librdkafka would not leave the group,
        # and the others would wait for the session timeout.
        self._consumer.unsubscribe()
        self._consumer.poll(_POLL_S)
        self._consumer.close()

    def _joined_consumer(self) -> Consumer:
        assert self._consumer is not None, "the group is joined first"
        return self._consumer

    def _log_start_position(self, topics: Sequence[str]) -> None:
        """Log where the group starts in topics without committed offsets. Nothing depends on it."""
        consumer, group = self._joined_consumer(), self._options.group
        try:
            partitions = self._partitions_of(topics)
            known = consumer.committed(partitions, timeout=_COMMITTED_TIMEOUT_S) if partitions else []
        except KafkaException as error:
            log.debug("group %s: could not read committed offsets yet: %s", group, reason_of(error))
            return
        read = {tp.topic for tp in known if tp.error is not None or tp.offset != OFFSET_INVALID}
        if new := [topic for topic in topics if topic not in read]:
            where = (
                "the oldest messages (from_beginning=False would start with new ones)"
                if self._options.from_beginning
                else "new messages (from_beginning=True would start with the oldest ones)"
            )
            log.info("group %s has no committed offsets for %s: it starts with %s", group, ", ".join(new), where)

    def _partitions_of(self, topics: Sequence[str]) -> list[KafkaPartition]:
        known = self._joined_consumer().list_topics(timeout=_REQUEST_TIMEOUT_S).topics
        return [
            KafkaPartition(topic, number)
            for topic in topics
            if topic in known and known[topic].error is None
            for number in known[topic].partitions
        ]

    def _commit_end_offsets(self, topics: Sequence[str]) -> None:
        """Commit the end offsets of partitions that the group has never read, so that it misses nothing from then on.

        A broker refuses that once the group has members; these have done it then.
        """
        consumer = self._joined_consumer()
        if not topics:
            return
        partitions = self._partitions_of(topics)
        if not partitions:
            return
        committed = consumer.committed(partitions, timeout=_REQUEST_TIMEOUT_S)
        uncommitted = [tp for tp in committed if tp.error is None and tp.offset == OFFSET_INVALID]
        for tp in uncommitted:
            tp.offset = consumer.get_watermark_offsets(tp, timeout=_REQUEST_TIMEOUT_S)[1]
        if not uncommitted:
            return
        answers: list[bool] = []
        self.commit({TopicPartition(tp.topic, tp.partition): tp.offset for tp in uncommitted}, answers.append)
        deadline_ms = self._clock.monotonic_ms() + _REQUEST_TIMEOUT_S * 1000
        while not answers and self._clock.monotonic_ms() < deadline_ms:
            consumer.poll(_POLL_S)
        if not answers:
            self._committing = None
            raise TopicError(f"group {self._options.group} could not commit its start offsets: no broker answers")

    def _committed(self, error: KafkaError | None, partitions: Sequence[KafkaPartition]) -> None:
        """Called by librdkafka, also for its automatic commits."""
        failed = error or next((each.error for each in partitions if each.error is not None), None)
        if failed is not None and failed.code() != KafkaError._NO_OFFSET:
            self._problem(*_COMMIT_PROBLEM).report(failed.str())
        else:
            self._problem(*_COMMIT_PROBLEM).end()
        if self._committing is not None:
            done, _ = self._committing
            self._committing = None
            done(failed is None)

    def _expire_commit(self) -> None:
        """Fail a commit without an answer: librdkafka can lose one that waits for a coordinator with its connection."""
        if (
            self._committing is not None
            and self._clock.monotonic_ms() - self._committing[1] > _REQUEST_TIMEOUT_S * 1000
        ):
            done, _ = self._committing
            self._committing = None
            done(False)

    def _refresh_group_metadata(self) -> None:
        """Runs in the polling thread: during a rebalance librdkafka never answers another thread."""
        if self._options.delivery == "exactly-once":
            self._group = self._joined_consumer().consumer_group_metadata()

    def _assigned(self, _: Consumer, partitions: Sequence[KafkaPartition]) -> None:
        assert self._listener is not None
        if self._options.delivery == "exactly-once":
            self._unverified.update(_topic_partitions(partitions))
        # The member has joined, so any problem with joining is over.
        self._end_read_problem(None)
        self._listener.assigned(_topic_partitions(partitions))

    def _revoked(self, _: Consumer, partitions: Sequence[KafkaPartition]) -> None:
        assert self._listener is not None
        self._refresh_group_metadata()
        self._unverified.difference_update(_topic_partitions(partitions))
        self._listener.revoked(_topic_partitions(partitions))

    def _lost(self, _: Consumer, partitions: Sequence[KafkaPartition]) -> None:
        assert self._listener is not None
        self._unverified.difference_update(_topic_partitions(partitions))
        self._listener.lost(_topic_partitions(partitions))

    def _verified(self, messages: list[KafkaMessage]) -> list[KafkaMessage]:
        """The messages without those of partitions that start before the committed offset; seeks these partitions.

        If an open transaction keeps brokers from answering, and a rebalance happens meanwhile, librdkafka may treat
        that as no committed offset and start at the beginning. Until brokers answer, no message of the partition is
        returned.
        """
        first_offsets: dict[TopicPartition, int] = {}
        for message in messages if self._unverified else ():
            if (tp := _topic_partition(message)) in self._unverified:
                first_offsets.setdefault(tp, int(message.offset() or 0))
        if not first_offsets:
            return messages
        consumer = self._joined_consumer()
        try:
            known = consumer.committed(_partitions(first_offsets), timeout=_COMMITTED_TIMEOUT_S)
            if failed := next((each.error for each in known if each.error is not None), None):
                raise KafkaException(failed)
        except KafkaException as error:
            log.debug("could not read committed offsets yet: %s", reason_of(error))
            too_early = first_offsets
        else:
            at = {TopicPartition(each.topic, each.partition): each.offset for each in known}
            too_early = {tp: at[tp] for tp, first in first_offsets.items() if at[tp] > first}
            self._unverified.difference_update(first_offsets)
        for tp, offset in too_early.items():
            target = KafkaPartition(tp.topic, tp.partition, offset)
            self._try("sent to what is committed", partial(consumer.seek, target))
        return [message for message in messages if _topic_partition(message) not in too_early]

    def _is_valid(self, message: KafkaMessage) -> bool:
        error, topic = message.error(), message.topic()
        if error is None:
            if self._unreadable:
                self._end_read_problem(topic)
            return True
        self._unreadable.add(topic)
        self._problem(*_read_problem(topic)).report(error.str())
        return False

    def _end_read_problem(self, topic: str | None) -> None:
        for each in self._unreadable.intersection((topic, None)):
            self._unreadable.discard(each)
            self._problem(*_read_problem(each)).end()

    def _problem(self, what: str, over: str) -> OngoingProblem:
        if what not in self._problems:
            group = f"group {self._options.group}"
            self._problems[what] = OngoingProblem(
                log,
                f"{group}: {what}",
                f"{group}: {over} again",
                clock=self._clock,
                is_explained=lambda: self._connection.availability.is_away,
            )
        return self._problems[what]

    def _try(self, what: str, do: Callable[[], object]) -> None:
        """Ignore errors: the partition may have been revoked meanwhile."""
        try:
            do()
        except KafkaException as error:
            log.debug("partitions were not %s: %s", what, reason_of(error))


def _read_problem(topic: str | None) -> tuple[str, str]:
    what = "messages" if topic is None else topic
    return f"could not read {what}", f"reading {what} works"


def _partitions(topic_partitions: Iterable[TopicPartition]) -> list[KafkaPartition]:
    return [KafkaPartition(tp.topic, tp.partition) for tp in topic_partitions]


def _topic_partitions(partitions: Iterable[KafkaPartition]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in partitions]


def _topic_partition(message: KafkaMessage) -> TopicPartition:
    return TopicPartition(str(message.topic()), int(message.partition() or 0))
