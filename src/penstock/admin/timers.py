"""Timers: messages that wait in a topic until they are due. Listed, found by id, cancelled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.admin.connection import AdminConnection
from penstock.admin.errors import REQUEST_TIMED_OUT, RESOURCE_NOT_FOUND, AdminError, UnreachableError, admin_error
from penstock.admin.results import Page, Results
from penstock.admin.topics import TopicOperations
from penstock.errors import Code
from penstock.sdk.errors import TopicError
from penstock.sdk.headers import CANCEL
from penstock.sdk.kafka.timer_reader import TimerReader
from penstock.sdk.timers import WaitingMessage


class TimerOperations:
    """Operations on messages that wait in a topic."""

    def __init__(self, connection: AdminConnection, topics: TopicOperations) -> None:
        self._connection = connection
        self._topics = topics

    def list(
        self,
        topic: str,
        *,
        due_from_ms: int = 0,
        due_until_ms: int | None = None,
        partition: int | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Page[WaitingMessage]:
        """Waiting messages by due time, without those that are due at `due_until_ms`. A page shows the messages that
        wait at the time of its request; later pages leave out those that are delivered or cancelled by then.
        """
        with self._opened(topic, partition) as room:
            starts = room.starts(due_from_ms) if after is None else _parse_starts(after)
            page = room.page(starts, due_from_ms, due_until_ms, limit)
        return Page(tuple(page.messages), _spell_starts(page.next) if page.next else None)

    def find(
        self, topic: str, ids: Iterable[str], *, partition: int | None = None
    ) -> Results[str, tuple[WaitingMessage, ...]]:
        """The messages that wait under a timer id: one in each partition that has it. RESOURCE_NOT_FOUND if none."""
        with self._opened(topic, partition) as room:
            found = {id: tuple(room.named(id)) for id in dict.fromkeys(ids)}
        return Results(
            {id: messages for id, messages in found.items() if messages},
            {id: _no_timer(topic, id) for id, messages in found.items() if not messages},
        )

    def cancel(self, topic: str, ids: Iterable[str], *, partition: int | None = None) -> Results[str, tuple[int, ...]]:
        """Cancels messages before they are delivered; gives the partitions in which each was cancelled."""
        waiting = self.find(topic, ids, partition=partition)
        wanted = {id: tuple(sorted({each.partition for each in found})) for id, found in waiting.values.items()}
        errors = self._send_cancellations(topic, wanted)
        return Results(
            {id: partitions for id, partitions in wanted.items() if id not in errors}, {**waiting.errors, **errors}
        )

    def _send_cancellations(self, topic: str, timers: Mapping[str, tuple[int, ...]]) -> dict[str, AdminError]:
        if not timers:
            return {}
        settings = self._connection.settings
        producer = Producer(
            settings.settings_for(
                {"enable.idempotence": True, "message.timeout.ms": int(self._connection.timeout_s * 1000)}
            )
        )
        errors: dict[str, AdminError] = {}
        unanswered = {(id, partition) for id, partitions in timers.items() for partition in partitions}

        def report(id: str, partition: int, error: KafkaError | None) -> None:
            unanswered.discard((id, partition))
            if error is not None:
                errors[id] = admin_error(error)

        for id, partition in sorted(unanswered):

            def on_delivery(error: KafkaError | None, _: object, id: str = id, partition: int = partition) -> None:
                report(id, partition, error)

            try:
                producer.produce(topic, None, partition=partition, headers=[(CANCEL, id)], on_delivery=on_delivery)
            except KafkaException as error:
                errors[id] = admin_error(error)
                unanswered.discard((id, partition))
        producer.flush(self._connection.timeout_s)
        for id, _ in unanswered:
            errors[id] = UnreachableError(REQUEST_TIMED_OUT, f"no answer within {self._connection.timeout_s:g} s")
        return errors

    @contextmanager
    def _opened(self, topic: str, partition: int | None) -> Iterator[TimerReader]:
        count = len(self._topics.describe([topic])[topic].partitions)
        if partition is not None and partition >= count:
            raise AdminError(Code.UNKNOWN_TOPIC_OR_PARTITION.name, f"topic {topic} has no partition {partition}")
        settings, timeout_s = self._connection.settings, self._connection.timeout_s
        try:
            with TimerReader(settings, topic, partition, partition_count=count, timeout_s=timeout_s) as room:
                yield room
        except TopicError as error:
            raise AdminError(Code.UNKNOWN_SERVER_ERROR.name, str(error)) from None


def _no_timer(topic: str, id: str) -> AdminError:
    return AdminError(RESOURCE_NOT_FOUND, f"no message waits in {topic} under the timer id {id}")


def _spell_starts(starts: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(starts.items()))


def _parse_starts(after: str) -> dict[int, int]:
    pairs = [item.partition(":") for item in after.split(",")]
    if not all(number.isascii() and number.isdigit() for one, _, other in pairs for number in (one, other)):
        raise AdminError(Code.INVALID_REQUEST.name, f"{after!r} does not continue a list of timers")
    return {int(partition): int(offset) for partition, _, offset in pairs}
