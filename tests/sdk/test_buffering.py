"""What a client does with messages while the cluster is away: `Keep`, `Drop`, `Spill`."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

import penstock
from conftest import BrokerFactory
from support import spilling_client
from support.broker_process import BrokerProcess
from support.confluent import consumer_of
from support.foreign import values_in
from support.ports import first_of_free_ports
from support.programs import dying_with_us, environment
from support.waiting import PATIENCE_S, until

Program = subprocess.Popen[str]
StartProgram = Callable[..., Program]


@pytest.fixture
def nobody() -> str:
    """An address where no broker is."""
    return f"127.0.0.1:{first_of_free_ports(1)}"


@pytest.fixture
def start_program() -> Iterator[StartProgram]:
    """Runs the spilling client in a process of its own."""
    started: list[Program] = []

    def start(kafka: str, topic: str, folder: Path, first: int = 0, count: int = 0) -> Program:
        words = [sys.executable, spilling_client.__file__, kafka, topic, str(folder), str(first), str(count)]
        program = subprocess.Popen(dying_with_us(words), stdout=subprocess.PIPE, text=True, env=environment())
        started.append(program)
        return program

    yield start
    for program in started:
        program.kill()
        program.wait()


def said_until(program: Program, enough: Callable[[str], bool]) -> list[str]:
    """The lines that a program prints up to one that is enough, or to its end."""
    assert program.stdout is not None
    found: list[str] = []
    deadline = time.monotonic() + 2 * PATIENCE_S
    for line in program.stdout:
        found.append(line.strip())
        if enough(found[-1]):
            break
        assert time.monotonic() < deadline, f"not within {2 * PATIENCE_S:g} s, but {found[-20:]}"
    return found


def numbers(lines: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in lines if line.startswith(("sent", "spilled"))]


def arrived_in(kafka: str, topic: str) -> list[bytes | None]:
    """Each value once, in order: what was on its way when a time-out passed may be there twice."""
    return list(dict.fromkeys(values_in(kafka, topic)))


def spill(folder: Path, **more: int) -> penstock.Sending:
    return penstock.Sending(tries=1, try_timeout="500ms", when_away=penstock.Spill(folder, **more))


def test_kept_messages_are_sent_when_the_cluster_comes_back(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    with penstock.Client(broker.kafka) as client:
        client.send(topic, b"first", partition=0)
        broker.kill()
        futures = [client.send_soon(topic, str(number), partition=0) for number in range(100)]
        assert client.counters.buffered == 100
        broker.start()
        assert [future.result(PATIENCE_S).offset for future in futures] == list(range(1, 101))


def test_what_does_not_fit_into_memory_fails_and_is_not_kept(nobody: str, topic: str) -> None:
    sending = penstock.Sending(tries=1, try_timeout="1s", when_away=penstock.Keep(messages=10))
    with penstock.Client(nobody, sending=sending) as client:
        futures = [client.send_soon(topic, b"value") for _ in range(12)]
        for future in futures[10:]:
            assert isinstance(future.exception(0), penstock.BufferFullError)
        assert client.counters.buffered == 10
        with pytest.raises(penstock.SendError):
            client.send(topic, b"waits for room as long as it is tried")
        client.flush()
        assert client.counters.dropped == 0
        assert client.counters.failed == 13


def test_dropped_messages_are_counted(nobody: str, topic: str) -> None:
    sending = penstock.Sending(tries=1, try_timeout="500ms", when_away=penstock.Drop(messages=10))
    with penstock.Client(nobody, sending=sending) as client:
        futures = [client.send_soon(topic, b"value") for _ in range(25)]
        assert client.counters.dropped == 15
        with pytest.raises(penstock.BufferFullError):
            client.send(topic, b"nobody waits")
        client.flush()
        assert all(isinstance(future.exception(0), penstock.SendError) for future in futures)
        assert client.counters.dropped == 26


def test_a_bound_in_bytes_holds_too(nobody: str, topic: str) -> None:
    sending = penstock.Sending(tries=1, try_timeout="200ms", when_away=penstock.Drop(bytes=100_000))
    with penstock.Client(nobody, sending=sending) as client:
        for _ in range(20):
            client.send_soon(topic, b"x" * 10_000)
        assert client.counters.dropped == 11


def test_spilled_messages_arrive_in_order_when_the_cluster_comes_back(
    new_broker: BrokerFactory, topic: str, tmp_path: Path
) -> None:
    broker = new_broker()
    with penstock.Client(broker.kafka, sending=spill(tmp_path)) as client:
        client.send(topic, b"0", partition=0)
        broker.kill()
        receipts = [client.send(topic, str(number), partition=0) for number in range(1, 500)]
        assert all(receipt.is_spilled and receipt.partition is None for receipt in receipts)
        assert client.counters.spilled >= 499
        broker.start()
        assert client.flush(60)
        assert client.counters == penstock.Counters(sent=500)
        client.send(topic, b"500", partition=0)
        assert client.flush(60)
    assert arrived_in(broker.kafka, topic) == [str(number).encode() for number in range(501)]
    assert list(tmp_path.glob("*.spill")) == []


def test_what_is_on_its_way_when_the_cluster_goes_is_spilled_in_order_with_what_comes_after(
    new_broker: BrokerFactory, topic: str, tmp_path: Path
) -> None:
    broker = new_broker()
    with penstock.Client(broker.kafka, sending=spill(tmp_path)) as client:
        client.send(topic, b"0", partition=0)
        broker.kill()
        futures = [client.send_soon(topic, str(number), partition=0) for number in range(1, 2000)]
        assert all(future.result(PATIENCE_S).is_spilled for future in futures)
        futures += [client.send_soon(topic, str(number), partition=0) for number in range(2000, 3000)]
        broker.start()
        assert client.flush(60)
        assert all(future.done() for future in futures)
    assert arrived_in(broker.kafka, topic) == [str(number).encode() for number in range(3000)]


def test_messages_go_to_disk_when_memory_is_full(new_broker: BrokerFactory, topic: str, tmp_path: Path) -> None:
    broker = new_broker()
    sending = penstock.Sending(when_away=penstock.Spill(tmp_path, memory_messages=50))
    with penstock.Client(broker.kafka, sending=sending) as client:
        client.send(topic, b"0", partition=0)
        broker.kill()
        futures = [client.send_soon(topic, str(number), partition=0) for number in range(1, 200)]
        assert all(future.result(PATIENCE_S).is_spilled for future in futures)
        broker.start()
        assert client.flush(60)
    assert arrived_in(broker.kafka, topic) == [str(number).encode() for number in range(200)]


def test_a_full_folder_takes_no_more(nobody: str, topic: str, tmp_path: Path) -> None:
    with penstock.Client(nobody, sending=spill(tmp_path, bytes=10_000)) as client:
        assert client.send(topic, b"x" * 5000).is_spilled
        with pytest.raises(penstock.BufferFullError, match=r"has 50\d\d bytes"):
            client.send(topic, b"x" * 5000)
        assert client.counters.spilled == 1
        client.close(timeout=0)


def test_closing_leaves_on_disk_what_could_not_be_sent(new_broker: BrokerFactory, topic: str, tmp_path: Path) -> None:
    broker = new_broker()
    patient = penstock.Sending(when_away=penstock.Spill(tmp_path))
    client = penstock.Client(broker.kafka, sending=patient)
    client.send(topic, b"0", partition=0)
    broker.kill()
    futures = [client.send_soon(topic, str(number), partition=0) for number in range(1, 100)]
    client.close(timeout=0)
    assert all(future.result(0).is_spilled for future in futures)
    broker.start()
    with penstock.Client(broker.kafka, sending=patient) as client:
        assert client.counters.spilled >= 99
        client.send(topic, b"100", partition=0)
        assert client.flush(60)
    assert arrived_in(broker.kafka, topic) == [str(number).encode() for number in range(101)]


def test_a_folder_belongs_to_one_client_at_a_time(nobody: str, tmp_path: Path) -> None:
    held = penstock.Client(nobody, sending=spill(tmp_path))
    with pytest.raises(penstock.SpillError, match="is in use by another client"):
        penstock.Client(nobody, sending=spill(tmp_path))
    held.close()
    penstock.Client(nobody, sending=spill(tmp_path)).close()


def test_a_folder_that_cannot_be_made_is_named(nobody: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(penstock.SpillError, match=r"could not use spill folder .*file/folder"):
        penstock.Client(nobody, sending=spill(tmp_path / "file" / "folder"))


def test_what_the_cluster_refuses_after_all_is_kept_aside_and_holds_up_nothing(
    new_broker: BrokerFactory, topic: str, tmp_path: Path
) -> None:
    broker = new_broker()
    with penstock.Client(broker.kafka, sending=spill(tmp_path)) as client:
        client.send(topic, b"0", partition=0)
        broker.kill()
        client.send(topic, b"1", partition=0)
        assert client.send(topic, b"bad", partition=0, headers={"penstock-delay": "whenever"}).is_spilled
        client.send(topic, b"2", partition=0)
        broker.start()
        assert client.flush(60)
        assert client.counters.refused == 1
    assert b"whenever" in (tmp_path / "refused.spill").read_bytes()
    assert arrived_in(broker.kafka, topic) == [b"0", b"1", b"2"]


def test_nothing_answered_is_lost_when_the_client_is_killed_and_the_next_one_goes_on(
    new_broker: BrokerFactory, start_program: StartProgram, topic: str, tmp_path: Path
) -> None:
    broker = new_broker()
    first = start_program(broker.kafka, topic, tmp_path, 0, 100_000)
    answered = numbers(said_until(first, lambda line: line.endswith(" 100")))
    broker.kill()
    answered += numbers(said_until(first, lambda line: line.startswith("spilled") and line.endswith("77")))
    first.kill()
    answered += numbers(said_until(first, lambda _: False))
    broker.start()
    second = start_program(broker.kafka, topic, tmp_path, 200_000, 100)
    answered += numbers(said_until(second, lambda line: line.startswith("empty")))
    found = [int(value or b"") for value in values_in(broker.kafka, topic)]
    assert set(answered) <= set(found)
    firsts = list(dict.fromkeys(found))
    assert firsts == sorted(firsts)


def test_a_client_that_is_killed_while_it_empties_its_folder_repeats_little_and_loses_nothing(
    new_broker: BrokerFactory, start_program: StartProgram, topic: str, tmp_path: Path
) -> None:
    broker = new_broker()
    wanted = 20_000
    with penstock.Client(broker.kafka, sending=spill(tmp_path)) as client:
        client.send(topic, b"0", partition=0)
        broker.kill()
        futures = [client.send_soon(topic, str(number), partition=0) for number in range(1, wanted)]
        assert all(future.result(PATIENCE_S).is_spilled for future in futures)
        client.close(timeout=0)
    broker.start()
    for round_number in range(1, 4):
        program = start_program(broker.kafka, topic, tmp_path)
        wish = wanted * round_number // 5
        until(lambda wish=wish: _end_of(broker, topic) > wish, "the folder is being emptied")
        program.kill()
        program.wait()
    last = start_program(broker.kafka, topic, tmp_path)
    assert said_until(last, lambda line: line.startswith("empty"))[-1].startswith("empty")
    found = [int(value or b"") for value in values_in(broker.kafka, topic)]
    lost = set(range(wanted)) - set(found)
    repeated = len(found) - len(set(found))
    assert not lost
    # At most what one client has on its way, for each of the three that were killed.
    assert repeated <= 3 * 2000
    assert list(dict.fromkeys(found)) == list(range(wanted))


def _end_of(broker: BrokerProcess, topic: str) -> int:
    consumer = consumer_of(broker)
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S)[1])
    finally:
        consumer.close()


def test_many_threads_spill_and_each_keeps_its_order(new_broker: BrokerFactory, topic: str, tmp_path: Path) -> None:
    broker = new_broker()
    with penstock.Client(broker.kafka, sending=spill(tmp_path)) as client:
        client.send(topic, b"first", partition=0)

        def send(name: int) -> None:
            for number in range(300):
                client.send_soon(topic, f"{name} {number}", partition=0)

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads[:2]:
            thread.start()
        broker.kill()
        for thread in threads[2:]:
            thread.start()
        for thread in threads:
            thread.join()
        broker.start()
        assert client.flush(60)
    found = list(dict.fromkeys(value or b"" for value in values_in(broker.kafka, topic)))
    for name in range(4):
        own = [value for value in found if value.startswith(b"%d " % name)]
        assert own == [b"%d %d" % (name, number) for number in range(300)]
