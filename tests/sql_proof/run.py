"""The whole story of one run."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from penstock.config.database_address import DatabaseAddress
from support.cluster import Cluster
from support.steady_reader import SteadyReader
from support.stores import DatabaseServer, MariaDbProcess, PostgresProcess
from support.waiting import PATIENCE_S, until

from .faults import SqlSaboteur
from .ledger import judge
from .readers import TablePoller, stored
from .report import Report
from .writers import TOPIC, DirectWriter, ProducerWriter, Writer

DATABASES = ("mysql", "postgresql")
_PATIENCE_S = 120.0
SETTINGS = {
    # A broker may be started while the database is away.
    "cluster.connect_timeout_ms": 120_000,
    "sql.timeout_ms": 4_000,
}


def run(
    folder: Path,
    seconds: float,
    seed: int,
    *,
    database: str = "mysql",
    brokers: int = 2,
    producers: int = 24,
    direct: int = 8,
    lease_s: float = 3.0,
    only: Sequence[str] = (),
    overlap: int = 1,
    says: bool = False,
) -> Report:
    """At least one fault is injected; none begins after `seconds`. What does not come back is in the report."""
    report = Report(seed, database, brokers, producers, direct)
    with ExitStack() as held:
        server = started(database, folder, held)
        url = server.create_database("proof")
        address = DatabaseAddress.parse(url)
        settings = {**SETTINGS, "cluster.lease_ms": int(lease_s * 1000)}
        cluster = Cluster(folder, None, size=brokers, settings=settings, env=lambda number: {"PENSTOCK_SQL_URL": url})
        held.enter_context(cluster)
        admin = AdminClient({"bootstrap.servers": cluster.kafka, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(PATIENCE_S)
        work = _Work(cluster, address, producers, direct, seed)
        held.callback(work.stop)
        work.start()
        saboteur = SqlSaboteur(cluster, server, lease_s, random.Random(seed), only, overlap)
        try:
            _hurt(cluster, saboteur, work, seconds, report, says)
            work.finish(report)
            report.leaders = cluster.view().places[TOPIC, 0].epoch + 1
            for number in cluster.numbers:
                cluster.stop(number)
        except AssertionError as error:
            report.stuck = str(error)
            print(cluster.logs, file=sys.stderr)
        report.complaints += cluster.complaints
    return report


class _Work:
    """All who write and read."""

    def __init__(self, cluster: Cluster, address: DatabaseAddress, producers: int, direct: int, seed: int) -> None:
        self._address = address
        addresses = [broker.kafka for broker in cluster.brokers.values()]
        self._writers: dict[int, Writer] = {}
        for number in range(producers):
            turned = addresses[number % len(addresses) :] + addresses[: number % len(addresses)]
            self._writers[number] = ProducerWriter(number, seed, ",".join(turned))
        for number in range(producers, producers + direct):
            self._writers[number] = DirectWriter(number, seed, address)
        self._readers: list[SteadyReader] = [
            SteadyReader(",".join(addresses), TOPIC, 1, f"consumer {number + 1}") for number in range(2)
        ]
        self._readers.append(TablePoller(address))

    def start(self) -> None:
        for thread in (*self._readers, *self._writers.values()):
            thread.start()

    def stop(self) -> None:
        for writer in self._writers.values():
            writer.ask_to_stop()
        for writer in self._writers.values():
            writer.stop()
        for reader in self._readers:
            reader.stop()

    def wait_until_it_goes_on(self) -> None:
        """Every writer writes, and every reader reads."""
        written = {number: len(writer.ledger.acknowledged) for number, writer in self._writers.items()}
        read = [reader.count for reader in self._readers]

        def standing_still() -> list[str]:
            for writer in self._writers.values():
                assert not writer.failure, writer.failure
            return [
                *(w.name for number, w in self._writers.items() if len(w.ledger.acknowledged) == written[number]),
                *(reader.name for reader, before in zip(self._readers, read, strict=True) if reader.count == before),
            ]

        try:
            until(lambda: not standing_still(), "every writer writes and every reader reads", _PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; still waiting: {', '.join(standing_still())}") from None

    @property
    def acknowledged(self) -> int:
        return sum(len(writer.ledger.acknowledged) for writer in self._writers.values())

    def finish(self, report: Report) -> None:
        """Ends the work, and compares what is there with what was acknowledged and with what was read."""
        for writer in self._writers.values():
            writer.ask_to_stop()
        for writer in self._writers.values():
            writer.stop()
        rows, next_id = asyncio.run(stored(self._address))
        found = [(0, row.id - 1, row.value) for row in rows]
        for reader in self._readers:
            reader.wait_for_all(found, _PATIENCE_S)
            reader.stop()
            reader.compare(found)
            report.complaints += reader.violations
            report.readers[reader.name] = (reader.count, reader.skipped, reader.repeated)
        ledgers = {number: writer.ledger for number, writer in self._writers.items()}
        report.verdict = judge(ledgers, rows, next_id)


def started(database: str, folder: Path, held: ExitStack) -> DatabaseServer:
    if database == "mysql":
        mariadb = MariaDbProcess(folder / "mariadb")
        held.callback(mariadb.kill)
        return mariadb.start()
    postgresql = PostgresProcess()
    held.callback(postgresql.remove)
    return postgresql.start()


def _hurt(cluster: Cluster, saboteur: SqlSaboteur, work: _Work, seconds: float, report: Report, says: bool) -> None:
    work.wait_until_it_goes_on()
    started = time.monotonic()
    while not report.faults or time.monotonic() < started + seconds:
        struck = time.monotonic()
        plan = saboteur.next()
        what = " + ".join(map(str, plan.faults))
        report.faults.update(map(str, plan.faults))
        plan.strike()
        healed = time.monotonic()
        work.wait_until_it_goes_on()
        goes_on = time.monotonic()
        report.slowest = max(report.slowest, (goes_on - healed, what))
        cluster.wait_until_whole(_PATIENCE_S)
        if says:
            print(
                f"{struck - started:6.1f} s  {what}: {healed - struck:.1f} s,"
                f" all goes on {goes_on - healed:.1f} s later; acknowledged {work.acknowledged}",
                flush=True,
            )
