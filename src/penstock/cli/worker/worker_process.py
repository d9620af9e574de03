"""Runs the subscriptions of one client until a signal comes, or until they have ended on their own."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import typer

from penstock.cli.failure import CommandError
from penstock.cli.worker.application import WorkerClient
from penstock.cli.worker.monitoring import WorkerMonitoring
from penstock.cli.worker.stop_signals import StopSignals
from penstock.config.address import Address
from penstock.sdk.problem_log import error_line
from penstock.sdk.receive.subscription import CHECK_S, SubscriptionStatus


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker runs."""

    http: Address | None
    """Where it serves health and metrics; None: nowhere."""
    grace_s: float
    """How long a stop waits for running handlers, and then for messages that are not sent yet."""


def run_worker(target: str, client: WorkerClient, options: WorkerOptions, signals: StopSignals) -> None:
    """Raises `CommandError` or `ConfigError` if it could not start, or did not end by a signal."""
    if inspect.iscoroutinefunction(client.start):
        asyncio.run(_run_awaiting(target, client, options, signals))
    else:
        _run_calling(target, client, options, signals)
    typer.echo("stopped")
    sys.stdout.flush()


def _run_calling(target: str, client: WorkerClient, options: WorkerOptions, signals: StopSignals) -> None:
    try:
        with _monitored(target, client, options, signals):
            try:
                client.start()
                while not signals.asked.wait(CHECK_S) and not _is_over(client):
                    pass
            finally:
                _announce_stop(options, signals)
                client.stop(options.grace_s)
    finally:
        # Also if nothing was started: the application may have sent messages when it was imported.
        client.close(options.grace_s)


async def _run_awaiting(target: str, client: WorkerClient, options: WorkerOptions, signals: StopSignals) -> None:
    asked, loop = asyncio.Event(), asyncio.get_running_loop()
    signals.call_when_asked(lambda: loop.call_soon_threadsafe(asked.set))
    try:
        with _monitored(target, client, options, signals):
            try:
                await client.start()
                while not asked.is_set() and not _is_over(client):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(CHECK_S):
                            await asked.wait()
            finally:
                _announce_stop(options, signals)
                await client.stop(options.grace_s)
    finally:
        await client.close(options.grace_s)
        signals.call_when_asked(lambda: None)


def _is_over(client: WorkerClient) -> bool:
    """Whether the application stopped the client itself. Raises `CommandError` if a subscription has failed."""
    statuses = client.subscriptions
    for each in statuses:
        if each.failure is not None:
            raise CommandError(
                f"the subscription of group {each.group} to {', '.join(each.topics)} ended: {error_line(each.failure)}"
            )
    return not any(each.is_running for each in statuses)


@contextmanager
def _monitored(target: str, client: WorkerClient, options: WorkerOptions, signals: StopSignals) -> Iterator[None]:
    """Serve health and metrics around the work, and say what it listens to."""
    if not client.subscriptions:
        raise CommandError(f"{target} has no subscriptions: register handlers with subscribe; nothing was started")
    if options.http is None:
        _announce(client, None)
        yield
        return
    monitoring = WorkerMonitoring(options.http, client, signals.asked.is_set)
    address = monitoring.start()
    try:
        _announce(client, address)
        yield
    finally:
        monitoring.close()


def _announce(client: WorkerClient, http: Address | None) -> None:
    for each in client.subscriptions:
        typer.echo(announcement(each, client.address))
    if http is not None:
        typer.echo(f"health and metrics at http://{http} (/health, /ready, /metrics)")
    typer.echo("press Ctrl-C to stop")
    sys.stdout.flush()


def announcement(status: SubscriptionStatus, address: str) -> str:
    """What a worker listens to, in one line."""
    facts = [f"group {status.group}"]
    if status.tags is not None:
        facts.append(f'tags "{status.tags}"')
    facts += [f"concurrency {status.concurrency}", f"handler {status.handler}"]
    return f"listening to {', '.join(status.topics)} at {address}: {', '.join(facts)}"


def _announce_stop(options: WorkerOptions, signals: StopSignals) -> None:
    if signals.asked.is_set():
        typer.echo(f"stopping: running handlers have {options.grace_s:g} s; a second signal stops at once")
        sys.stdout.flush()
