"""The benchmark's own clients and arithmetic count right, without any broker."""

from __future__ import annotations

import socket
import struct
import threading

from aiokafka.record.default_records import DefaultRecordBatch
from bench.client.amqp import AmqpPublisher, Frames, method
from bench.client.raw import RawSubscriber
from bench.client.wire import record_batch
from bench.measure import Measure, Results


class PlainSubscriber(RawSubscriber):
    """Bodies after a four-byte marker, sent without being asked for."""

    def marker(self) -> bytes:
        return b"\r\n>>"

    def request(self, received: int, expected: int | None) -> None:
        assert expected is None or received <= expected


def test_markers_cut_between_two_packets_are_counted_once() -> None:
    ours, theirs = socket.socketpair()
    stream = (b"\r\n>>" + b"x" * 10) * 50
    subscriber = PlainSubscriber(ours, 10)

    def send_bytewise() -> None:
        for at in range(0, len(stream), 3):
            theirs.sendall(stream[at : at + 3])
        theirs.close()

    sender = threading.Thread(target=send_bytewise)
    sender.start()
    subscriber.count(50, 10)
    sender.join()
    subscriber.close()


def test_bodies_are_handed_over_until_told_to_stop() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"".join(b"\r\n>>" + b"%020d" % number for number in range(5)))
    seen: list[int] = []

    def on_body(body: bytes) -> bool:
        seen.append(int(body))
        return len(seen) < 3

    subscriber = PlainSubscriber(ours, 20)
    subscriber.each(on_body, 10)
    subscriber.close()
    theirs.close()
    assert len(seen) == 3


def test_confirms_out_of_order_and_for_several_are_counted_once() -> None:
    publisher = AmqpPublisher.__new__(AmqpPublisher)
    publisher._frames, publisher._low, publisher._above = Frames(), 0, set()

    def confirm(tag: int, multiple: int) -> bytes:
        return method(1, (60, 80), struct.pack(">QB", tag, multiple))

    assert publisher.acknowledged(confirm(3, 0)) == 1
    assert publisher.acknowledged(confirm(1, 0) + confirm(2, 0)[:9]) == 1
    assert publisher.acknowledged(confirm(2, 0)[9:]) == 1
    assert publisher.acknowledged(confirm(5, 0)) == 1
    assert publisher.acknowledged(confirm(7, 1)) == 3


def test_hand_made_batch_is_valid_for_another_parser() -> None:
    batch = DefaultRecordBatch(record_batch([b"ready"]))
    assert batch.validate_crc()
    assert [record.value for record in batch] == [b"ready"]


def test_ratio_is_of_medians_and_goal_knows_its_direction() -> None:
    speed = Measure(key="s", label="s", unit="MB/s", higher_is_better=True, goal=1.5)
    memory = Measure(key="m", label="m", unit="MB", higher_is_better=False, goal=0.15)
    results = Results(
        measures={"s": speed, "m": memory},
        values={"s": {"a": [30.0, 10.0, 20.0], "b": [10.0]}, "m": {"a": [2.0, 4.0], "b": [10.0, 10.0]}},
    )
    assert results.ratio("s", "a", "b") == 2.0
    assert results.ratio("m", "a", "b") == 0.3
    assert results.best("s", "a") == 30.0
    assert results.best("m", "a") == 2.0
    assert speed.meets(1.5) and not speed.meets(1.4)
    assert memory.meets(0.15) and not memory.meets(0.16)
