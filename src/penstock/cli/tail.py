"""`penstock tail`: records as they are in the partitions, without joining a group or leaving a trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.client import TIMEOUT_S, consumer, metadata, require_listener, saying, topic_of, unreachable
from penstock.cli.failure import CommandError
from penstock.cli.formats import Format, Shown, parse_format
from penstock.cli.interrupt import watch
from penstock.cli.options import Bootstrap, Json, bootstrap_of
from penstock.cli.positions import At, Position, Since, first_offset, parse_position
from penstock.clock import SystemClock

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

BATCH = 500
POLL_S = 0.2


def tail(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this one; repeatable.")
    ] = None,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="beginning, end, an offset, -N (last N of each partition), an ISO time, or '10m ago'.",
        ),
    ] = "-10",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for what comes.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after so many.")] = None,
    format: Annotated[str, typer.Option(help="line, json, or a pattern such as '%t %p %o %k %v %T %h'.")] = "line",
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Print the records of a topic; without --follow, up to what is there now."""
    try:
        position = parse_position(from_, SystemClock().now_ms())
    except ValueError as error:
        raise typer.BadParameter(f"{from_!r}: allowed is {error}", param_hint="--from") from None
    try:
        shown = parse_format("json" if json else format)
    except ValueError as error:
        raise typer.BadParameter(f"{format!r}: allowed is {error}", param_hint="--format") from None
    at = bootstrap_of(context, bootstrap)
    require_listener(at)
    link = Link(at, follow)
    client = consumer(at, **{"enable.partition.eof": True, "auto.offset.reset": "earliest", "error_cb": link.trouble})
    try:
        partitions = _partitions(client, at, topic, partition)
        with saying(f"topic {topic} cannot be read"):
            ranges = _ranges(client, topic, partitions)
            starts = _starts(client, topic, position, ranges)
        # What is already at its end has nothing to show unless more is waited for.
        ends = {number: high for number, (_, high) in ranges.items()}
        wanted = {number: start for number, start in starts.items() if follow or start < ends[number]}
        _read(client, link, topic, wanted, None if follow else ends, count, shown)
    finally:
        client.close()


class Link:
    """Whether the broker is still there while its topic is read.

    A reader that wants what is there now gives up with the broker; one that follows waits for its return.
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
            raise unreachable(self._bootstrap, self._lost)
        elif self._lost and not self._told:
            typer.echo(f"penstock: waiting for the broker to come back ({self._lost})", err=True)
            self._told = True


def _partitions(client: Consumer, at: str, topic: str, chosen: list[int] | None) -> list[int]:
    found = sorted(topic_of(metadata(client, at), topic).partitions)
    for number in chosen or ():
        if number not in found:
            raise CommandError(f"topic {topic} has no partition {number}: they go from 0 to {found[-1]}")
    return sorted(set(chosen)) if chosen else found


def _ranges(client: Consumer, topic: str, partitions: list[int]) -> dict[int, tuple[int, int]]:
    from confluent_kafka import TopicPartition

    return {
        number: client.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT_S) for number in partitions
    }


def _starts(client: Consumer, topic: str, position: Position, ranges: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    from confluent_kafka import TopicPartition

    since: dict[int, int | None] = {}
    if isinstance(position, Since):
        asked = [TopicPartition(topic, number, position.time_ms) for number in ranges]
        for answer in client.offsets_for_times(asked, timeout=TIMEOUT_S):
            since[answer.partition] = answer.offset if answer.offset >= 0 else None
    starts = {}
    for number, (low, high) in ranges.items():
        starts[number] = first_offset(position, low, high, since.get(number))
        if isinstance(position, At) and starts[number] != position.offset:
            typer.echo(
                f"{topic}-{number} holds offsets from {low} up to {high}, begins at {starts[number]}",
                err=True,
            )
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
    from confluent_kafka import KafkaError, TopicPartition

    if not starts:
        return
    client.assign([TopicPartition(topic, number, start) for number, start in starts.items()])
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
                    else:
                        raise CommandError(f"{topic}-{number}: {' '.join(error.str().split())}")
                    continue
                record = _shown(message)
                # A partition that grew while it was read ends where it ended when we began.
                if ends is None or record.offset < ends[number]:
                    typer.echo(shown(record))
                    if left is not None:
                        left -= 1
                if ends is not None and record.offset + 1 >= ends[number]:
                    unfinished.discard(number)
            link.check(bool(batch))


def _shown(message: Message) -> Shown:
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

    kind, timestamp_ms = message.timestamp()
    # The library types every part as perhaps absent; of a message without an error none is.
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None and partition is not None and offset is not None
    headers: Any = message.headers() or ()
    return Shown(
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        key=message.key(),
        value=message.value(),
        headers=headers,
    )
