"""`penstock send`: sends messages, and prints where each landed or why it failed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from penstock.cli.connection import cluster_at, command_config, producer
from penstock.cli.failure import CommandError
from penstock.cli.formats import readable
from penstock.cli.interrupt import Interrupt, watch
from penstock.cli.messages.sources import generated, keyed, lines_of, repeated
from penstock.cli.options import Bootstrap, Json, bootstrap_of
from penstock.cli.output import pair, show_json

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

    from penstock.admin import Cluster

FAILURES_NAMED = 20
DELIVERY_MS = 30_000
GENERATED_BYTES = 100
CHOSEN_BY_KEY = -1


class Compression(StrEnum):
    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


class Acks(StrEnum):
    none = "0"
    leader = "1"
    all = "all"


def send(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to send to.")],
    message: Annotated[
        list[str] | None,
        typer.Argument(metavar="MESSAGE...", help="Messages; default: lines of standard input."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every message.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header; repeatable.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Partition to send to; default: by key.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read one message per line from FILE.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Split each message into key and value at TEXT.")
    ] = None,
    compression: Annotated[Compression, typer.Option(help="Compression of batches.")] = Compression.none,
    acks: Annotated[
        Acks, typer.Option(help="Brokers that must have a message: none, the leader, or all in sync.")
    ] = Acks.all,
    count: Annotated[
        int | None, typer.Option(min=1, help="Send N messages: generated, or the given ones repeated.")
    ] = None,
    size: Annotated[int | None, typer.Option(min=0, metavar="BYTES", help="Size of generated messages.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the summary.")] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Send messages and print where each landed.

    Messages are arguments, lines of --file or standard input, or generated with --count and --size.
    """
    headers: list[tuple[str, str | bytes | None]] = [pair(text, "--header") for text in header or ()]
    separator = key_separator.encode() if key_separator is not None else None
    if separator is not None and (key is not None or not separator):
        raise typer.BadParameter("must not be empty, and cannot be combined with --key", param_hint="--key-separator")
    values = _values([text.encode() for text in message or ()], file, count, size)
    at = bootstrap_of(context, bootstrap)
    cluster = cluster_at(at, command_config(context))
    client = producer(
        at,
        command_config(context),
        **{
            "acks": acks.value,
            "compression.type": compression.value,
            "delivery.timeout.ms": DELIVERY_MS,
            "topic.metadata.propagation.max.ms": 5000,
            # The broker's limit decides, not the library's.
            "message.max.bytes": 100_000_000,
            "linger.ms": 5,
        },
    )
    _check_partition(cluster, topic, partition)
    outgoing = MessageTemplate(
        topic=topic,
        key=key.encode() if key is not None else None,
        separator=separator,
        headers=headers,
        partition=CHOSEN_BY_KEY if partition is None else partition,
    )
    report = DeliveryReport(topic=topic, many=count is not None or quiet, json=json)
    with _progress(count) if count is not None else nullcontext(_no_progress) as advance:
        report.advance = advance
        try:
            _deliver(client, report, outgoing, values)
        except KeyboardInterrupt:
            if unknown := report.sent - report.landed - report.failed:
                typer.echo(f"penstock: stopped; {unknown} of {report.sent} may or may not have landed", err=True)
            raise
    report.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTemplate:
    """What all messages of one call have in common."""

    topic: str
    key: bytes | None
    separator: bytes | None
    headers: list[tuple[str, str | bytes | None]]
    partition: int


def _values(given: list[bytes], file: Path | None, count: int | None, size: int | None) -> Iterable[bytes]:
    """The messages' bytes from the one source that was named."""
    if size is not None and (given or file):
        raise typer.BadParameter("applies to generated messages only", param_hint="--size")
    if given and file:
        raise typer.BadParameter("give messages or --file, not both", param_hint="--file")
    if size is not None or (count is not None and not given and not file):
        return generated(count or 1, GENERATED_BYTES if size is None else size)
    values = lines_of(_opened(file)) if file else given or lines_of(sys.stdin.buffer)
    return repeated(values, count) if count is not None else values


def _opened(file: Path) -> BinaryIO:
    try:
        return file.open("rb")
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}") from None


