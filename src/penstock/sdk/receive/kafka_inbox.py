"""An inbox on a confluent-kafka consumer."""

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
from penstock.logs import fields
from penstock.sdk.access import Access
from penstock.sdk.decoding import received_of
from penstock.sdk.errors import TopicError
from penstock.sdk.failures import error_of, reason_of
from penstock.sdk.ports import Assignment, Received
from penstock.sdk.receive.plan import Plan

log = logging.getLogger(__name__)

_ANSWER_S = 10.0
_POLL_S = 0.05
_COMMIT_EVERY_MS = 1000
_FETCHED_AHEAD_KIB = 16 * 1024
"""What the library keeps in memory beside what is in hand."""
_NEW_TOPICS_MS = 10_000
"""A topic that is made later, or grows, is noticed after that."""
_FETCH_BACKOFF_MS = 50
_STABLE_S = 2.0
"""How long polling may be held up by the question what is committed."""


def consumer_settings(plan: Plan) -> dict[str, Any]:
    """The settings of librdkafka for a subscription."""
    return {
        "group.id": plan.group,
        # What an application wants from the end only is committed at the end when it joins: so nothing is passed over
        # that comes while nobody is there.
        "auto.offset.reset": "earliest",
        "enable.auto.commit": plan.delivery == "at-least-once",
        "enable.auto.offset.store": False,
        "auto.commit.interval.ms": _COMMIT_EVERY_MS,
        # What a member keeps in a rebalance it goes on with.
        "partition.assignment.strategy": "cooperative-sticky",
        "isolation.level": "read_committed",
        "queued.max.messages.kbytes": _FETCHED_AHEAD_KIB,
        "topic.metadata.refresh.interval.ms": _NEW_TOPICS_MS,
        "fetch.queue.backoff.ms": _FETCH_BACKOFF_MS,
        "reconnect.backoff.max.ms": 1000,
    }


