"""From options to offsets: where each partition begins and ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.ids import TopicPartition
from penstock.pipeline.failure import DataLossError, OptionError, PipelineError
from penstock.pipeline.topics.kafka import Brokers, Topic
from penstock.pipeline.topics.options import (
    EARLIEST,
    LATEST,
    ByPartition,
    Everywhere,
    Offsets,
    Position,
    ReadOptions,
    Time,
    Times,
    TopicSelection,
)
from penstock.pipeline.topics.ranges import Range


def subscribed(brokers: Brokers, subscription: TopicSelection) -> dict[str, Topic]:
    """The topics to read, with those of their partitions that are to be read."""
    names = subscription.of(brokers.names() if subscription.pattern is not None else ())
    found = brokers.topics(names)
    for name in names:
        if name not in found and subscription.pattern is None:
            raise PipelineError(f"there is no topic {name}")
    if subscription.partitions is None:
        return found
    for name, numbers in subscription.partitions.items():
        for number in numbers:
            if number not in found[name].partitions:
                raise OptionError(f"assign: topic {name} has no partition {number}")
    return {name: Topic(name, found[name].topic_id, numbers) for name, numbers in subscription.partitions.items()}


def partitions_of(topics: Iterable[Topic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]


def planned(brokers: Brokers, reading: ReadOptions) -> list[Range]:
    """What a table holds now."""
    topics = subscribed(brokers, reading.subscription)
    partitions = partitions_of(topics.values())
    firsts = brokers.first_offsets(partitions)
    lasts = brokers.end_offsets(partitions, committed=reading.is_read_committed)
    starts = start_offsets(brokers, reading, firsts, lasts)
    ends = end_offsets(brokers, reading, lasts)
    return [
        Range(at.topic, topics[at.topic].topic_id, at.partition, starts[at], max(starts[at], ends[at]))
        for at in partitions
    ]


def start_offsets(
    brokers: Brokers,
    reading: ReadOptions,
    firsts: Mapping[TopicPartition, int],
    lasts: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Where reading starts; an offset that is gone is an error, or the first that there is."""
    starts = {}
    asked = _offsets(brokers, reading.starting, "starting", lasts)
    for at, offset in asked.items():
        if offset is None:
            if isinstance(reading.starting, Time | Times) and not reading.falls_back_to_latest:
                raise OptionError(
                    f"startingTimestamp: {at} has nothing that young; "
                    "startingOffsetsByTimestampStrategy=latest starts at its end"
                )
            offset = LATEST
        if offset == EARLIEST:
            starts[at] = firsts[at]
        elif offset == LATEST:
            starts[at] = lasts[at]
        elif firsts[at] <= offset <= lasts[at]:
            starts[at] = offset
        elif reading.fail_on_data_loss:
            raise DataLossError(
                f"{at}: offset {offset} is not there, the log holds {firsts[at]} to {lasts[at]}; "
                "failOnDataLoss=false starts at what there is"
            )
        else:
            starts[at] = min(max(offset, firsts[at]), lasts[at])
    return starts


def end_offsets(
    brokers: Brokers, reading: ReadOptions, lasts: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Where reading of a table ends."""
    ends = {}
    for at, offset in _offsets(brokers, reading.ending, "ending", lasts).items():
        if offset is None or offset == LATEST:
            ends[at] = lasts[at]
        elif offset > lasts[at] and isinstance(reading.ending, Offsets):
            raise OptionError(f"endingOffsets: {at} ends at {lasts[at]}, before {offset}")
        else:
            ends[at] = min(offset, lasts[at])
    return ends


def _offsets(
    brokers: Brokers, position: Position, side: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """The requested offsets; None where nothing is young enough."""
    if isinstance(position, Everywhere):
        return dict.fromkeys(partitions, position.offset)
    if isinstance(position, Offsets):
        return dict(_each(position.each, partitions, f"{side}Offsets"))
    if isinstance(position, Time):
        return brokers.offsets_since(dict.fromkeys(partitions, position.time_ms))
    return brokers.offsets_since(_each(position.each, partitions, f"{side}OffsetsByTimestamp"))


def _each(each: ByPartition, partitions: Iterable[TopicPartition], option: str) -> dict[TopicPartition, int]:
    """The number given for each partition: for all that are read, and for no others."""
    given = {TopicPartition(topic, number): value for topic, by in each.items() for number, value in by.items()}
    wanted = list(partitions)
    for at in wanted:
        if at not in given:
            raise OptionError(f"{option}: says nothing of {at}, which is read")
    for at in given:
        if at not in wanted:
            raise OptionError(f"{option}: {at} is not read")
    return given
