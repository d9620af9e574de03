"""The whole story of one run."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from pathlib import Path

from penstock import direct
from penstock.config.database_address import DatabaseAddress
from sql_proof.run import SETTINGS
from sql_proof.run import started as started_server
from sql_proof.writers import ProducerWriter
from support.cluster import Cluster
from support.steady_reader import SteadyReader
from support.waiting import until

from .faults import DirectSaboteur
from .fleet import Fleet
from .report import Report
from .tables import ProofTables
from .verdict import TOPIC, Place, is_delayed, judge

_PATIENCE_S = 120.0
_LOOK_S = 0.5


def run(
    folder: Path,
    seconds: float,
    seed: int,
    *,
    database: str = "mysql",
    brokers: int = 0,
    kafka_producers: int = 4,
    producers: int = 8,
    consumers: int = 4,
    lease_s: float = 3.0,
    only: Sequence[str] = (),
    overlap: int = 1,
    says: bool = False,
) -> Report:
    """At least one fault is injected; none begins after `seconds`. With brokers the topic has one partition, which all
    use at once.
    """
    partitions = 1 if brokers else 4
    kafka_producers = kafka_producers if brokers else 0
    report = Report(seed, database, brokers, kafka_producers, producers, consumers, partitions)
    with ExitStack() as held:
        server = started_server(database, folder, held)
        url = server.create_database("proof")
        tables = ProofTables(DatabaseAddress.parse(url), partitions)
        tables.create()
        with direct.Client(url) as client:
            client.create_topic(TOPIC, partitions)
        settings = {**SETTINGS, "cluster.lease_ms": int(lease_s * 1000)}
        cluster = held.enter_context(
            Cluster(folder, None, size=brokers, settings=settings, env=lambda number: {"PENSTOCK_SQL_URL": url})
        )
        fleet = Fleet(folder / "clients", url, producers, consumers, seed)
        held.callback(fleet.close)
        work = _Work(cluster, fleet, tables, kafka_producers, seed)
        held.callback(work.stop)
        saboteur = DirectSaboteur(cluster, fleet, server, lease_s, random.Random(seed), only, overlap)
        try:
            work.start()
            _hurt(saboteur, work, seconds, report, says)
            work.finish(report)
        except AssertionError as error:
            report.stuck = str(error)
            print(cluster.logs, file=sys.stderr)
        report.processes = fleet.count
        report.complaints += cluster.complaints + fleet.complaints
    return report


class _Work:
    """All who write and read."""

    def __init__(self, cluster: Cluster, fleet: Fleet, tables: ProofTables, kafka_producers: int, seed: int) -> None:
        self._fleet = fleet
        self._tables = tables
        addresses = [broker.kafka for broker in cluster.brokers.values()]
        self._writers = [
            ProducerWriter(number, seed, ",".join(addresses), topic=TOPIC, key=str(number))
            for number in range(kafka_producers)
        ]
        self._readers = [_Reader(",".join(addresses), TOPIC, 1, "a consumer of brokers")] if addresses else []

    def start(self) -> None:
        for thread in (*self._readers, *self._writers):
            thread.start()
        self._fleet.start()

    def stop(self) -> None:
        for writer in self._writers:
            writer.ask_to_stop()
        for writer in self._writers:
            writer.stop()
        for reader in self._readers:
            reader.stop()

    def wait_until_it_goes_on(self) -> None:
        """Every producer is told of a message, one is handled, and every reader reads."""
        acknowledged = {slot: self._fleet.acknowledged(slot) for slot in self._fleet.producers}
        written = [len(writer.ledger.acknowledged) for writer in self._writers]
        read = [reader.count for reader in self._readers]
        handled = self._tables.handled_count()

        def is_so() -> bool:
            time.sleep(_LOOK_S)
            self._fleet.check_alive()
            for writer in self._writers:
                assert not writer.failure, writer.failure
            return (
                all(self._fleet.acknowledged(slot) > before for slot, before in acknowledged.items())
                and all(len(w.ledger.acknowledged) > before for w, before in zip(self._writers, written, strict=True))
                and all(reader.count > before for reader, before in zip(self._readers, read, strict=True))
                and self._tables.handled_count() > handled
            )

        until(is_so, "every producer writes, and consumers handle", _PATIENCE_S)

    def finish(self, report: Report) -> None:
        """Ends the work, and compares what is there with what was acknowledged and with what was handled."""
        for writer in self._writers:
            writer.ask_to_stop()
        self._fleet.stop_producers()
        for writer in self._writers:
            writer.stop()
        told: dict[int, Mapping[int, Place | None]] = {
            number: writer.ledger.acknowledged for number, writer in enumerate(self._writers)
        }
        told |= self._fleet.told()
        later = {value for of_writer in told.values() for value in of_writer if is_delayed(value)}

        self._wait_until_all_is_handled(later, report)
        self._fleet.stop_consumers()
        rows = self._tables.rows()
        for reader in self._readers:
            reader.wait_for(rows[-1].offset)
            reader.stop()
            reader.compare_values([row.value for row in rows])
            report.complaints += reader.violations
            report.readers[reader.name] = (reader.count, reader.skipped, reader.repeated)
        report.verdict = judge(told, rows, self._tables.handled())

    def _wait_until_all_is_handled(self, later: Set[int], report: Report) -> None:
        """As long as some more are; what is missing then is in the counts."""
        handled, since_s = -1, time.monotonic()
        while time.monotonic() < since_s + _PATIENCE_S:
            time.sleep(_LOOK_S)
            found = self._tables.handled_count()
            if found > handled:
                handled, since_s = found, time.monotonic()
            if found >= self._tables.row_count() and later <= {each.value for each in self._tables.handled()}:
                return
        missing = len(later - {each.value for each in self._tables.handled()})
        report.complaints.append(
            f"{handled} of {self._tables.row_count()} messages were handled, and no more for {_PATIENCE_S:g} s;"
            f" {missing} that were delayed are missing"
        )


class _Reader(SteadyReader):
    """Offsets of a topic with delayed messages have gaps: only that they rise is known before the end."""

    last = -1

    def note(self, partition: int, offset: int, number: int) -> None:
        if offset > self.last:
            self.last = offset
            self._numbers[partition].append(number)
        else:
            self.repeated += 1
            self._complain(f"read {self._topic}-{partition}@{offset} after {self.last}")

    def wait_for(self, offset: int) -> None:
        until(lambda: self.last >= offset, f"{self.name} has read all", _PATIENCE_S)

    def compare_values(self, values: Sequence[int]) -> None:
        missing = set(values) - set(self._numbers[0])
        self.skipped += len(missing)
        if list(self._numbers[0]) != list(values):
            self._complain(f"read something else than there is at the end; missing: {sorted(missing)[:5]}")


def _hurt(saboteur: DirectSaboteur, work: _Work, seconds: float, report: Report, says: bool) -> None:
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
        if says:
            print(
                f"{struck - started:6.1f} s  {what}: {healed - struck:.1f} s,"
                f" all goes on {goes_on - healed:.1f} s later",
                flush=True,
            )
