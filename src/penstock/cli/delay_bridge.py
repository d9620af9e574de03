"""`penstock delay-bridge`: delays messages for a Kafka cluster that cannot."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connection import command_config, require_listener
from penstock.cli.failure import CommandError
from penstock.cli.options import Bootstrap, Json, bootstrap_of
from penstock.cli.output import pairs, show_json
from penstock.config.address import Address, parse_address
from penstock.durations import parse_duration
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.bridge.bridge_metrics import BridgeMetrics
    from penstock.bridge.options import LevelOptions, StoreOptions
    from penstock.config.database_address import DatabaseAddress

_MOST_TABLES = 256
_MOST_BATCH = 10_000
_MIN_LEASE_MS = 1000
_PLANS = ("single", "days", "turns")
_ORDERS = ("arrival", "topic")
_DELIVERIES = ("exactly-once", "at-least-once")


def delay_bridge(
    context: typer.Context,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Delay topics: applications send here.")],
    group: Annotated[
        str,
        typer.Option(
            "--group", "-g", help="Consumer group; tables, dead-letter and progress topics have its name too."
        ),
    ],
    levels: Annotated[
        str | None,
        typer.Option(
            metavar="TIME,...",
            help="Fixed levels: the delay of each partition, such as 1m,3m*2,10m (3m on two partitions); 5 and 10 are "
            "presets. Needs no database.",
        ),
    ] = None,
    database: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="Any delay: where messages wait. Repeat it to shard over databases, in this order."
        ),
    ] = None,
    database_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The URLs of databases, one per line; they may have passwords.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Where messages go that have no header penstock-target."),
    ] = None,
    delivery: Annotated[
        str,
        typer.Option(
            metavar="|".join(_DELIVERIES),
            help="exactly-once forwards in transactions: consumers that read committed messages see no repeats.",
        ),
    ] = "exactly-once",
    plan: Annotated[
        str,
        typer.Option(
            metavar="|".join(_PLANS),
            help="Tables: one; one per day on which messages are due; or two in turn (bounds the delay to --period).",
        ),
    ] = "single",
    period: Annotated[str, typer.Option(metavar="TIME", help="With --plan turns: how long a turn is.")] = "1d",
    tables: Annotated[int, typer.Option(min=1, max=_MOST_TABLES, help="Shards per database.")] = 1,
    order: Annotated[
        str,
        typer.Option(
            metavar="|".join(_ORDERS),
            help="How messages are spread over shards: in turn as they arrive, or by target topic, which keeps the "
            "order of a topic.",
        ),
    ] = "arrival",
    max_delay: Annotated[
        str | None, typer.Option(metavar="TIME", help="Messages due later than this become dead letters.")
    ] = None,
    header_prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="Prefix of the headers delay, deliver-at, timer-id, cancel, target.")
    ] = "penstock-",
    batch: Annotated[int, typer.Option(min=1, max=_MOST_BATCH, help="Maximum messages per transaction.")] = 1000,
    lease: Annotated[str, typer.Option(metavar="TIME", help="How long a bridge that died keeps its shards.")] = "10s",
    poll: Annotated[
        str, typer.Option(metavar="TIME", help="How often tables are searched for due messages.")
    ] = "100ms",
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address for health and metrics.")] = None,
    settings_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="librdkafka settings, one NAME=VALUE per line, such as security.protocol=ssl."
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Delay messages for any Kafka cluster: take them from a delay topic, and send them to their topic when due.

    With --levels, each partition of the delay topic has one delay. With --database, each message has its own, in the
    headers that Penstock's broker uses: penstock-delay (30s) or penstock-deliver-at (milliseconds since 1970), and
    penstock-target. Run several with the same --group: they share the work and take over from one another. SIGTERM or
    Ctrl-C stops after the messages being sent.
    """
    import asyncio

    from penstock import logs
    from penstock.bridge.bridge_metrics import BridgeMetrics

    options = _options(
        topics, group, levels, database, database_file, target, delivery, plan, period, tables, order, max_delay,
        header_prefix, batch, lease, poll,
    )  # fmt: skip
    settings = command_config(context) | _settings(settings_file)
    listen = None if http is None else _address(http)
    at = bootstrap_of(context, bootstrap)
    require_listener(at)
    logs.configure("info", "text")
    metrics = BridgeMetrics()
    asyncio.run(_run(at, settings, options, metrics, listen, is_quiet=json))
    if json:
        show_json(asdict(metrics.counts()))
    else:
        counts = metrics.counts()
        typer.echo(f"{counts.received} received, {counts.forwarded} forwarded, {counts.dead_lettered} dead letters")


