"""`penstock timer` as it is run, against a real broker."""

from __future__ import annotations

import json
import time

from confluent_kafka.admin import AdminClient, NewTopic

from support.broker_process import BrokerProcess
from support.commands import complaint, said, told
from support.delayed import Arrivals, Sending, delayed, send
from support.programs import PENSTOCK, run
from support.waiting import PATIENCE_S


def test_a_cancelled_timer_does_not_come_whichever_partition_it_waits_in(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 3)])[topic].result(PATIENCE_S)
    send(
        broker.kafka, topic, [delayed(b"gone", "4s", timer_id="A"), delayed(b"stays", "4s", timer_id="B")], partition=2
    )
    done = run([PENSTOCK, "timer", "cancel", topic, "A", "nobody", "--json", "-b", broker.kafka])
    assert json.loads(done.stdout) == {"topic": topic, "cancelled": {"A": [2]}, "not_found": ["nobody"]}
    assert f"no message waits in {topic} under timer id nobody" in complaint(done)
    with Arrivals(broker.kafka, topic, 2) as arrivals:
        arrivals.until(1)
    assert arrivals.values == [b"stays"]


def test_only_what_waits_is_said_to_be_cancelled(broker: BrokerProcess, admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2)])[topic].result(PATIENCE_S)
    send(broker.kafka, topic, [delayed(b"x", "1h", timer_id="A")], partition=1)
    cancel = [PENSTOCK, "timer", "cancel", topic, "-b", broker.kafka]
    nowhere = run([*cancel, "no-such-id"])
    assert "nothing to cancel" in complaint(nowhere) and nowhere.stdout == b""
    assert f"no message waits in partition 0 of {topic}" in complaint(run([*cancel, "A", "--partition", "0"]))
    assert said(run([*cancel, "A"])) == f"cancelled A in {topic}\n"
    # It waits no longer.
    assert "nothing to cancel" in complaint(run([*cancel, "A"]))


def test_a_topic_or_partition_that_is_not_there_is_named(broker: BrokerProcess, admin: AdminClient, topic: str) -> None:
    done = run([PENSTOCK, "timer", "cancel", topic, "A", "-b", broker.kafka])
    assert done.returncode == 1 and topic.encode() in done.stderr
    admin.create_topics([NewTopic(topic, 1)])[topic].result(PATIENCE_S)
    done = run([PENSTOCK, "timer", "cancel", topic, "A", "--partition", "7", "-b", broker.kafka])
    assert done.returncode == 1 and b"no partition 7" in done.stderr


def test_what_waits_is_listed_over_all_partitions_by_due_time_within_a_window(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 3)])[topic].result(PATIENCE_S)
    for partition in range(3):
        messages = [delayed(b"%d" % hours, f"{hours}h") for hours in range(1 + partition, 10, 3)]
        send(broker.kafka, topic, messages, partition=partition)
    base = [PENSTOCK, "timer", "list", topic, "-b", broker.kafka]
    found = told(run([*base, "--json"]))
    assert [each["value"] for each in found] == [str(hours) for hours in range(1, 10)]
    assert [each["partition"] for each in found] == [0, 1, 2] * 3
    assert abs(found[0]["due"] / 1000 - time.time() - 3600) < 600
    assert [each["value"] for each in told(run([*base, "--json", "--limit", "4"]))] == ["1", "2", "3", "4"]
    window = told(run([*base, "--json", "--from", "150m", "--until", "270m"]))
    assert [each["value"] for each in window] == ["3", "4"]
    assert [each["value"] for each in told(run([*base, "--json", "-p", "1", "--from", str(found[4]["due"])]))] == [
        "5",
        "8",
    ]
    lines = said(run([*base, "-n", "2"])).splitlines()
    assert lines[0].split() == ["DUE", "PARTITION", "TIMER", "ID", "SCHEDULE", "KEY", "VALUE"] and len(lines) == 3


def test_a_timer_is_shown_by_its_name_with_its_next_time(broker: BrokerProcess, topic: str) -> None:
    headers = [("penstock-schedule", b"cron 0 9 1 1 * Europe/Zurich"), ("penstock-timer-id", b"yearly"), ("x", b"y")]
    send(broker.kafka, topic, [Sending(b"hello", headers, b"key"), delayed(b"other", "1h", timer_id="other")])
    (found,) = told(run([PENSTOCK, "timer", "show", topic, "yearly", "--json", "-b", broker.kafka]))
    assert (found["timer_id"], found["key"], found["value"]) == ("yearly", "key", "hello")
    assert found["schedule"] == "cron 0 9 1 1 * Europe/Zurich" and ["x", "y"] in found["headers"]
    shown = time.gmtime(found["due"] / 1000)
    assert (shown.tm_mon, shown.tm_mday, shown.tm_hour, shown.tm_min) == (1, 1, 8, 0)
    text = said(run([PENSTOCK, "timer", "show", topic, "yearly", "-b", broker.kafka]))
    assert "-01-01T08:00:00.000Z" in text and "hello" in text
    words = complaint(run([PENSTOCK, "timer", "show", topic, "nobody", "-b", broker.kafka]))
    assert f"no message waits in {topic} under the timer id nobody" in words


def test_a_time_that_cannot_be_understood_is_refused(broker: BrokerProcess, topic: str) -> None:
    done = run([PENSTOCK, "timer", "list", topic, "--from", "soonish", "-b", broker.kafka])
    assert done.returncode == 2 and b"soonish" in done.stderr


def test_a_topic_in_which_nothing_waits_lists_nothing(broker: BrokerProcess, topic: str) -> None:
    send(broker.kafka, topic, [Sending(b"now")])
    assert told(run([PENSTOCK, "timer", "list", topic, "--json", "-b", broker.kafka])) == []
    done = run([PENSTOCK, "timer", "list", topic, "-b", broker.kafka])
    assert done.returncode == 0 and b"no message waits" in done.stderr
