"""Appends messages in a transaction that the application has begun: chooses partitions, makes nothing and waits for
nothing.

Everything here runs inside that transaction, in its thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.brokerless.partitioner import partition_of_key
from penstock.brokerless.sql import appends
from penstock.brokerless.sql.appends import PartitionRef
from penstock.clock import SystemClock
from penstock.cluster.metadata import DEFAULT_DATABASE
from penstock.ids import TopicPartition
from penstock.sdk.errors import TopicError
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sql.database import Connection


class UnpreparedError(Exception):
    """A topic, or its tables, may have to be made first."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic


Refs = Callable[[str], Mapping[int, PartitionRef | None]]
"""The partitions of a topic by number; None for those in other databases. Raises `UnpreparedError` or `TopicError`."""


def append_messages(
    connection: Connection,
    messages: Sequence[Outgoing],
    refs: Refs,
    choose: Callable[[int], int],
    *,
    locks_by_update: bool = False,
) -> list[Receipt]:
    """Where messages are, if the transaction commits. `choose` gives the number of one of so many partitions. Raises
    `StoreRefusedError` and `TopicError`.
    """
    by_partition: dict[TopicPartition, list[Outgoing]] = {}
    found: dict[TopicPartition, PartitionRef] = {}
    places: list[tuple[TopicPartition, int]] = []
    for message in messages:
        ref = _ref(message, refs(message.topic), choose)
        found[ref.topic_partition] = ref
        some = by_partition.setdefault(ref.topic_partition, [])
        places.append((ref.topic_partition, len(some)))
        some.append(message)
    now_ms = SystemClock().now_ms()
    prepared = [appends.prepared_unsequenced(found[tp], some, now_ms) for tp, some in by_partition.items()]
    try:
        done = appends.append(connection, prepared, heeds_turn=False, locks_by_update=locks_by_update)
    except appends.QueueMissingError as error:
        raise TopicError(f"{error} is not in this database any more; nothing was sent") from None
    offsets = dict(zip(by_partition, done.offsets, strict=True))
    return [Receipt(tp.topic, tp.partition, offsets[tp][place]) for tp, place in places]


def _ref(
    message: Outgoing, partitions: Mapping[int, PartitionRef | None], choose: Callable[[int], int]
) -> PartitionRef:
    if message.partition is not None:
        number = message.partition
        if number not in partitions:
            raise TopicError(f"topic {message.topic} has no partition {number}: it has {len(partitions)}")
    elif message.key is not None:
        number = partition_of_key(message.key, len(partitions))
    else:
        here = [each for each, ref in partitions.items() if ref is not None]
        if not here:
            raise TopicError(f"topic {message.topic} has no partition in the {DEFAULT_DATABASE} database group")
        number = here[choose(len(here))]
    ref = partitions[number]
    if ref is None:
        raise TopicError(
            f"partition {number} of {message.topic} is in another database group: a transaction cannot reach it"
        )
    return ref
