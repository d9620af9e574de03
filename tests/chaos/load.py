"""Real clients at work on the cluster all the time: producers, groups, and transactions; and how they are judged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer
from kafka.errors import KafkaError

from support import access
from support.cluster import Cluster
from support.crew import Crew
from support.exactly_once import Passage, judge
from support.history import Consumed, faults
from support.pulse import Pulse
from support.waiting import PATIENCE_S, until
from transactions.exactly_once import (
    AUDIT,
    AUDIT_PARTITIONS,
    PARTITIONS,
    SOURCE,
    TARGET,
    Feeder,
    Reader,
    Workshop,
    committed_by_workers,
    output_of,
    read_all,
    read_inputs,
)

from .observers import EndObserver, RackReader
from .report import Report

RACKS = ("a", "b", "c")
_BEAT_S = 0.1
_PATIENCE_S = 120.0
_LEDGER_PARTITIONS = 6
_WORKERS = ("one", "two")
_SESSION_MS = 4000
"""Of members; long enough that a machine with too few cores does not end it."""


class KafkaPythonPulse(Pulse):
    """The same promise to another client."""

    def _beat(self) -> None:
        producer = KafkaProducer(
            **access.kafka_python(self._bootstrap),
            enable_idempotence=True,
            delivery_timeout_ms=int(_PATIENCE_S * 1000),
            # A broker that is stopped keeps its connections: they are given up by time.
            request_timeout_ms=3_000,
            reconnect_backoff_max_ms=200,
            retry_backoff_ms=50,
        )
        number = 0
        while not self._stop.wait(_BEAT_S):
            for partition in range(self._partitions):
                self._send(producer, number, partition)
                number += 1
        producer.flush(4 * PATIENCE_S)
        producer.close()

    def _send(self, producer: Any, number: int, partition: int) -> None:
        def acknowledged(place: Any) -> None:
            # -1 is what this client says of what it had sent before.
            self._acknowledged(number, partition, place.offset if place.offset >= 0 else None)

        try:
            sent = producer.send(self._topic, str(number).encode(), partition=partition)
        except KafkaError as error:
            self.failed.append(f"{number}: {error!r}")
            return
        sent.add_callback(acknowledged)
        sent.add_errback(lambda error: self.failed.append(f"{number}: {error!r}"))


class Nurse(threading.Thread):
    """Starts workers again that gave up. It must live as long as they: they end with the thread that started them."""

    def __init__(self, workshop: Workshop) -> None:
        super().__init__(name="nurse")
        self._workshop = workshop
        self._off_duty = threading.Event()
        self._at_work = threading.Lock()
        self._stop_asked = threading.Event()
        self.complaint = ""
        """What was wrong with a worker that ended otherwise."""

    def run(self) -> None:
        while not self._stop_asked.wait(_BEAT_S):
            with self._at_work:
                if self._off_duty.is_set():
                    continue
                try:
                    self._workshop.look_after()
                except AssertionError as error:
                    self.complaint = str(error)
                    self._off_duty.set()

    def go_off_duty(self) -> None:
        """From now on nobody is started again."""
        self._off_duty.set()
        with self._at_work:
            assert not self.complaint, self.complaint

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()


class Load:
    """At work while its `with` lasts. A small load leaves out the second producer and the second group."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int, *, is_small: bool) -> None:
        self._cluster = cluster
        self._folder = folder
        self._seed = seed
        self._held = ExitStack()
        self._pulses: dict[str, type[Pulse]] = {"ledger": Pulse}
        self._crews = {"watched": ({"ann": "confluent", "bob": "kafka-python"}, "classic")}
        if not is_small:
            self._pulses["second-ledger"] = KafkaPythonPulse
            self._crews["watched"][0]["cid"] = "aiokafka"
            self._crews["watched-anew"] = ({"dan": "confluent", "eve": "confluent"}, "consumer")
        self.pulses: dict[str, Pulse] = {}
        self.crews: list[Crew] = []

    def __enter__(self) -> Load:
        try:
            self._begin()
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def _begin(self) -> None:
        kafka = self._cluster.kafka
        sizes = dict.fromkeys(self._pulses, _LEDGER_PARTITIONS)
        sizes |= {SOURCE: PARTITIONS, TARGET: PARTITIONS, AUDIT: AUDIT_PARTITIONS}
        admin = AdminClient({**access.librdkafka(kafka), "log_level": 0})
        for created in admin.create_topics([NewTopic(name, size) for name, size in sizes.items()]).values():
            created.result()
        for topic, kind in self._pulses.items():
            self.pulses[topic] = self._held.enter_context(kind(kafka, topic, _LEDGER_PARTITIONS))
        for topic, (members, protocol) in self._crews.items():
            crew = self._held.enter_context(Crew(self._cluster, topic, self._folder))
            crew.produce(per_second=50)
            for name, client in members.items():
                crew.start(name, client, protocol=protocol, session_ms=_SESSION_MS)
            self.crews.append(crew)
        self._reader, self._feeder = Reader(kafka), Feeder(kafka, per_second=50)
        for thread in (self._reader, self._feeder):
            thread.start()
            self._held.callback(thread.stop)
        self._workshop = self._held.enter_context(Workshop(self._cluster, self._folder, self._seed))
        for name in _WORKERS:
            self._workshop.start(name)
        sizes |= dict.fromkeys(self._crews, _LEDGER_PARTITIONS)
        self._ends = EndObserver(
            self._cluster, sizes, lambda: {topic: dict(pulse.ends) for topic, pulse in self.pulses.items()}
        )
        self._ends.start()
        self._held.callback(self._ends.stop)
        self._rack_readers = [RackReader(kafka, "ledger", _LEDGER_PARTITIONS, rack) for rack in RACKS]
        for reader in self._rack_readers:
            reader.start()
            self._held.callback(reader.stop)
        self._nurse = Nurse(self._workshop)
        self._nurse.start()
        self._held.callback(self._nurse.stop)

    def wait_until_it_goes_on(self) -> str:
        """All of it: every partition, every group, the transactions. Which of them was waited for longest."""
        waits: dict[str, Callable[[], None]] = {
            topic: partial(pulse.wait_for_more, patience_s=_PATIENCE_S) for topic, pulse in self.pulses.items()
        }
        waits |= {crew.group: partial(crew.wait_for_more_of_each, 3, _PATIENCE_S) for crew in self.crews}
        waits["transactions"] = self._wait_for_transactions
        took: dict[str, float] = {}
        for what, wait in waits.items():
            begun = time.monotonic()
            wait()
            took[what] = time.monotonic() - begun
        return max(took, key=took.__getitem__)

    def _wait_for_transactions(self) -> None:
        before = len(self._reader.seen)

        def is_so() -> bool:
            assert not self._nurse.complaint, self._nurse.complaint
            return len(self._reader.seen) >= before + 20

        until(is_so, "transactions go on", _PATIENCE_S)

    def finish(self, report: Report) -> None:
        """Ends the work, waits for what is under way, and compares what is there with what was acknowledged."""
        for topic, pulse in self.pulses.items():
            report.tallies[topic] = pulse.finish()
            report.failed += [f"{topic}: {failure}" for failure in pulse.failed]
            for at in pulse.acknowledged_at:
                report.note_gaps(f"a partition of {topic} for its producer", at)
        self._finish_observing(report)
        for crew in self.crews:
            try:
                crew.finish(_PATIENCE_S)
            except AssertionError:
                if crew.history().missing:
                    raise
            self._judge_group(crew, report)
        passage = self._pass_through()
        report.passage, report.passed = judge(passage), len(passage.outputs)
        report.committed, report.aborted = len(set(passage.audited)), len(passage.aborted)
        committed_at = (event["at_ns"] for event in self._workshop.events() if event["kind"] == "committed")
        report.note_gaps("transactions", sorted(int(at_ns) / 1e9 for at_ns in committed_at))

    def _finish_observing(self, report: Report) -> None:
        found = self.pulses["ledger"].found
        for reader in self._rack_readers:
            reader.wait_for_all(found, _PATIENCE_S)
            reader.stop()
            reader.compare(found)
            report.follower_violations += reader.violations
            report.follower_reads += reader.from_followers
            report.hung_clients += reader.hung_clients
        self._ends.stop()
        report.ends_told, report.ends_gone_back = self._ends.answers, self._ends.violations

    def _judge_group(self, crew: Crew, report: Report) -> None:
        history = crew.history()
        report.group_faults += faults(history, crew.committed())
        report.seen_by_groups += len(history.consumed)
        seen_at: dict[int, list[float]] = {}
        for event in sorted(history.events, key=lambda event: event.at_ns):
            if isinstance(event, Consumed):
                seen_at.setdefault(event.partition, []).append(event.at_ns / 1e9)
        for at in seen_at.values():
            report.note_gaps("a partition for a group", at)

    def _pass_through(self) -> Passage:
        """Stops the transactions when all of the input is through."""
        self._feeder.stop()
        kafka, workshop, reader = self._cluster.kafka, self._workshop, self._reader
        inputs = read_inputs(kafka)
        wanted = {partition: len(numbers) for partition, numbers in inputs.items()}

        until(
            lambda: committed_by_workers(kafka) == wanted,
            f"the workers have committed {wanted}",
            _PATIENCE_S,
            progress=lambda: committed_by_workers(kafka),
        )
        self._nurse.go_off_duty()
        workshop.stop()
        outputs = [output_of(message) for message in read_all(kafka, TARGET, PARTITIONS)]
        until(
            lambda: len(reader.seen) >= len(outputs),
            "the reader has seen all",
            _PATIENCE_S,
            progress=lambda: len(reader.seen),
        )
        reader.stop()
        assert not self._feeder.failed, self._feeder.failed[:3]
        return Passage(
            inputs=inputs,
            outputs=outputs,
            audited=[(message.value() or b"").decode() for message in read_all(kafka, AUDIT, AUDIT_PARTITIONS)],
            seen_live=list(reader.seen),
            aborted=workshop.tokens("aborted"),
            committed=workshop.tokens("committed"),
            offsets=committed_by_workers(kafka),
        )