def _check_partition(cluster: Cluster, topic: str, partition: int | None) -> None:
    """Fails at once where the library would time out. A topic that does not exist may be created on demand."""
    found = cluster.topics.describe([topic]).values.get(topic)
    if partition is not None and found is not None and partition >= len(found.partitions):
        last = len(found.partitions) - 1
        raise CommandError(f"topic {topic} has no partition {partition}: its partitions are 0 to {last}")


@dataclass(slots=True)
class DeliveryReport:
    """Counts and prints which messages landed and which failed."""

    topic: str
    many: bool
    json: bool
    advance: Any = None
    sent: int = 0
    landed: int = 0
    landed_bytes: int = 0
    failures: list[str] = field(default_factory=list)
    failed: int = 0

    def landing(self, number: int, key: bytes | None, message: Message) -> None:
        self.landed += 1
        self.landed_bytes += len(message.value() or b"")
        self.advance()
        if self.many:
            return
        # With acks=0 the broker does not tell the offset.
        offset = message.offset() if (message.offset() or 0) >= 0 else None
        if self.json:
            place = {"topic": message.topic(), "partition": message.partition(), "offset": offset}
            show_json({"message": number, **place})
        else:
            where = "offset unknown (acks=0)" if offset is None else f"@{offset}"
            shown = "" if key is None else f" key {readable(key)}"
            typer.echo(f"{message.topic()}-{message.partition()} {where}{shown}")

    def failure(self, number: int, reason: str) -> None:
        self.failed += 1
        self.advance()
        if self.failed <= FAILURES_NAMED:
            self.failures.append(f"message {number}: {reason}")
        if self.json and not self.many:
            show_json({"message": number, "error": reason})

    def finish(self) -> None:
        if self.json and self.many:
            summary = {"landed": self.landed, "bytes": self.landed_bytes, "failed": self.failed}
            show_json({"topic": self.topic, **summary})
        elif self.many:
            noun = "message" if self.landed == 1 else "messages"
            typer.echo(f"{self.landed} {noun} of {self.landed_bytes} bytes landed in {self.topic}")
        if not self.failed:
            return
        for failure in self.failures:
            typer.echo(failure, err=True)
        if self.failed > len(self.failures):
            typer.echo(f"and {self.failed - len(self.failures)} more", err=True)
        raise CommandError(f"{self.failed} of {self.sent} messages did not reach {self.topic}")


def _deliver(client: Producer, report: DeliveryReport, outgoing: MessageTemplate, values: Iterable[bytes]) -> None:
    with watch() as interrupt:
        try:
            for value in interrupt.letting(values):
                if interrupt.asked:
                    break
                report.sent += 1
                try:
                    key, rest = keyed(value, outgoing.key, outgoing.separator)
                except ValueError as error:
                    report.failure(report.sent, str(error))
                    continue
                _enqueue(client, report, outgoing, key, rest, interrupt)
                # A person at the keyboard sees the result before the next line; otherwise batches may fill.
                client.flush(1.0) if sys.stdin.isatty() and not report.many else client.poll(0)
        finally:
            # Also if the input breaks off: messages that were accepted are in flight and have to be reported.
            while client.flush(0.5) and not interrupt.asked:
                pass


def _enqueue(
    client: Producer,
    report: DeliveryReport,
    outgoing: MessageTemplate,
    key: bytes | None,
    value: bytes,
    interrupt: Interrupt,
) -> None:
    from confluent_kafka import KafkaError, KafkaException

    number = report.sent

    def done(error: KafkaError | None, message: Message) -> None:
        if error is None:
            report.landing(number, key, message)
        elif error.code() == KafkaError.TOPIC_EXCEPTION:
            report.failure(number, f"{report.topic} takes no messages: it is a view or an internal topic")
        else:
            report.failure(number, " ".join(error.str().split()))

    while not interrupt.asked:
        try:
            client.produce(outgoing.topic, value, key, outgoing.partition, headers=outgoing.headers, on_delivery=done)
            return
        except BufferError:
            client.poll(0.1)
        except KafkaException as error:
            report.failure(number, " ".join(error.args[0].str().split()))
            return


def _no_progress() -> None:
    """Nothing to move on: messages are printed as they land."""


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield _no_progress
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sending", total=total)
        yield lambda: bar.advance(task)
