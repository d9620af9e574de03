"""A group at work in a test: members as processes, a producer that does not stop, and what all of them did."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from penstock.config.group import RESET_MARK
from support import access, group_member
from support.history import Assigned, Committing, Consumed, Event, History, faults
from support.messages import place_of
from support.programs import Process, start
from support.waiting import PATIENCE_S, until

SETTINGS = {
    "groups.min_session_timeout_ms": 1000,
    "groups.initial_rebalance_delay_ms": 200,
    "groups.offsets_partitions": 4,
    "groups.consumer_session_timeout_ms": 3000,
    "groups.consumer_heartbeat_interval_ms": 300,
}
"""Of a broker whose groups notice soon that somebody is gone."""
_STOP_S = 30


class Reachable(Protocol):
    """A broker, or several."""

    @property
    def kafka(self) -> str:
        """Where clients begin: HOST:PORT, or several of them with commas."""


class Crew:
    """Members by name. A name that is started again is a new process with the same diary."""

    def __init__(self, broker: Reachable, topic: str, folder: Path, partitions: int = 6) -> None:
        self.broker = broker
        self.topic = topic
        self.group = f"group-of-{topic}"
        self._partitions = partitions
        self._folder = folder
        self._processes: dict[str, Process] = {}
        self._produced: dict[tuple[int, int], str] = {}
        self._unplaced: set[tuple[int, str]] = set()
        """Acknowledged without a word of where: the client concluded it from what became of the next."""
        self._known: dict[str, tuple[list[Event], int]] = {}
        """What is known of a member's diary, and how far it is read."""
        self._seen: Counter[int] = Counter()
        self._stop = threading.Event()
        self._producing: threading.Thread | None = None
        admin = self._admin()
        admin.create_topics([NewTopic(topic, partitions)])[topic].result()

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for process in self._processes.values():
            process.kill()
            process.wait()
        if self._producing is not None:
            self._producing.join()

    def _admin(self) -> AdminClient:
        """A new one each time: after a restart of the broker librdkafka may wait for its old coordinator in vain."""
        return AdminClient({**access.librdkafka(self.broker.kafka), "log_level": 0})

    def start(self, name: str, client: str = "confluent", **options: object) -> None:
        """Starts a member; `options` as of `support/group_member.py`."""
        command = [sys.executable, group_member.__file__, "--client", client, "--name", name]
        command += ["--bootstrap", self.broker.kafka, "--group", self.group, "--topic", self.topic]
        command += ["--diary", str(self._diary(name))]
        for option, value in options.items():
            command += [f"--{option.replace('_', '-')}", str(value)]
        with self._diary(name).with_suffix(".err").open("ab") as errors:
            self._processes[name] = start(command, stdout=errors, stderr=errors, new_session=True)

    def stop(self, name: str) -> None:
        """The member leaves the group and ends."""
        process = self._processes[name]
        until(lambda: self._has_begun(name), f"{name} can be stopped")
        process.send_signal(signal.SIGTERM)
        status = process.wait(_STOP_S)
        assert status == 0, f"{name}: {status}\n{self._diary(name).with_suffix('.err').read_text()[-2000:]}"

    def kill(self, name: str) -> None:
        """The member is gone without a word."""
        self._processes[name].kill()
        self._processes[name].wait()

    def produce(self, per_second: int = 300) -> None:
        """Begins to send numbered messages to all partitions in turn, until `finish`."""
        self._producing = threading.Thread(target=self._produce, args=(per_second,), name="producer")
        self._producing.start()

    def finish(self, patience_s: float = PATIENCE_S) -> None:
        """Stops sending and waits until everything that was acknowledged has been seen; then judges."""
        self._stop.set()
        assert self._producing is not None
        self._producing.join()
        self._producing = None
        try:
            missing = -1

            def is_seen() -> bool:
                nonlocal missing
                missing = len(self.history().missing)
                return not missing

            until(is_seen, "all messages are seen", patience_s, progress=lambda: missing)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *faults(self.history())[:20]])) from None
        for name, process in self._processes.items():
            if process.poll() is None:
                self.stop(name)
        history = self.history()
        assert history.produced
        assert faults(history, self.committed()) == []

    def wait_for_more(self, count: int = 100, patience_s: float = PATIENCE_S) -> None:
        """Waits until so many more messages were dealt with."""
        before = len(self.history().consumed)
        until(lambda: len(self.history().consumed) >= before + count, f"{count} more messages", patience_s)

    def wait_for_more_of_each(self, count: int, patience_s: float = PATIENCE_S) -> None:
        """Waits until so many more messages of every partition were dealt with, for the first time or again."""

        def seen() -> Counter[int]:
            for name in self._processes:
                self._events(name)
            return Counter(self._seen)

        before = seen()
        until(
            lambda: min((seen() - before)[partition] for partition in range(self._partitions)) >= count,
            f"{count} more messages of every partition of {self.topic}",
            patience_s,
        )

    def wait_for_members(self, *names: str, patience_s: float = PATIENCE_S) -> None:
        """Waits until the group is stable with exactly these members, each with a partition if there are enough."""

        admin = self._admin()

        found = ""

        def is_so() -> bool:
            nonlocal found
            described = admin.describe_consumer_groups([self.group])[self.group].result()
            present = sorted(member.client_id for member in described.members)
            found = f"{described.state.name} with {', '.join(present)}"
            return described.state.name == "STABLE" and present == sorted(names)

        try:
            until(is_so, f"the group is stable with {', '.join(sorted(names))}", patience_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {found}") from None

    def described(self) -> dict[str, frozenset[int]]:
        """The partitions of each member, as the broker says."""
        admin = self._admin()
        found = admin.describe_consumer_groups([self.group])[self.group].result()
        return {
            member.client_id: frozenset(at.partition for at in member.assignment.topic_partitions)
            for member in found.members
        }

    def kind(self) -> str:
        """The protocol of the group."""
        admin = self._admin()
        listed = admin.list_consumer_groups().result().valid
        kinds = (str(found.type.name) for found in listed if found.group_id == self.group)
        return next(kinds).lower()

    def reset(self, offsets: Mapping[int, int]) -> None:
        """Sets the group's offsets while its members run."""
        places = [
            TopicPartition(self.topic, partition, offset, metadata=RESET_MARK) for partition, offset in offsets.items()
        ]
        asked = [ConsumerGroupTopicPartitions(self.group, places)]
        admin = self._admin()
        answer = admin.alter_consumer_group_offsets(asked)[self.group].result()
        assert [found.error for found in answer.topic_partitions] == [None] * len(places)

    def set_paused(self, is_paused: bool) -> None:
        """From now on the members receive nothing, or everything."""
        value = str(is_paused).lower()
        change = ConfigEntry("penstock.paused", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.GROUP, self.group, incremental_configs=[change])
        admin = self._admin()
        (answer,) = admin.incremental_alter_configs([resource]).values()
        answer.result()

    def owned(self) -> set[int]:
        """The partitions that the members believe to be theirs."""
        owned: set[int] = set()
        for name in self._processes:
            own: set[int] = set()
            for line in self._lines(name):
                said = json.loads(line)
                if said["kind"] == "assigned":
                    own |= set(said["partitions"])
                elif said["kind"] == "revoked":
                    own -= set(said["partitions"])
            owned |= own
        return owned

    def committed(self) -> dict[int, int]:
        """What the broker says that the group has committed."""
        asked = [ConsumerGroupTopicPartitions(self.group)]
        admin = self._admin()
        answer = admin.list_consumer_group_offsets(asked)[self.group].result()
        return {found.partition: found.offset for found in answer.topic_partitions}

    def history(self) -> History:
        events = [event for name in self._processes for event in self._events(name)]
        produced = dict(self._produced)
        if self._unplaced:
            seen = {(event.partition, event.payload) for event in events if isinstance(event, Consumed)}
            produced |= {(partition, -1): payload for partition, payload in self._unplaced - seen}
        return History(produced, events)

    def assignments_of(self, name: str) -> list[tuple[int, ...]]:
        return [event.partitions for event in self._events(name) if isinstance(event, Assigned)]

    def _has_begun(self, name: str) -> bool:
        """Whether the process that was started last has come so far that it leaves when it is asked to."""
        return any(f'"pid": {self._processes[name].pid}' in line for line in self._lines(name))

    def _diary(self, name: str) -> Path:
        return self._folder / f"{name}.diary"

    def _lines(self, name: str) -> list[str]:
        path = self._diary(name)
        # A line may be half written.
        return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []

    def _events(self, name: str) -> list[Event]:
        """All so far; only what is new is read, because it is asked for again and again while diaries grow long."""
        events, position = self._known.get(name, ([], 0))
        if self._diary(name).exists():
            with self._diary(name).open("rb") as diary:
                diary.seek(position)
                new = diary.read().rpartition(b"\n")[0]
            found = [event for line in new.splitlines() if (event := _event(name, json.loads(line))) is not None]
            self._seen.update(event.partition for event in found if isinstance(event, Consumed))
            events += found
            self._known[name] = events, position + (len(new) + 1 if new else 0)
        return events

    def _produce(self, per_second: int) -> None:
        producer = Producer(
            {
                **access.librdkafka(self.broker.kafka),
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )

        def report(error: KafkaError | None, message: Message) -> None:
            if error is None and message.offset() is not None:
                self._produced[place_of(message)] = (message.value() or b"").decode()
            elif error is None:
                self._unplaced.add((message.partition() or 0, (message.value() or b"").decode()))

        number = 0
        while not self._stop.wait(0.02):
            for _ in range(max(1, per_second // 50)):
                producer.produce(self.topic, str(number), partition=number % self._partitions, on_delivery=report)
                number += 1
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0


def _event(name: str, said: dict[str, object]) -> Event | None:
    kind, at_ns = said["kind"], said["at_ns"]
    assert isinstance(at_ns, int)
    match kind:
        case "assigned":
            return Assigned(at_ns, name, tuple(said["partitions"]))  # type: ignore[arg-type]
        case "consumed":
            return Consumed(at_ns, name, said["partition"], said["offset"], said["payload"])  # type: ignore[arg-type]
        case "committing":
            return Committing(at_ns, name, said["partition"], said["offset"])  # type: ignore[arg-type]
    return None
