"""History out of a lake to a topic, each record once however often it is asked for; and to a group up to the log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.pipeline.failure import DataLossError, PipelineError
from penstock.pipeline.lake.selection import Selection
from penstock.pipeline.replay.replay import Replay, ReplayOptions, replay_id_of
from support.broker_process import BrokerProcess
from support.confluent import consumer_of
from support.lake import HereWorkers, archive_all, archiver_of, lake_of
from support.messages import headers_of
from support.programs import run
from support.spark import send
from support.waiting import until

MakeTopic = Callable[..., str]
Item = TypeVar("Item")
Result = TypeVar("Result")
DAY_MS = 86_400_000
SENT_MS = 1_700_000_000_000


def replay_of(broker: BrokerProcess, folder: Path, selection: Selection, target: str, **more: Any) -> Replay:
    workers = more.pop("workers", HereWorkers())
    return Replay(
        ReplayOptions({"bootstrap.servers": broker.kafka}, selection, target, **more), lake_of(folder), workers
    )


def read(broker: BrokerProcess, topic: str, partitions: int = 1) -> list[tuple[int, bytes | None, str]]:
    """Partition, value and source of every committed record, by partition."""
    found = []
    for number in range(partitions):
        consumer = consumer_of(broker, **{"isolation.level": "read_committed", "enable.partition.eof": True})
        consumer.assign([TopicPartition(topic, number, 0)])
        try:
            while (message := _next(consumer)).error() is None:
                headers = dict(headers_of(message))
                found.append((number, message.value(), (headers.get("penstock-replay-of") or b"").decode()))
        finally:
            consumer.close()
    return found


def _next(consumer: Consumer) -> Message:
    message = until(lambda: consumer.poll(0.2), "a record or the end")
    assert message is not None
    return message


def delete_below(admin: AdminClient, topic: str, offset: int, partition: int = 0) -> None:
    (deleted,) = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
    deleted.result(30)


def test_history_that_brokers_no_longer_have_is_sent_once(
    broker: BrokerProcess, make_topic: MakeTopic, topic: str, tmp_path: Path, admin: AdminClient
) -> None:
    source, target = make_topic(2), make_topic(2, f"{topic}-again")
    for number in range(2):
        send(broker, source, [b"%d-%d" % (number, each) for each in range(5)], number, key=b"k")
    archiver = archiver_of(broker, tmp_path, source)
    archive_all(archiver)
    for number in range(2):
        delete_below(admin, source, 5, number)
    everything = Selection(topic=source)
    replay = replay_of(broker, tmp_path, everything, target)
    assert [(each.partition, each.rows) for each in replay.count()] == [(0, 5), (1, 5)]
    assert read(broker, target, 2) == []
    assert sum(each.rows for each in replay.run()) == 10
    expected = [
        (number, b"%d-%d" % (number, each), f"{source}/{number}/{each}") for number in (0, 1) for each in range(5)
    ]
    assert read(broker, target, 2) == expected
    assert replay.progress()[0] == replay.progress()[1] > 0
    # Asked for once more, and by somebody else, there is nothing to do.
    assert sum(each.rows for each in replay.run()) == 0
    assert sum(each.rows for each in replay_of(broker, tmp_path, everything, target).run()) == 0
    # What has been archived since is new.
    send(broker, source, [b"0-5"], 0)
    archive_all(archiver)
    assert sum(each.rows for each in replay_of(broker, tmp_path, everything, target).run()) == 1
    assert len(read(broker, target, 2)) == 11
    # Under another name it is another replay.
    assert sum(each.rows for each in replay_of(broker, tmp_path, everything, target, replay_id="2").run()) == 11


def test_only_what_is_asked_for_is_sent(
    broker: BrokerProcess, make_topic: MakeTopic, topic: str, tmp_path: Path
) -> None:
    source = make_topic(2)
    for number in range(10):
        headers = [("penstock-biz-id", b"id-%d" % number), ("penstock-tags", b"even,x" if number % 2 == 0 else b"odd")]
        time_ms = SENT_MS + number * DAY_MS
        send(broker, source, [b"%d" % number], number % 2, key=b"k%d" % number, headers=headers, timestamp=time_ms)
    archive_all(archiver_of(broker, tmp_path, source))

    def found(**wanted: Any) -> list[bytes | None]:
        target = make_topic(1, f"{topic}-{len(asked)}")
        asked.append(target)
        replay = replay_of(broker, tmp_path, Selection(topic=source, **wanted), target)
        counted = sum(each.rows for each in replay.count())
        replay.run()
        values = sorted(value for _, value, _ in read(broker, target) if value is not None)
        assert counted == len(values)
        return list(values)

    asked: list[str] = []
    assert found(partitions=frozenset({1})) == [b"1", b"3", b"5", b"7", b"9"]
    assert found(first=1, end=3) == [b"2", b"3", b"4", b"5"]
    assert found(since_ms=SENT_MS + 7 * DAY_MS) == [b"7", b"8", b"9"]
    assert found(until_ms=SENT_MS + DAY_MS) == [b"0"]
    assert found(keys=frozenset({b"k3", b"k4", b"none"})) == [b"3", b"4"]
    assert found(tags=frozenset({"x", "y"}), first=3) == [b"6", b"8"]
    assert found(biz_ids=frozenset({"id-9"})) == [b"9"]


def test_a_replay_that_is_interrupted_goes_on(
    broker: BrokerProcess, make_topic: MakeTopic, topic: str, tmp_path: Path
) -> None:
    source, target = make_topic(3), make_topic(3, f"{topic}-again")
    for number in range(3):
        send(broker, source, [b"%d-%d" % (number, each) for each in range(50)], number)
    archive_all(archiver_of(broker, tmp_path, source))

    class Dying(HereWorkers):
        def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
            # Footers are looked at by one task; replays by one for each partition.
            if len(items) == 1:
                return super().run(function, items)
            super().run(function, items[:2])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay_of(broker, tmp_path, Selection(topic=source), target, workers=Dying()).run()
    assert len(read(broker, target, 3)) == 100
    assert sum(each.rows for each in replay_of(broker, tmp_path, Selection(topic=source), target).run()) == 50
    values = [value for _, value, _ in read(broker, target, 3)]
    assert values == [b"%d-%d" % (number, each) for number in range(3) for each in range(50)]


def test_a_group_gets_history_and_log_without_a_gap_or_a_repeat(
    broker: BrokerProcess, make_topic: MakeTopic, topic: str, tmp_path: Path, admin: AdminClient
) -> None:
    source, target = make_topic(), make_topic(1, f"{topic}-again")
    send(broker, source, [b"%02d" % number for number in range(20)])
    archive_all(archiver_of(broker, tmp_path, source))
    # The log has 15 to 29, the lake 0 to 19.
    send(broker, source, [b"%02d" % number for number in range(20, 30)])
    delete_below(admin, source, 15)
    group = f"group-{topic}"
    replay_of(broker, tmp_path, Selection(topic=source, first=5), target, group=group).run()
    assert [value for _, value, _ in read(broker, target)] == [b"%02d" % number for number in range(5, 30)]
    send(broker, source, [b"30", b"31"])
    consumer = consumer_of(broker, **{"group.id": group})
    consumer.subscribe([source])
    try:
        messages = [_next(consumer) for _ in range(2)]
        assert [each.value() for each in messages] == [b"30", b"31"]
        consumer.commit(message=messages[-1], asynchronous=False)
    finally:
        consumer.close()
    # Run once more, it leaves the group, which is further by now, where it is.
    send(broker, source, [b"32"])
    assert replay_of(broker, tmp_path, Selection(topic=source, first=5), target, group=group).run() == []
    assert len(read(broker, target)) == 25
    (committed,) = consumer_of(broker, **{"group.id": group}).committed([TopicPartition(source, 0)], timeout=30)
    assert committed.offset == 32


def test_the_same_wish_is_the_same_replay_in_every_process() -> None:
    script = """
