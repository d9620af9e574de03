"""Options of `format("penstock")`: strings in, checked values out.

Rules:
- Names and meanings are those of Spark's own Kafka source where it has them. Spark hands names over in lower case.
- This module checks everything before any request to a broker; an error names the option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.pipeline.failure import OptionError

EARLIEST = -2
LATEST = -1

DECODABLE = ("tags", "biz_id", "due")

KAFKA_PREFIX = "kafka."
SERVERS = "bootstrap.servers"
ISOLATION = "isolation.level"
_ISOLATIONS = ("read_committed", "read_uncommitted")

# What the source itself decides; a reader or writer that set them would break it.
_OURS = (
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "enable.partition.eof",
    "transactional.id",
    "enable.idempotence",
)

_POLL_TIMEOUT_MS = 60_000

_READING = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "decode",
    "pushFilters",
    "kafkaConsumer.pollTimeoutMs",
)
_WRITING = ("topic", "writeId")
# Spark's own, which it shows to sources and sinks as well.
_SPARKS = ("checkpointLocation", "queryName", "path")

ByPartition = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Everywhere:
    """EARLIEST or LATEST, or one offset, for every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """An offset for each partition; EARLIEST and LATEST are allowed."""

    each: ByPartition


@dataclass(frozen=True, slots=True)
class Time:
    """The first offset that is as young, for every partition."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class Times:
    """The first offset that is as young, with a time for each partition."""

    each: ByPartition


Position = Everywhere | Offsets | Time | Times


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Which partitions are read: of exactly one kind."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] | None = None

    def of(self, names: Iterable[str]) -> list[str]:
        """The topics to read, of all those there are if a pattern chooses."""
        if self.pattern is not None:
            return sorted(name for name in names if re.fullmatch(self.pattern, name))
        return sorted(self.partitions if self.partitions is not None else self.topics)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How topics are read."""

    kafka: Mapping[str, str]
    subscription: TopicSelection
    starting: Position
    ending: Position
    falls_back_to_latest: bool
    max_offsets: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    headers: bool
    decode: tuple[str, ...]
    push_filters: bool
    poll_timeout_ms: int

    @property
    def is_read_committed(self) -> bool:
        return self.kafka[ISOLATION] == "read_committed"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How rows become records."""

    kafka: Mapping[str, str]
    topic: str | None
    write_id: str | None


def parse_reading(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """The options of a read or a stream."""
    given = _Given(options, _READING)
    for ours in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if streaming and given.text(ours) is not None:
            raise OptionError(f"{ours}: a stream has no end")
    if not streaming and given.text("maxOffsetsPerTrigger") is not None:
        raise OptionError("maxOffsetsPerTrigger: only streams have triggers")
    starting = given.position("starting", Everywhere(LATEST if streaming else EARLIEST))
    ending = given.position("ending", Everywhere(LATEST))
    if not streaming:
        _check_sides(starting, ending)
    return ReadOptions(
        kafka=_isolated(given.kafka()),
        subscription=given.subscription(),
        starting=starting,
        ending=ending,
        falls_back_to_latest=given.choice("startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
        max_offsets=given.number("maxOffsetsPerTrigger"),
        min_partitions=given.number("minPartitions"),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        headers=given.flag("includeHeaders", False),
        decode=given.several("decode", DECODABLE),
        push_filters=given.flag("pushFilters", False),
        poll_timeout_ms=given.number("kafkaConsumer.pollTimeoutMs") or _POLL_TIMEOUT_MS,
    )


def parse_writing(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """The options of a write or of a stream's sink."""
    given = _Given(options, _WRITING)
    write_id = given.text("writeId")
    if streaming and write_id is not None:
        raise OptionError("writeId: a stream is known by the id in its checkpoint")
    if write_id is not None and not re.fullmatch(r"[A-Za-z0-9._-]{1,150}", write_id):
        raise OptionError(f"writeId {write_id!r}: allowed are up to 150 letters, digits, dots, dashes and underscores")
    return WriteOptions(kafka=given.kafka(), topic=given.text("topic"), write_id=write_id)


