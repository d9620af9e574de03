"""Workers consume, transform and produce in transactions while they and the broker are killed again and again.

    python -m tests.transactions.exactly_once --rounds 40 --seed 7

Afterwards the output must be the input, once each and in order, and nothing of an aborted transaction may ever have
been seen. The counts are printed; the exit status is 1 if one is not zero that should be.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

sys.path.insert(0, str(Path(__file__).parents[1]))

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from support import access, transform_worker
from support.broker_process import BrokerProcess
from support.crew import SETTINGS as GROUP_SETTINGS
from support.crew import Reachable
from support.exactly_once import Output, Passage, Verdict, judge
from support.messages import place_of
from support.programs import Process, start
from support.transactional import described
from support.waiting import until
from support.wire import Wire

SOURCE, TARGET, AUDIT, GROUP = "source", "target", "audit", "transformers"
PARTITIONS, AUDIT_PARTITIONS = 4, 2
NAMES = ("one", "two", "three")
COMPRESSIONS = ("none", "lz4", "zstd")
SETTINGS = {**GROUP_SETTINGS, "transactions.state_partitions": 4, "log.checkpoint_ms": 300}
ACTIONS = ("kill a worker", "kill the broker", "kill it when decided", "kill it when ongoing", "kill both", "restart")
WEIGHTS = (4, 3, 6, 2, 2, 1)
_PATIENCE_S = 90.0
_LOOK_S = 3.0
"""How long a chosen point is waited for before the broker is killed at another one."""


class Reader(threading.Thread):
    """Reads what is committed, from the first message on and all the time."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="reader")
        self._address = bootstrap
        self._stop_asked = threading.Event()
        self.seen: list[Output] = []

    def run(self) -> None:
        consumer = reading(self._address, TARGET, PARTITIONS)
        while not self._stop_asked.is_set():
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    self.seen.append(output_of(message))
        consumer.close()

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()