from penstock.pipeline.replay.replay import replay_id_of
from penstock.pipeline.lake.selection import Selection
sets = {name: frozenset({"a", "b", "c"}) for name in ("tags", "biz_ids")}
print(replay_id_of("lake", Selection("orders", keys=frozenset({b"k1", b"k2", b"k3"}), **sets), "again"))
"""
    told = {run([sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}).stdout for seed in "12345"}
    assert len(told) == 1
    assert len(told.pop().strip()) == 16


def test_a_window_in_words_is_the_same_replay_later() -> None:
    early, late = (Selection("orders", since_ms=since) for since in (1000, 2000))
    words = ("2h ago", None)
    assert replay_id_of("lake", early, "again", window=words) == replay_id_of("lake", late, "again", window=words)
    assert replay_id_of("lake", early, "again") != replay_id_of("lake", late, "again")


def test_a_gap_between_lake_and_log_is_an_error(
    broker: BrokerProcess, make_topic: MakeTopic, topic: str, tmp_path: Path, admin: AdminClient
) -> None:
    source, target = make_topic(), make_topic(1, f"{topic}-again")
    send(broker, source, [b"a", b"b"])
    archive_all(archiver_of(broker, tmp_path, source))
    send(broker, source, [b"c", b"d"])
    delete_below(admin, source, 3)
    with pytest.raises(DataLossError, match="the lake ends at 2 and the log begins at 3"):
        replay_of(broker, tmp_path, Selection(topic=source), target, group="g").run()
    with pytest.raises(PipelineError, match="cannot be replayed to itself"):
        replay_of(broker, tmp_path, Selection(topic=source), source).run()
    with pytest.raises(PipelineError, match="there is no topic nowhere to replay to"):
        replay_of(broker, tmp_path, Selection(topic=source), "nowhere").run()