class _Given:
    """The options that the caller set, by name."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        names = {name.lower() for name in (*known, *_SPARKS)}
        for name in self._options:
            if name not in names and not name.startswith(KAFKA_PREFIX):
                raise OptionError(f"{name}: there is no such option; known are {', '.join(known)} and kafka.*")

    def text(self, name: str) -> str | None:
        value = self._options.get(name.lower())
        if value is not None and not value.strip():
            raise OptionError(f"{name}: is empty")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionError(f"{name} {value!r}: allowed are true and false")
        return value.lower() == "true"

    def number(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.strip().isdecimal() or int(value) < 1:
            raise OptionError(f"{name} {value!r}: allowed is a number from 1")
        return int(value)

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        value = self.text(name) or allowed[0]
        if value.lower() not in allowed:
            raise OptionError(f"{name} {value!r}: allowed are {' and '.join(allowed)}")
        return value.lower()

    def several(self, name: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
        wanted = [word.strip() for word in (self.text(name) or "").split(",") if word.strip()]
        for word in wanted:
            if word not in allowed:
                raise OptionError(f"{name} {word!r}: allowed are {', '.join(allowed)}")
        return tuple(word for word in allowed if word in wanted)

    def kafka(self) -> dict[str, str]:
        kafka = {
            name.removeprefix(KAFKA_PREFIX): value
            for name, value in self._options.items()
            if name.startswith(KAFKA_PREFIX)
        }
        if not kafka.get(SERVERS, "").strip():
            raise OptionError("kafka.bootstrap.servers: is required, as HOST:PORT or several of them")
        for ours in _OURS:
            if ours in kafka:
                raise OptionError(f"kafka.{ours}: is decided by the source")
        return kafka

    def subscription(self) -> TopicSelection:
        names = [name for name in ("subscribe", "subscribePattern", "assign") if self.text(name) is not None]
        if len(names) != 1:
            found = " and ".join(names) or "none"
            raise OptionError(f"exactly one of subscribe, subscribePattern and assign is needed, found {found}")
        value = self.text(names[0]) or ""
        if names[0] == "subscribe":
            topics = {word.strip() for word in value.split(",")}
            if "" in topics:
                raise OptionError(f"subscribe {value!r}: a topic's name is empty")
            return TopicSelection(topics=tuple(sorted(topics)))
        if names[0] == "subscribePattern":
            try:
                re.compile(value)
            except re.error as error:
                raise OptionError(f"subscribePattern {value!r}: {error}") from None
            return TopicSelection(pattern=value)
        return TopicSelection(partitions=_assigned(value))

    def position(self, side: str, default: Position) -> Position:
        """Where to start or end; more exact options may not stand beside others."""
        names = [f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"]
        found = [name for name in names if self.text(name) is not None]
        if len(found) > 1:
            raise OptionError(f"{' and '.join(found)}: only one of them can be")
        if not found:
            return default
        name, value = found[0], self.text(found[0]) or ""
        if name == names[0]:
            if not value.strip().isdecimal():
                raise OptionError(f"{name} {value!r}: allowed are milliseconds since 1970")
            return Time(int(value))
        if name == names[1]:
            return Times(_numbers(name, value, lowest=0))
        if value.lower() == "latest" or (value.lower() == "earliest" and side == "starting"):
            return Everywhere(LATEST if value.lower() == "latest" else EARLIEST)
        if not value.lstrip().startswith("{"):
            words = "earliest, latest" if side == "starting" else "latest"
            raise OptionError(f"{name} {value!r}: allowed are {words} and JSON")
        return Offsets(_numbers(name, value, lowest=EARLIEST if side == "starting" else LATEST))


def _isolated(kafka: dict[str, str]) -> dict[str, str]:
    level = kafka.setdefault(ISOLATION, _ISOLATIONS[0])
    if level not in _ISOLATIONS:
        raise OptionError(f"kafka.{ISOLATION} {level!r}: allowed are {' and '.join(_ISOLATIONS)}")
    return kafka


def _check_sides(starting: Position, ending: Position) -> None:
    if starting == Everywhere(LATEST):
        raise OptionError("startingOffsets 'latest': a table would always be empty")
    if isinstance(starting, Time) and isinstance(ending, Time) and ending.time_ms < starting.time_ms:
        raise OptionError(f"endingTimestamp {ending.time_ms}: is before startingTimestamp {starting.time_ms}")


def _loaded(name: str, value: str) -> dict[str, Any]:
    try:
        loaded = json.loads(value)
    except ValueError as error:
        raise OptionError(f"{name} {value!r}: is not JSON ({error})") from None
    if not isinstance(loaded, dict) or not loaded:
        raise OptionError(f"{name} {value!r}: has to be an object with a topic or more")
    return loaded


def _assigned(value: str) -> dict[str, tuple[int, ...]]:
    example = '{"orders":[0,1]}'
    assigned = {}
    for topic, partitions in _loaded("assign", value).items():
        if not isinstance(partitions, list) or not partitions or not all(_is_count(each) for each in partitions):
            raise OptionError(f"assign {value!r}: {topic} needs a list of partitions, as in {example}")
        assigned[topic] = tuple(sorted(set(partitions)))
    return assigned


def _numbers(name: str, value: str, *, lowest: int) -> dict[str, dict[int, int]]:
    example = '{"orders":{"0":23}}'
    numbers: dict[str, dict[int, int]] = {}
    for topic, each in _loaded(name, value).items():
        if not isinstance(each, dict):
            raise OptionError(f"{name} {value!r}: {topic} needs a number for each partition, as in {example}")
        for partition, number in each.items():
            if not partition.isdecimal():
                raise OptionError(f"{name} {value!r}: {topic} has no partition {partition!r}")
            if isinstance(number, bool) or not isinstance(number, int) or number < lowest:
                raise OptionError(f"{name} {value!r}: {topic}-{partition} needs a number from {lowest}")
            numbers.setdefault(topic, {})[int(partition)] = number
    return numbers


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
