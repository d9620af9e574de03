"""What operators see of messages that wait: sizes, counts, lateness, files; and the longest names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from kafka.admin import KafkaAdminClient

from support.broker_process import BrokerProcess
from support.commands import told
from support.delayed import Arrivals, Sending, delayed, send
from support.programs import PENSTOCK, run
from support.waiting import PATIENCE_S, until

BrokerFactory = Callable[..., BrokerProcess]
LONGEST = "n" * 249


def place(topic: str) -> tuple[tuple[str, str], ...]:
    return (("partition", "0"), ("topic", topic))


def size_of(broker: BrokerProcess, topic: str) -> int:
    """The bytes of a topic, as DescribeLogDirs tells them."""
    admin = KafkaAdminClient(bootstrap_servers=broker.kafka)
    try:
        (described,) = admin.describe_log_dirs([topic])
    finally:
        admin.close()
    (folder,) = described["log_dirs"]
    return sum(partition["partition_size"] for each in folder["topics"] for partition in each["partitions"])


def dumped(path: Path) -> list[dict[str, object]]:
    done = run([PENSTOCK, "dump", str(path), "--json"])
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_sizes_counts_and_lateness_are_told(new_broker: BrokerFactory) -> None:
    broker = new_broker()
    topic = "t"
    waiting = [delayed(b"x" * 1000, "1h", timer_id=f"n{number}") for number in range(100)]
    send(broker.kafka, topic, [*waiting, delayed(b"soon", "300"), delayed(b"soon", "300")])
    send(broker.kafka, topic, [Sending(b"", [("penstock-cancel", b"n7")])])
    with Arrivals(broker.kafka, topic) as arrivals:
        arrivals.until(2)
    pending = ("penstock_delayed_pending", place(topic))
    until(lambda: broker.metrics(pending[0])[pending] == 99, "99 are pending")
    values = broker.metrics()
    assert values["penstock_delayed_delivered_total", ()] == 2
    assert values["penstock_delayed_damaged_total", ()] == 0
    assert values["penstock_delayed_lateness_seconds_count", ()] == 2
    assert values["penstock_delayed_lateness_seconds_bucket", (("le", "+Inf"),)] == 2
    assert values["penstock_companion_size_bytes", place(topic)] > 100_000
    assert values["penstock_log_size_bytes", place(topic)] < 20_000
    assert size_of(broker, topic) > 100_000
    broker.kill()
    broker.start()
    until(lambda: broker.metrics(pending[0]).get(pending) == 99, "99 are pending again")


def test_the_files_of_the_index_can_be_dumped(new_broker: BrokerFactory) -> None:
    broker = new_broker()
    before_ms = int(time.time() * 1000)
    send(broker.kafka, "t", [delayed(b"x", "1h", timer_id="A"), Sending(b"y", [("penstock-schedule", b"every 2h")])])
    assert broker.stop() == 0
    folder = broker.data / "logs" / "t:0"
    (due,), (ids,) = folder.glob("*.due"), folder.glob("*.ids")
    first, second, end = dumped(due)
    assert before_ms + 3_600_000 <= int(str(first["due"])) <= before_ms + 3_700_000 and first["named"] is True
    assert second["recurs"] is True and "named" not in second
    assert end["items"] == 2
    assert dumped(ids)[0]["due"] == first["due"]
    (state,) = dumped(folder / "timers.json")
    assert state["pending"] == 2 and state["runs"] == [due.name, ids.name]
    content = bytearray(due.read_bytes())
    content[3] ^= 1
    due.write_bytes(content)
    done = run([PENSTOCK, "dump", str(due)])
    assert done.returncode == 1 and b"DAMAGED" in done.stdout


def test_a_topic_with_the_longest_name_keeps_messages_for_later_and_goes_without_a_trace(
    new_broker: BrokerFactory,
) -> None:
    broker = new_broker()
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(LONGEST, 11)])[LONGEST].result(PATIENCE_S)
    send(broker.kafka, LONGEST, [delayed(b"later", "1h"), delayed(b"soon", "100")], partition=10)
    with Arrivals(broker.kafka, LONGEST, 10) as arrivals:
        arrivals.until(1)
    broker.kill()
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    # kafka-python refuses the name of what shows it: it is longer than that of any topic.
    assert [
        each["value"] for each in told(run([PENSTOCK, "timer", "list", LONGEST, "--json", "-b", broker.kafka]))
    ] == ["later"]
    admin.delete_topics([LONGEST])[LONGEST].result(PATIENCE_S)
    logs = broker.data / "logs"
    until(lambda: not [name for name in os.listdir(logs) if name.startswith("n")], "nothing is left of it")


def test_time_zones_are_known_on_a_machine_that_has_none() -> None:
    code = (
        "from penstock.durations import parse_duration\n"
        "from penstock.recurrence import parse_recurrence\n"
        "print(parse_recurrence('cron 0 9 * * * Europe/Zurich', parse_duration).first(0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONTZPATH": ""}, capture_output=True, check=True, timeout=PATIENCE_S
    )
    assert int(done.stdout) == 8 * 3_600_000