async def _run(
    bootstrap: str,
    settings: dict[str, str],
    options: LevelOptions | StoreOptions,
    metrics: BridgeMetrics,
    http: Address | None,
    *,
    is_quiet: bool,
) -> None:
    import asyncio

    from penstock.bridge.service import run_bridge
    from penstock.sdk.signals import SIGNALS

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask() -> None:
        stop.set()
        for number in SIGNALS:
            # A second signal has its usual effect.
            loop.remove_signal_handler(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, ask)

    def started(address: Address | None) -> None:
        if is_quiet:
            return
        typer.echo(f"delaying {', '.join(options.topics)} as group {options.group}; press Ctrl-C to stop")
        if address is not None:
            typer.echo(f"  health, metrics http://{address}")
        sys.stdout.flush()

    await run_bridge(bootstrap, settings, options, metrics, stop, http=http, started=started)


def _options(
    topics: list[str],
    group: str,
    levels: str | None,
    database: list[str] | None,
    database_file: Path | None,
    target: str | None,
    delivery: str,
    plan: str,
    period: str,
    tables: int,
    order: str,
    max_delay: str | None,
    header_prefix: str,
    batch: int,
    lease: str,
    poll: str,
) -> LevelOptions | StoreOptions:
    from penstock.bridge.levels import parse_partition_levels
    from penstock.bridge.options import BridgeOptions, LevelOptions, StoreOptions
    from penstock.bridge.table_plan import PlanKind, TablePlan

    _one_of(delivery, _DELIVERIES, "--delivery")
    _one_of(plan, _PLANS, "--plan")
    _one_of(order, _ORDERS, "--order")
    if not header_prefix:
        raise typer.BadParameter("must not be empty", param_hint="--header-prefix")
    addresses = _addresses(database, database_file)
    if (levels is None) == (not addresses):
        raise typer.BadParameter("give either --levels, or --database (or --database-file)")
    shared = BridgeOptions(
        topics=tuple(topics),
        group=group,
        target=target,
        delivery="exactly-once" if delivery == "exactly-once" else "at-least-once",
        header_prefix=header_prefix,
        batch=batch,
    )
    common = {name: getattr(shared, name) for name in BridgeOptions.__dataclass_fields__}
    if levels is not None:
        return LevelOptions(**common, levels_ms=parse_partition_levels(levels))
    return StoreOptions(
        **common,
        databases=addresses,
        tables=tables,
        plan=TablePlan(PlanKind(plan), _positive_ms(period, "--period")),
        by_topic=order == "topic",
        max_delay_ms=None if max_delay is None else _positive_ms(max_delay, "--max-delay"),
        lease_ms=_positive_ms(lease, "--lease", _MIN_LEASE_MS),
        poll_ms=_positive_ms(poll, "--poll"),
    )


def _addresses(urls: list[str] | None, file: Path | None) -> tuple[DatabaseAddress, ...]:
    from penstock.bridge.options import MOST_DATABASES
    from penstock.config.database_address import DatabaseAddress

    found: list[DatabaseAddress] = []
    for url in urls or ():
        try:
            address = DatabaseAddress.parse(url)
        except ConfigError as error:
            raise typer.BadParameter(str(error), param_hint="--database") from None
        if address.password:
            raise typer.BadParameter(
                "every user of this host can read a password on the command line; put the URL into a file",
                param_hint="--database, --database-file",
            )
        found.append(address)
    lines = [] if file is None else _content(file).splitlines()
    for line in (line.strip() for line in lines):
        if line and not line.startswith("#"):
            try:
                found.append(DatabaseAddress.parse(line))
            except ConfigError as error:
                raise CommandError(f"{file}: {error}") from None
    if len(found) > MOST_DATABASES:
        raise typer.BadParameter(f"{len(found)} databases; at most {MOST_DATABASES} are allowed")
    if len({address.place for address in found}) < len(found):
        raise typer.BadParameter("a database is given twice", param_hint="--database")
    return tuple(found)


def _settings(file: Path | None) -> dict[str, str]:
    """Empty lines and lines that begin with `#` are skipped."""
    if file is None:
        return {}
    lines = (line.strip() for line in _content(file).splitlines())
    return pairs((line for line in lines if line and not line.startswith("#")), "--settings-file")


def _content(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise CommandError(f"{file} cannot be read: {reason}") from None


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: expected {error}", param_hint="--http") from None


def _positive_ms(text: str, option: str, least: int = 1) -> int:
    try:
        found = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    if found < least:
        raise typer.BadParameter(f"must be at least {least} ms", param_hint=option)
    return found


def _one_of(value: str, allowed: tuple[str, ...], option: str) -> None:
    if value not in allowed:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(allowed)}", param_hint=option)
