"""`penstock tail`: the records of a topic, read without joining a group or committing anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.connection import cluster_at, command_config, consumer, failing_as, with_start_hint
from penstock.cli.failure import CommandError
from penstock.cli.formats import DisplayedRecord, Format, parse_format
from penstock.cli.interrupt import watch
from penstock.cli.options import Bootstrap, Json, bootstrap_of
from penstock.cli.positions import parse_position
from penstock.clock import SystemClock
from penstock.ids import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

    from penstock.admin import Cluster, OffsetBounds, Position

BATCH = 500
POLL_S = 0.2


def tail(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; repeatable.")
    ] = None,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="Where to start: beginning, end, an offset, -N (last N of each partition), an ISO time, or '10m ago'.",
        ),
    ] = "-10",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after N records.")] = None,
    format: Annotated[str, typer.Option(help="line, json, or a pattern such as '%t %p %o %k %v %T %h'.")] = "line",
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Print the records of a topic; without --follow, up to its current end."""
    try:
        position = parse_position(from_, SystemClock().now_ms())
    except ValueError as error:
        raise typer.BadParameter(f"{from_!r}: expected {error}", param_hint="--from") from None
    try:
        shown = parse_format("json" if json else format)
    except ValueError as error:
        raise typer.BadParameter(f"{format!r}: expected {error}", param_hint="--format") from None
    at = bootstrap_of(context, bootstrap)
    cluster = cluster_at(at, command_config(context))
    partitions = _partitions(cluster, topic, partition)
    with failing_as(f"topic {topic} cannot be read"):
        ranges = cluster.offsets.ranges(partitions).all()
        starts = _starts(cluster, position, ranges)
    # Without --follow, partitions that are read to their end have nothing to show.
    ends = {place.partition: held.end for place, held in ranges.items()}
    wanted = {place.partition: start for place, start in starts.items() if follow or start < ranges[place].end}
    link = Link(at, follow)
    ours = {"enable.partition.eof": True, "auto.offset.reset": "earliest", "error_cb": link.trouble}
    client = consumer(at, command_config(context), **ours)
    try:
        _read(client, link, topic, wanted, None if follow else ends, count, shown)
    finally:
        client.close()


class Link:
    """Watches the connection while a topic is read: without --follow a lost broker ends the command, with it the
    command waits for the broker to return.
    """

    def __init__(self, bootstrap: str, patient: bool) -> None:
        self._bootstrap = bootstrap
        self._patient = patient
        self._lost: str | None = None
        self._told = False

    def trouble(self, error: KafkaError) -> None:
        """Called by the library."""
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._lost = " ".join(error.str().split())

    def check(self, something_came: bool) -> None:
        """Called after every wait for records."""
        if something_came:
            self._lost, self._told = None, False
        elif self._lost and not self._patient:
            raise with_start_hint(self._bootstrap, f"no broker answers ({self._lost})")
        elif self._lost and not self._told:
            typer.echo(f"penstock: waiting for the broker to return ({self._lost})", err=True)
            self._told = True


def _partitions(cluster: Cluster, topic: str, chosen: list[int] | None) -> list[TopicPartition]:
    found = cluster.topics.describe([topic])[topic].topic_partitions
    for number in chosen or ():
        if number >= len(found):
            raise CommandError(f"topic {topic} has no partition {number}: its partitions are 0 to {len(found) - 1}")
    return [found[number] for number in sorted(set(chosen))] if chosen else found


def _starts(
    cluster: Cluster, position: Position, ranges: Mapping[TopicPartition, OffsetBounds]
) -> Mapping[TopicPartition, int]:
    from penstock.admin import AtOffset

    starts = cluster.offsets.resolve(ranges, position).all()
    for place, start in starts.items():
        if isinstance(position, AtOffset) and start != position.offset:
            held = ranges[place]
            typer.echo(f"{place} has offsets {held.start} to {held.end}; starting at {start}", err=True)
    return starts


def _read(
    client: Consumer,
    link: Link,
    topic: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int] | None,
    count: int | None,
    shown: Format,
) -> None:
    """Prints records until `count` are shown or, with `ends`, every partition has reached its end."""
    from confluent_kafka import KafkaError
    from confluent_kafka import TopicPartition as LibraryPartition

    from penstock.sdk.kafka.unused_group import concerns_unused_group

    if not starts:
        return
    client.assign([LibraryPartition(topic, number, start) for number, start in starts.items()])
    unfinished = set(starts)
    left = count
    with watch() as interrupt:
        while unfinished and left != 0 and not interrupt.asked:
            batch = client.consume(num_messages=BATCH if left is None else min(BATCH, left), timeout=POLL_S)
            for message in batch:
                number, error = message.partition() or 0, message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        if ends is not None:
                            unfinished.discard(number)
                    elif not concerns_unused_group(error):
                        raise CommandError(f"{topic}-{number}: {' '.join(error.str().split())}")
                    continue
                record = _shown(message)
                # Records that were appended after the command started are not shown.
                if ends is None or record.offset < ends[number]:
                    typer.echo(shown(record))
                    if left is not None:
                        left -= 1
                if ends is not None and record.offset + 1 >= ends[number]:
                    unfinished.discard(number)
            link.check(bool(batch))


def _shown(message: Message) -> DisplayedRecord:
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

    kind, timestamp_ms = message.timestamp()
    # The library types every part as perhaps absent; of a message without an error none is.
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None and partition is not None and offset is not None
    headers: Any = message.headers() or ()
    return DisplayedRecord(
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        key=message.key(),
        value=message.value(),
        headers=headers,
    )
