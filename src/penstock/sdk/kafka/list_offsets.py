"""Looks up start and end offsets, and repeats lookups during leader changes, which librdkafka does not."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from confluent_kafka import (
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

_RETRY_WAIT_S = 0.1
_ATTEMPT_TIMEOUT_S = 4.0
"""How long to wait for a killed broker; another one soon leads."""
_RETRIABLE = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
_UNKNOWN = frozenset({KafkaError._NOENT, KafkaError.UNKNOWN_TOPIC_OR_PART})


@dataclass(frozen=True, slots=True)
class ListedOffsets:
    """An offset or an error for each partition."""

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    errors: dict[TopicPartition, KafkaException] = field(default_factory=dict)

    def all(self) -> dict[TopicPartition, int]:
        """All offsets. Raises the first error."""
        for error in self.errors.values():
            raise error
        return self.offsets


def list_offsets(
    admin: AdminClient, specs: Mapping[TopicPartition, OffsetSpec], timeout_s: float, *, committed: bool = False
) -> ListedOffsets:
    """Offsets by partition; -1 where there is none."""
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    attempt_timeout_s = min(timeout_s, _ATTEMPT_TIMEOUT_S)
    deadline, found, left = time.monotonic() + timeout_s, ListedOffsets(), dict(specs)
    while left:
        errors: dict[TopicPartition, KafkaException] = {}
        for tp, answer in admin.list_offsets(left, isolation_level=level, request_timeout=attempt_timeout_s).items():
            try:
                offset = answer.result().offset
            except KafkaException as error:
                errors[tp] = error
                continue
            if offset == OFFSET_INVALID:
                # librdkafka's answer for a broker that went away.
                errors[tp] = KafkaException(KafkaError(KafkaError._TRANSPORT, "the broker went away"))
            else:
                found.offsets[tp] = offset
        errors.update(_explain_unknown(admin, errors, attempt_timeout_s))
        retriable = {tp for tp, error in errors.items() if error.args[0].code() in _RETRIABLE}
        is_over = time.monotonic() > deadline
        found.errors.update((tp, error) for tp, error in errors.items() if is_over or tp not in retriable)
        left = {} if is_over else {tp: specs[tp] for tp in left if tp in retriable}
        if left:
            time.sleep(_RETRY_WAIT_S)
            _refresh_metadata(admin, {tp.topic for tp in left}, attempt_timeout_s)
    return found


def _explain_unknown(
    admin: AdminClient, errors: Mapping[TopicPartition, KafkaException], timeout_s: float
) -> dict[TopicPartition, KafkaException]:
    """Tell partitions that do not exist from those that have no leader, for which librdkafka has the same error
    (_NOENT), and from new ones: a leader that is still making the log does not know the partition.
    """
    unknown = [tp for tp, error in errors.items() if error.args[0].code() in _UNKNOWN]
    counts = {topic: _count_partitions(admin, topic, timeout_s) for topic in {tp.topic for tp in unknown}}
    return {
        tp: KafkaException(
            KafkaError(
                KafkaError.LEADER_NOT_AVAILABLE if tp.partition < counts[tp.topic] else KafkaError.UNKNOWN_TOPIC_OR_PART
            )
        )
        for tp in unknown
    }


def _count_partitions(admin: AdminClient, topic: str, timeout_s: float) -> float:
    """Infinite if the brokers do not answer. Unlike `list_topics`, this creates no topic."""
    try:
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)[topic].result()
    except KafkaException as error:
        return 0 if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART else math.inf
    return len(described.partitions)


def _refresh_metadata(admin: AdminClient, topics: Iterable[str], timeout_s: float) -> None:
    """Refresh metadata: librdkafka keeps asking the previous leader otherwise."""
    for topic in topics:
        with suppress(KafkaException):
            admin.list_topics(topic, timeout=timeout_s)
