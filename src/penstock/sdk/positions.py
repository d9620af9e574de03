"""Where logs begin and end, as their leaders tell. The client library asks once; here they are asked again while they
move.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

_PAUSE_S = 0.1
_TRY_S = 4.0
"""A broker that was killed is not waited for longer; another leads, or soon does."""
_ASKED_AGAIN = frozenset(
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


@dataclass(frozen=True, slots=True)
class Positions:
    """What was asked for, each either told or refused."""

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    errors: dict[TopicPartition, KafkaException] = field(default_factory=dict)

    def all(self) -> dict[TopicPartition, int]:
        """KafkaException if one was refused."""
        for error in self.errors.values():
            raise error
        return self.offsets


def positions(
    admin: AdminClient, asked: Mapping[TopicPartition, OffsetSpec], within_s: float, *, committed: bool = False
) -> Positions:
    """Offsets by partition; -1 where a partition has none such."""
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    try_s = min(within_s, _TRY_S)
    deadline, found, left = time.monotonic() + within_s, Positions(), dict(asked)
    while left:
        errors: dict[TopicPartition, KafkaException] = {}
        for place, answer in admin.list_offsets(left, isolation_level=level, request_timeout=try_s).items():
            try:
                offset = answer.result().offset
            except KafkaException as error:
                errors[place] = error
                continue
            if offset == OFFSET_INVALID:
                # The library's word for a partition about which a broker was asked that has gone away.
                errors[place] = KafkaException(KafkaError(KafkaError._TRANSPORT, "the broker went away"))
            else:
                found.offsets[place] = offset
        moving = {place for place, error in errors.items() if error.args[0].code() in _ASKED_AGAIN}
        is_over = time.monotonic() > deadline
        found.errors.update((place, error) for place, error in errors.items() if is_over or place not in moving)
        left = {} if is_over else {place: asked[place] for place in left if place in moving}
        if left:
            time.sleep(_PAUSE_S)
            _look_again(admin, {place.topic for place in left}, try_s)
    return found


def _look_again(admin: AdminClient, topics: Iterable[str], within_s: float) -> None:
    """The library goes on asking who led when it last looked, until it is made to look again."""
    for topic in topics:
        with suppress(KafkaException):
            admin.list_topics(topic, timeout=within_s)