class Feeder(threading.Thread):
    """Writes numbered messages to the input until it is told to stop."""

    def __init__(self, bootstrap: str, per_second: int) -> None:
        super().__init__(name="feeder")
        self._address = bootstrap
        self._per_look = max(1, per_second // 50)
        self._stop_asked = threading.Event()
        self.failed: list[str] = []

    def run(self) -> None:
        producer = Producer(
            {
                **access.librdkafka(self._address),
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed.append(str(error))

        number = 0
        while not self._stop_asked.wait(0.02):
            for _ in range(self._per_look):
                producer.produce(SOURCE, str(number), partition=number % PARTITIONS, on_delivery=report)
                number += 1
            producer.poll(0)
        producer.flush(_PATIENCE_S)

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()


class Workshop:
    """The workers, and what their diaries say."""

    def __init__(self, broker: Reachable, folder: Path, seed: int) -> None:
        self._broker = broker
        self._folder = folder
        self._seed = seed
        self._processes: dict[str, Process] = {}
        self.ended: Counter[int] = Counter()
        """Exit statuses of workers that gave up."""

    def __enter__(self) -> Workshop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def start(self, name: str) -> None:
        command = [sys.executable, transform_worker.__file__, "--name", name, "--bootstrap", self._broker.kafka]
        command += ["--group", GROUP, "--source", SOURCE, "--target", TARGET, "--audit", AUDIT]
        command += ["--audit-partitions", str(AUDIT_PARTITIONS), "--seed", str(self._seed)]
        command += ["--compression", COMPRESSIONS[NAMES.index(name)], "--diary", str(self._diary(name))]
        with self._diary(name).with_suffix(".err").open("ab") as errors:
            self._processes[name] = start(command, stdout=errors, stderr=errors, new_session=True)

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def look_after(self) -> None:
        """Starts those again that gave up; fails if one ended otherwise."""
        for name, process in self._processes.items():
            status = process.poll()
            if status is not None and status != -signal.SIGKILL:
                errors = self._diary(name).with_suffix(".err").read_text()[-2000:]
                assert status in (transform_worker.FENCED, transform_worker.STUCK), f"{name}: {status}\n{errors}"
                self.ended[status] += 1
                self.start(name)

    def stop(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            process.wait(_PATIENCE_S)

    def tokens(self, kind: str) -> set[str]:
        return {said["token"] for said in self.events() if said["kind"] == kind}

    def events(self) -> list[dict[str, str]]:
        return [
            json.loads(line)
            for name in NAMES
            if self._diary(name).exists()
            for line in self._diary(name).read_text().rpartition("\n")[0].splitlines()
        ]

    def _diary(self, name: str) -> Path:
        return self._folder / f"{name}.diary"


def reading(bootstrap: str, topic: str, partitions: int) -> Consumer:
    """A read_committed reader of the whole topic."""
    consumer = Consumer(
        {
            **access.librdkafka(bootstrap),
            "group.id": "never joined",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "reconnect.backoff.max.ms": 200,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    return consumer


def read_all(bootstrap: str, topic: str, partitions: int) -> list[Message]:
    """All that is committed; the last stable offset must reach the end of every partition."""
    consumer = reading(bootstrap, topic, partitions)
    found: list[Message] = []
    try:
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        ends = {place.partition: consumer.get_watermark_offsets(place, timeout=30)[1] for place in places}

        def is_read() -> bool:
            for message in consumer.consume(10_000, 0.2):
                if message.error():
                    raise KafkaException(message.error())
                found.append(message)
            return all(place.offset >= ends[place.partition] or not ends[place.partition] for place in at(consumer))

        def at(consumer: Consumer) -> list[TopicPartition]:
            held: list[TopicPartition] = consumer.position(places)
            return held

        until(is_read, f"{topic} is read to its end", _PATIENCE_S, progress=lambda: len(found))
        return found
    finally:
        consumer.close()


def output_of(message: Message) -> Output:
    source, number, token = (message.value() or b"").decode().split(" ")
    return Output(*place_of(message), int(source), int(number), token)


def kill_when(broker: BrokerProcess, wanted: str) -> bool:
    """Kills the broker the moment it says that a transaction is in such a state; whether it was seen."""
    deadline = time.monotonic() + _LOOK_S
    with Wire(broker.address) as wire:
        while time.monotonic() < deadline:
            if any(found.transaction_state.startswith(wanted) for found in described(wire, *NAMES)):
                broker.kill()
                return True
    broker.kill()
    return False


def run(
    broker: BrokerProcess, folder: Path, rounds: int, seed: int, per_second: int = 300
) -> tuple[Passage, Verdict, Counter[str]]:
    """The whole story; what happened is counted."""
    chance = random.Random(seed)
    happened: Counter[str] = Counter()
    admin = AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
    # What is flushed takes its time: the end of a transaction can be caught in the middle.
    slow = {"flush.messages": "1", "segment.bytes": "65536"}
    topics = [
        NewTopic(SOURCE, PARTITIONS, 1),
        NewTopic(TARGET, PARTITIONS, 1, config=slow),
        NewTopic(AUDIT, AUDIT_PARTITIONS, 1, config=slow),
    ]
    for created in admin.create_topics(topics).values():
        created.result()
    reader, feeder = Reader(broker.kafka), Feeder(broker.kafka, per_second)
    with Workshop(broker, folder, seed) as workshop:
        reader.start()
        feeder.start()
        try:
            for name in NAMES:
                workshop.start(name)
            _wait_for_more(reader, workshop)
            for _ in range(rounds):
                _one_round(broker, workshop, chance, happened)
                _wait_for_more(reader, workshop)
            feeder.stop()
            inputs = read_inputs(broker.kafka)
            wanted = {partition: len(numbers) for partition, numbers in inputs.items()}

            def is_done() -> bool:
                workshop.look_after()
                return committed_by_workers(broker.kafka) == wanted

            until(
                is_done, f"the group has committed {wanted}; it has {committed_by_workers(broker.kafka)}", _PATIENCE_S
            )
            workshop.stop()
            final = [output_of(message) for message in read_all(broker.kafka, TARGET, PARTITIONS)]
            until(lambda: len(reader.seen) >= len(final), "the reader has caught up", _PATIENCE_S)
        finally:
            feeder.stop()
            reader.stop()
        assert not feeder.failed, feeder.failed[:3]
        aborted, committed = workshop.tokens("aborted"), workshop.tokens("committed")
        passage = Passage(
            inputs=inputs,
            outputs=final,
            audited=[(message.value() or b"").decode() for message in read_all(broker.kafka, AUDIT, AUDIT_PARTITIONS)],
            seen_live=list(reader.seen),
            aborted=aborted,
            committed=committed,
            offsets=committed_by_workers(broker.kafka),
        )
        happened["workers fenced"] = workshop.ended[transform_worker.FENCED]
        happened["workers stuck"] = workshop.ended[transform_worker.STUCK]
    return passage, judge(passage), happened


def _one_round(broker: BrokerProcess, workshop: Workshop, chance: random.Random, happened: Counter[str]) -> None:
    (what,) = chance.choices(ACTIONS, WEIGHTS)
    name = chance.choice(NAMES)
    happened[what] += 1
    if what == "kill a worker":
        workshop.kill(name)
        workshop.start(name)
    elif what == "kill both":
        workshop.kill(name)
        broker.kill()
        broker.start()
        workshop.start(name)
    elif what == "restart":
        broker.restart()
    else:
        if what == "kill the broker":
            time.sleep(chance.random() * 0.3)  # any moment
            broker.kill()
        else:
            seen = kill_when(broker, "Prepare" if what.endswith("decided") else "Ongoing")
            happened[f"{what}: seen"] += seen
        broker.start()


def _wait_for_more(reader: Reader, workshop: Workshop, count: int = 100) -> None:
    before = len(reader.seen)

    def is_so() -> bool:
        workshop.look_after()
        return len(reader.seen) >= before + count

    until(is_so, f"{count} more messages are seen", _PATIENCE_S)


def read_inputs(bootstrap: str) -> dict[int, list[int]]:
    """The numbers that lie in each partition of the input, in order."""
    inputs: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    for message in read_all(bootstrap, SOURCE, PARTITIONS):
        inputs[place_of(message)[0]].append(int(message.value() or b""))
    return inputs


def committed_by_workers(bootstrap: str) -> dict[int, int]:
    """How far the group of the workers has come, by partition of the input."""
    admin = AdminClient({**access.librdkafka(bootstrap), "log_level": 0})
    asked = [ConsumerGroupTopicPartitions(GROUP)]
    answer = admin.list_consumer_group_offsets(asked)[GROUP].result()
    return {found.partition: found.offset for found in answer.topic_partitions}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="how often something is killed")
    parser.add_argument("--seed", type=int, default=1, help="chooses what and when")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="penstock-exactly-once-") as folder:
        broker = BrokerProcess(Path(folder) / "broker", SETTINGS).start()
        try:
            passage, verdict, happened = run(broker, Path(folder), given.rounds, given.seed)
            status = broker.stop()
        except BaseException:
            print(broker.log_tail, file=sys.stderr)
            raise
        finally:
            broker.kill()
    print(f"seed {given.seed}, " + ", ".join(f"{what} {count}" for what, count in sorted(happened.items())))
    print(
        f"input {sum(map(len, passage.inputs.values()))}, output {len(passage.outputs)},"
        f" transactions committed {len(set(passage.audited))}, aborted {len(passage.aborted)}, {verdict}"
    )
    return 0 if verdict.is_good and status == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
