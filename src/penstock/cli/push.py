"""`penstock push`: delivers the messages of topics to an HTTP endpoint, each until the endpoint accepts it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connection import command_config, require_listener
from penstock.cli.failure import CommandError
from penstock.cli.options import Bootstrap, Json, bootstrap_of
from penstock.cli.output import pairs, show_json
from penstock.durations import parse_duration
from penstock.errors import ConfigError
from penstock.extras import missing_extra

if TYPE_CHECKING:
    from penstock.push.push_counts import PushCounter, PushCounts

_MOST_CONCURRENCY = 1000
_MOST_BATCH = 10_000
_TICKS_PER_SECOND = 2
_ERROR_CHARS = 60


def push(
    context: typer.Context,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics to deliver.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="Endpoint: http:// or https://.")],
    group: Annotated[str, typer.Option("--group", "-g", help="Consumer group that records what was delivered.")],
    secret_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Sign each request with the secret in this file.")
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Maximum time per request.")] = "30s",
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency", "-c", min=1, max=_MOST_CONCURRENCY, help="Maximum number of concurrent requests."
        ),
    ] = 16,
    rate: Annotated[float | None, typer.Option(metavar="NUMBER", help="Maximum messages per second.")] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, max=_MOST_BATCH, help="Send up to N messages per request, as a JSON array.")
    ] = None,
    ordered: Annotated[bool, typer.Option("--ordered", help="Deliver messages with the same key in order.")] = False,
    tags: Annotated[str | None, typer.Option(metavar="EXPRESSION", help="Only messages with these tags.")] = None,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts before a message becomes a dead letter.")] = 8,
    first: Annotated[str, typer.Option(metavar="TIME", help="Delay after the first failure.")] = "1s",
    factor: Annotated[
        float, typer.Option(metavar="NUMBER", help="Each further delay is this many times longer.")
    ] = 2.0,
    cap: Annotated[str, typer.Option(metavar="TIME", help="Maximum delay.")] = "10m",
    reject_on: Annotated[
        str, typer.Option(metavar="STATUS,...", help="Response statuses that make a message a dead letter at once.")
    ] = "410",
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate authorities to trust instead of the system's.")
    ] = None,
    settings_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="librdkafka settings, one NAME=VALUE per line, such as security.protocol=ssl."
        ),
    ] = None,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning/--from-end", help="Where a new group starts: at the oldest message, or at the end."
        ),
    ] = True,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Deliver messages by HTTP POST, each until the endpoint accepts it.

    A 2xx status acknowledges a message. With 429 and 503 the endpoint can say when to retry (Retry-After). Any other
    status, and no answer, are retried; after the last attempt the message becomes a dead letter of the group. SIGTERM
    or Ctrl-C stops the command after the requests in flight.
    """
    import asyncio

    from penstock.push.target import parse_target
    from penstock.sdk.receive.retries import Retries

    try:
        from penstock.push.delivery import PushOptions
        from penstock.push.delivery import push as push_until_stopped
        from penstock.push.endpoint import RequestOptions
        from penstock.push.push_counts import PushCounter
    except ModuleNotFoundError as error:
        raise missing_extra(error, "penstock push") or error from None

    target = parse_target(url)
    request_options = RequestOptions(
        timeout_s=_seconds(timeout, "--timeout"),
        connections=concurrency,
        secrets=_secrets(secret_file),
        rejecting=_statuses(reject_on),
        authorities=ca_file,
    )
    options = PushOptions(
        topics=tuple(topics),
        group=group,
        retries=Retries(
            first=f"{_ms(first, '--first')}ms", factor=factor, cap=f"{_ms(cap, '--cap')}ms", attempts=attempts
        ),
        concurrency=concurrency,
        rate=rate,
        batch=batch,
        ordered=ordered,
        tags=tags,
        from_beginning=from_beginning,
    )
    settings = command_config(context) | _settings(settings_file)
    at = bootstrap_of(context, bootstrap)
    require_listener(at)
    counter = PushCounter()
    if not json:
        first = "at the oldest message" if from_beginning else "at the end"
        typer.echo(f"pushing {', '.join(topics)} to {target} as group {group}; press Ctrl-C to stop")
        typer.echo(f"without committed offsets, group {group} starts {first}")
        sys.stdout.flush()
    with _progress(counter):
        asyncio.run(push_until_stopped(at, settings, options, target, request_options, counter))
    if json:
        show_json(asdict(counter.counts()))
    else:
        typer.echo(_summary(counter.counts()))


def _ms(text: str, option: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _seconds(text: str, option: str) -> float:
    found = _ms(text, option) / 1000
    if not found:
        raise typer.BadParameter("must be greater than 0", param_hint=option)
    return found


def _secrets(file: Path | None) -> tuple[bytes, ...]:
    from penstock.push.signing import parse_secrets

    if file is None:
        return ()
    try:
        return parse_secrets(_content(file))
    except ConfigError as error:
        raise CommandError(f"{file}: {error}") from None


def _settings(file: Path | None) -> dict[str, str]:
    """Empty lines and lines that begin with `#` are skipped."""
    if file is None:
        return {}
    lines = (line.strip() for line in _content(file).decode("utf-8", "replace").splitlines())
    return pairs((line for line in lines if line and not line.startswith("#")), "--settings-file")


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}") from None


def _statuses(text: str) -> frozenset[int]:
    found = set()
    for word in text.split(",") if text.strip() else ():
        status = word.strip()
        if not (status.isascii() and status.isdigit() and 300 <= int(status) <= 599):
            raise typer.BadParameter(f"{word!r} is not a status from 300 to 599", param_hint="--reject-on")
        found.add(int(status))
    return frozenset(found)


def _summary(counts: PushCounts) -> str:
    return f"{counts.delivered} delivered, {counts.retried} retried, {counts.dead_letters} dead letters"


@contextmanager
def _progress(counter: PushCounter) -> Iterator[None]:
    """One line of progress on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    class Line(ProgressColumn):
        def render(self, task: object) -> Text:
            counts = counter.counts()
            error = f" · last: {counts.last_error[:_ERROR_CHARS]}" if counts.last_error else ""
            return Text(_summary(counts) + error)

    columns = (SpinnerColumn(), TimeElapsedColumn(), Line(table_column=Column(no_wrap=True)))
    with Progress(
        *columns, console=Console(stderr=True), transient=True, refresh_per_second=_TICKS_PER_SECOND
    ) as progress:
        progress.add_task("pushing", total=None)
        yield
