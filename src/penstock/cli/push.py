"""`penstock push`: each message of a topic is posted to an HTTP endpoint, until the endpoint has taken it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.client import require_listener
from penstock.cli.failure import CommandError
from penstock.cli.options import Bootstrap, Json, bootstrap_of
from penstock.cli.output import pairs, show_json
from penstock.durations import parse_duration
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.push.tally import Counts, PushTally

_MOST_CONCURRENCY = 1000
_MOST_BATCH = 10_000
_TICKS_PER_SECOND = 2
_ERROR_CHARS = 60


def push(
    context: typer.Context,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics whose messages are delivered.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to: http:// or https://.")],
    group: Annotated[str, typer.Option("--group", "-g", help="Group that has read what was delivered.")],
    secret_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Sign each request with the secret in this file.")
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="How long an answer may take.")] = "30s",
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, max=_MOST_CONCURRENCY, help="Requests at the same time.")
    ] = 16,
    rate: Annotated[float | None, typer.Option(metavar="NUMBER", help="Messages a second at most.")] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, max=_MOST_BATCH, help="Up to so many messages a request, as a JSON array.")
    ] = None,
    ordered: Annotated[bool, typer.Option("--ordered", help="Messages of one key one after the other.")] = False,
    tags: Annotated[str | None, typer.Option(metavar="EXPRESSION", help="Only messages with such tags.")] = None,
    attempts: Annotated[int, typer.Option(min=1, help="Deliveries before a message is a dead letter.")] = 8,
    first: Annotated[str, typer.Option(metavar="TIME", help="Wait after the first failure.")] = "1s",
    factor: Annotated[float, typer.Option(metavar="NUMBER", help="Each further wait is so many times longer.")] = 2.0,
    cap: Annotated[str, typer.Option(metavar="TIME", help="The longest wait.")] = "10m",
    reject_on: Annotated[
        str, typer.Option(metavar="STATUS,...", help="Answers that make a message a dead letter at once.")
    ] = "410",
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate authorities to trust, instead of the usual ones.")
    ] = None,
    settings_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings of librdkafka, NAME=VALUE a line: security.protocol and so on."),
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="A new group begins with what is there, not with what comes.")
    ] = False,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Deliver messages by HTTP POST, each until it is taken.

    2xx acknowledges. 429 and 503 may say when to come again (Retry-After). Everything else, and silence, mean: again
    later, and after the last attempt the dead letters of the group. Ends with SIGTERM or Ctrl-C; what is under way is
    finished.
    """
    import asyncio

    from penstock.push.target import parse_target
    from penstock.sdk.receive.retries import Retries

    try:
        from penstock.push.endpoint import Manner
        from penstock.push.pushing import Wishes
        from penstock.push.pushing import push as push_until_stopped
        from penstock.push.tally import PushTally
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        raise CommandError("penstock push needs the library httpx: pip install 'penstock[push]'") from None

    target = parse_target(url)
    manner = Manner(
        timeout_s=_seconds(timeout, "--timeout"),
        connections=concurrency,
        secrets=_secrets(secret_file),
        rejecting=_statuses(reject_on),
        authorities=ca_file,
    )
    wishes = Wishes(
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
    settings = _settings(settings_file)
    at = bootstrap_of(context, bootstrap)
    require_listener(at)
    tally = PushTally()
    if not json:
        typer.echo(f"pushing {', '.join(topics)} to {target} as {group}; Ctrl-C ends it")
        sys.stdout.flush()
    with _progress(tally):
        asyncio.run(push_until_stopped(at, settings, wishes, target, manner, tally))
    if json:
        show_json(asdict(tally.counts()))
    else:
        typer.echo(_summary(tally.counts()))


def _ms(text: str, option: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _seconds(text: str, option: str) -> float:
    found = _ms(text, option) / 1000
    if not found:
        raise typer.BadParameter("0 leaves no time for an answer", param_hint=option)
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
    """Lines that are empty or begin with `#` do not count."""
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
            raise typer.BadParameter(f"{word!r} is no status from 300 to 599", param_hint="--reject-on")
        found.add(int(status))
    return frozenset(found)


def _summary(counts: Counts) -> str:
    return f"{counts.delivered} delivered, {counts.retried} retried, {counts.dead_letters} dead letters"


@contextmanager
def _progress(tally: PushTally) -> Iterator[None]:
    """One line on a terminal that is kept up to date, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    class Line(ProgressColumn):
        def render(self, task: object) -> Text:
            counts = tally.counts()
            error = f" · last: {counts.last_error[:_ERROR_CHARS]}" if counts.last_error else ""
            return Text(_summary(counts) + error)

    columns = (SpinnerColumn(), TimeElapsedColumn(), Line(table_column=Column(no_wrap=True)))
    with Progress(
        *columns, console=Console(stderr=True), transient=True, refresh_per_second=_TICKS_PER_SECOND
    ) as progress:
        progress.add_task("pushing", total=None)
        yield