class KafkaInbox:
    """A member of a group; made when it joins."""

    def __init__(self, access: Access, plan: Plan, clock: Clock | None = None) -> None:
        self._access = access
        self._plan = plan
        self._clock = clock or SystemClock()
        self._consumer: Consumer | None = None
        self._assignment: Assignment | None = None
        self._group: object = None
        self._committing: tuple[Callable[[bool], None], float] | None = None
        self._unproved: set[TopicPartition] = set()
        """Partitions of which nothing has come yet; the library may begin them in the wrong place (`_proved`)."""

    def join(self, topics: Sequence[str], assignment: Assignment, *, from_end: Sequence[str] = ()) -> None:
        self._assignment = assignment
        if self._consumer is None:
            settings = consumer_settings(self._plan) | {"on_commit": self._committed}
            self._consumer = Consumer(self._access.settings_for(settings))
        try:
            self._begin_at_end(from_end)
            self._consumer.subscribe(
                list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
        except KafkaException as error:
            raise TopicError(f"group {self._plan.group} cannot be joined: {reason_of(error)}") from None

    def poll(self, most: int, timeout_s: float) -> Sequence[Received]:
        # `consume` waits until it has all that it was asked for: so the first message is waited for, and the rest taken
        # as far as it is there.
        consumer = self._its_consumer()
        first = consumer.poll(timeout_s)
        messages = [] if first is None else [first]
        if first is not None and most > 1:
            messages += consumer.consume(most - 1, 0)
        self._look_after_commit()
        self._look_at_group()
        return [received_of(message) for message in self._proved([each for each in messages if self._is_sound(each)])]

    def pause(self, places: Iterable[TopicPartition]) -> None:
        self._try("paused", lambda: self._its_consumer().pause(_partitions(places)))

    def resume(self, places: Iterable[TopicPartition]) -> None:
        self._try("resumed", lambda: self._its_consumer().resume(_partitions(places)))

    def position(self, place: TopicPartition) -> int | None:
        try:
            (found,) = self._its_consumer().position(_partitions([place]))
        except KafkaException:
            return None
        return found.offset if found.error is None and found.offset >= 0 else None

    def settled(self, positions: Mapping[TopicPartition, int]) -> None:
        for place, position in positions.items():
            offsets = [KafkaPartition(place.topic, place.partition, position)]
            self._try("marked as settled", partial(self._its_consumer().store_offsets, offsets=offsets))

    def commit(self, positions: Mapping[TopicPartition, int], done: Callable[[bool], None]) -> None:
        assert self._committing is None, "one commit at a time"
        self._committing = (done, self._clock.monotonic_ms())
        offsets = [KafkaPartition(place.topic, place.partition, offset) for place, offset in positions.items()]
        try:
            self._its_consumer().commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._committed(error_of(error), [])

    def rewind(self) -> bool:
        consumer = self._its_consumer()
        try:
            assigned = consumer.assignment()
            for place in consumer.committed(assigned, timeout=_ANSWER_S) if assigned else ():
                if place.error is not None:
                    raise KafkaException(place.error)
                offset = OFFSET_BEGINNING if place.offset == OFFSET_INVALID else place.offset
                consumer.seek(KafkaPartition(place.topic, place.partition, offset))
        except KafkaException as error:
            log.warning("what is committed cannot be asked for", extra=fields(error=reason_of(error)))
            return False
        return True

    def group_metadata(self) -> object:
        return self._group

    def close(self) -> None:
        if self._consumer is None:
            return
        # Not `close` alone: in a rebalance in which this member has no partitions yet the library would not say that it
        # leaves, and the others would wait for its session to end.
        self._consumer.unsubscribe()
        self._consumer.poll(_POLL_S)
        self._consumer.close()

    def _its_consumer(self) -> Consumer:
        assert self._consumer is not None, "the group is joined first"
        return self._consumer

    def _begin_at_end(self, topics: Sequence[str]) -> None:
        """Commits the ends of partitions that the group has never read: from then on it misses nothing.

        A broker refuses that once the group has members; then they have done it.
        """
        consumer = self._its_consumer()
        if not topics:
            return
        known = consumer.list_topics(timeout=_ANSWER_S).topics
        there = [
            KafkaPartition(topic, number)
            for topic in topics
            if topic in known and known[topic].error is None
            for number in known[topic].partitions
        ]
        if not there:
            return
        known_places = consumer.committed(there, timeout=_ANSWER_S)
        unread = [place for place in known_places if place.error is None and place.offset == OFFSET_INVALID]
        for place in unread:
            place.offset = consumer.get_watermark_offsets(place, timeout=_ANSWER_S)[1]
        if not unread:
            return
        answers: list[bool] = []
        self.commit({TopicPartition(place.topic, place.partition): place.offset for place in unread}, answers.append)
        deadline_ms = self._clock.monotonic_ms() + _ANSWER_S * 1000
        while not answers and self._clock.monotonic_ms() < deadline_ms:
            consumer.poll(_POLL_S)
        if not answers:
            self._committing = None
            raise TopicError(f"group {self._plan.group} cannot commit where it begins: no broker answers")

    def _committed(self, error: KafkaError | None, partitions: Sequence[KafkaPartition]) -> None:
        """Called by the library, also for what it commits by itself."""
        failed = error or next((each.error for each in partitions if each.error is not None), None)
        if failed is not None and failed.code() != KafkaError._NO_OFFSET:
            log.warning("offsets were not committed", extra=fields(group=self._plan.group, error=failed.str()))
        if self._committing is not None:
            done, _ = self._committing
            self._committing = None
            done(failed is None)

    def _look_after_commit(self) -> None:
        """A commit that waits for a coordinator can be lost with its connection: then there is no answer."""
        if self._committing is not None and self._clock.monotonic_ms() - self._committing[1] > _ANSWER_S * 1000:
            done, _ = self._committing
            self._committing = None
            done(False)

    def _look_at_group(self) -> None:
        """Here, because the library does not answer to another thread that asks during a rebalance, not even later."""
        if self._plan.delivery == "exactly-once":
            self._group = self._its_consumer().consumer_group_metadata()

    def _assigned(self, _: Consumer, partitions: Sequence[KafkaPartition]) -> None:
        assert self._assignment is not None
        if self._plan.delivery == "exactly-once":
            self._unproved.update(_places(partitions))
        self._assignment.assigned(_places(partitions))

    def _revoked(self, _: Consumer, partitions: Sequence[KafkaPartition]) -> None:
        assert self._assignment is not None
        self._look_at_group()
        self._unproved.difference_update(_places(partitions))
        self._assignment.revoked(_places(partitions))

    def _lost(self, _: Consumer, partitions: Sequence[KafkaPartition]) -> None:
        assert self._assignment is not None
        self._unproved.difference_update(_places(partitions))
        self._assignment.lost(_places(partitions))

    def _proved(self, messages: list[KafkaMessage]) -> list[KafkaMessage]:
        """Without those of partitions that begin before what is committed: these are sent to where they should be.

        If a transaction keeps brokers from saying what is committed, and there is a rebalance meanwhile, the library
        may take it for nothing committed, and begin at the beginning. Until they do say, nothing has come.
        """
        firsts: dict[TopicPartition, int] = {}
        for message in messages if self._unproved else ():
            if (place := _place(message)) in self._unproved:
                firsts.setdefault(place, int(message.offset() or 0))
        if not firsts:
            return messages
        consumer = self._its_consumer()
        try:
            known = consumer.committed(_partitions(firsts), timeout=_STABLE_S)
            if failed := next((each.error for each in known if each.error is not None), None):
                raise KafkaException(failed)
        except KafkaException as error:
            log.debug("what is committed cannot be asked for yet: %s", reason_of(error))
            wrong = firsts
        else:
            at = {TopicPartition(each.topic, each.partition): each.offset for each in known}
            wrong = {place: at[place] for place, first in firsts.items() if at[place] > first}
            self._unproved.difference_update(firsts)
        for place, offset in wrong.items():
            target = KafkaPartition(place.topic, place.partition, offset)
            self._try("sent to what is committed", partial(consumer.seek, target))
        return [message for message in messages if _place(message) not in wrong]

    def _is_sound(self, message: KafkaMessage) -> bool:
        error = message.error()
        if error is None:
            return True
        log.warning("a topic cannot be read", extra=fields(group=self._plan.group, error=error.str()))
        return False

    def _try(self, what: str, do: Callable[[], object]) -> None:
        """A partition that was taken away meanwhile is no failure."""
        try:
            do()
        except KafkaException as error:
            log.debug("partitions were not %s: %s", what, reason_of(error))


def _partitions(places: Iterable[TopicPartition]) -> list[KafkaPartition]:
    return [KafkaPartition(place.topic, place.partition) for place in places]


def _places(partitions: Iterable[KafkaPartition]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in partitions]


def _place(message: KafkaMessage) -> TopicPartition:
    return TopicPartition(str(message.topic()), int(message.partition() or 0))
