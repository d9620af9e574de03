"""`penstock group` as it is run, against a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from subprocess import CompletedProcess

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.sdk.topic_names import retry_topic
from support.broker_process import BrokerProcess
from support.commands import complaint, said, told
from support.confluent import join_without_reading, read, send
from support.programs import PENSTOCK, in_terminal, run
from support.waiting import until

Penstock = Callable[..., CompletedProcess[bytes]]


@pytest.fixture
def penstock(broker: BrokerProcess) -> Penstock:
    def call(*arguments: str) -> CompletedProcess[bytes]:
        return run([PENSTOCK, "group", *arguments, "-b", broker.kafka])

    return call


@pytest.fixture
def group(broker: BrokerProcess, admin: AdminClient, topic: str) -> str:
    """A group without members, named as a topic of two partitions; it has read 3 of 5 records in partition 0."""
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    send(broker, topic, [b"1", b"2", b"3", b"4", b"5"])
    places = [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 0)]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(topic, places)])[topic].result()
    return topic


@pytest.fixture
def joined(broker: BrokerProcess, group: str) -> Iterator[tuple[Consumer, list[list[TopicPartition]]]]:
    """A member, and the assignments that it has had."""
    settings = {
        "bootstrap.servers": broker.kafka,
        "group.id": group,
        "client.id": "reader",
        "enable.auto.commit": False,
        "heartbeat.interval.ms": 200,
    }
    consumer = Consumer(settings)
    yield consumer, join_without_reading(consumer, group)
    consumer.close()


@pytest.fixture
def member(joined: tuple[Consumer, list[list[TopicPartition]]]) -> Consumer:
    return joined[0]


def offsets(admin: AdminClient, group: str) -> list[int]:
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
    return [found.offset for found in sorted(answer.topic_partitions, key=lambda found: found.partition)]


def test_groups_are_listed(penstock: Penstock, group: str) -> None:
    assert {"group": group, "state": "empty", "paused": False, "paused_topics": []} in told(penstock("list", "--json"))
    assert group in said(penstock("list"))


def test_a_group_without_members_is_described(penstock: Penstock, group: str) -> None:
    (described,) = told(penstock("describe", group, "--json"))
    assert (described["state"], described["members"]) == ("empty", [])
    assert described["offsets"] == [
        {"topic": group, "partition": 0, "committed": 3, "end": 5, "lag": 2, "client": None},
        {"topic": group, "partition": 1, "committed": 0, "end": 0, "lag": 0, "client": None},
    ]
    text = said(penstock("describe", group))
    assert f"group {group}: empty, no members" in text
    assert "total lag: 2" in text


def test_a_group_with_members_is_described(penstock: Penstock, group: str, member: Consumer) -> None:
    (described,) = told(penstock("describe", group, "--json"))
    assert (described["state"], described["assignor"]) == ("stable", "range")
    (found,) = described["members"]
    assert (found["client"], found["host"], found["instance"]) == ("reader", "127.0.0.1", "")
    assert found["partitions"] == [{"topic": group, "partition": 0}, {"topic": group, "partition": 1}]
    assert [each["client"] for each in described["offsets"]] == ["reader", "reader"]
    text = said(penstock("describe", group))
    assert f"group {group}: stable, range, 1 member\n" in text
    assert f"{group}:0,1" in text


def test_a_group_that_is_not_there_is_named_with_its_nearest(penstock: Penstock, group: str) -> None:
    assert f"there is no group {group}~; did you mean {group}?" in complaint(penstock("describe", f"{group}~"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--to-offset", "1"], [1, 0]),
        (["--to-offset", "4", "--topic", "{}:0"], [4, 0]),
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [5, 0]),
        (["--to-latest", "--topic", "{}:1"], [3, 0]),
        (["--to-time", "1h ago"], [0, 0]),
        (["--to-time", "2100-01-01T00:00:00Z"], [5, 0]),
        (["--shift-by", "-2"], [1, 0]),
        (["--shift-by", "1"], [4, 0]),
        (["--shift-by", "-100"], [0, 0]),
        (["--shift-by", "100", "--topic", "{}"], [5, 0]),
    ],
)
def test_offsets_are_set(
    penstock: Penstock, admin: AdminClient, group: str, options: list[str], expected: list[int]
) -> None:
    arguments = [option.format(group) for option in options]
    if options[0] == "--to-offset" and len(options) == 2:
        arguments += ["--topic", f"{group}:0"]
    dry = told(penstock("reset", group, *arguments, "--dry-run", "--json"))
    assert dry["changed"] is False
    assert offsets(admin, group) == [3, 0]
    done = told(penstock("reset", group, *arguments, "--yes", "--json"))
    assert done["changed"] is True
    assert done["offsets"] == dry["offsets"]
    assert offsets(admin, group) == expected


def test_what_was_set_is_shown(penstock: Penstock, group: str) -> None:
    assert "nothing was changed" in said(penstock("reset", group, "--to-earliest", "--dry-run"))
    assert f"group {group} continues from there" in said(penstock("reset", group, "--to-earliest", "--yes"))


def test_what_is_handled_again_and_what_is_skipped_is_shown(penstock: Penstock, group: str) -> None:
    back = said(penstock("reset", group, "--to-earliest", "--dry-run"))
    assert f"{group}: up to 3 messages will be handled again\n" in back
    forth = said(penstock("reset", group, "--to-latest", "--dry-run"))
    assert f"{group}: up to 2 messages will be skipped\n" in forth
    told_so = told(penstock("reset", group, "--to-earliest", "--dry-run", "--json"))
    assert told_so["topics"] == {group: {"repeated": 3, "skipped": 0}}


def test_nothing_is_set_where_nobody_can_be_asked(penstock: Penstock, admin: AdminClient, group: str) -> None:
    done = penstock("reset", group, "--to-earliest")
    assert done.returncode == 1
    assert b"nothing was changed: not a terminal" in done.stderr and b"--yes" in done.stderr
    assert b"up to 3 messages will be handled again" in done.stdout
    assert offsets(admin, group) == [3, 0]


@pytest.mark.parametrize(("answer", "expected"), [("y", [0, 0]), ("n", [3, 0])])
def test_in_a_terminal_it_is_asked_first(
    broker: BrokerProcess, admin: AdminClient, group: str, answer: str, expected: list[int]
) -> None:
    """What will be handled again is there to be read before the answer."""
    code, screen = in_terminal([PENSTOCK, "group", "reset", group, "--to-earliest", "-b", broker.kafka], f"{answer}\n")
    assert screen.index("up to 3 messages will be handled again") < screen.index(f"Reset the offsets of group {group}?")
    assert (code == 0) == (answer == "y")
    assert ("nothing was changed" in screen) == (answer == "n")
    assert offsets(admin, group) == expected


def test_retries_and_dead_letters_are_left_out_unless_asked_for(
    penstock: Penstock, broker: BrokerProcess, admin: AdminClient, group: str
) -> None:
    """What has failed, and was done since, would be done twice."""
    retries = [retry_topic(group, group), f"{group}.retry", f"{group}.dead"]
    for name in retries:
        admin.create_topics([NewTopic(name, 1, 1)])[name].result()
        send(broker, name, [b"1", b"2"])
        places = [TopicPartition(name, 0, 2)]
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])[group].result()
    done = told(penstock("reset", group, "--to-earliest", "--yes", "--json"))
    assert {each["topic"] for each in done["offsets"]} == {group}
    assert done["left_out"] == sorted(retries)
    text = said(penstock("reset", group, "--to-earliest", "--dry-run"))
    for name in retries:
        assert f"{name} is left out, so that failed work is not repeated; --include-retries resets it too\n" in text
    everything = told(penstock("reset", group, "--to-earliest", "--include-retries", "--dry-run", "--json"))
    assert everything["left_out"] == []
    assert everything["topics"][retries[0]] == {"repeated": 2, "skipped": 0}
    named = told(penstock("reset", group, "--to-earliest", "--topic", retries[0], "--dry-run", "--json"))
    assert named["topics"] == {retries[0]: {"repeated": 2, "skipped": 0}}


def test_a_group_that_has_read_nothing_but_retries_says_so(
    penstock: Penstock, broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    send(broker, f"{topic}.retry", [b"1"])
    places = [TopicPartition(f"{topic}.retry", 0, 1)]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(topic, places)])[topic].result()
    assert "pass --include-retries to reset those" in complaint(penstock("reset", topic, "--to-earliest", "--yes"))


def test_a_new_group_is_made_by_setting_its_offsets(penstock: Penstock, admin: AdminClient, group: str) -> None:
    assert "--topic" in complaint(penstock("reset", f"{group}-new", "--to-latest"))
    said(penstock("reset", f"{group}-new", "--to-latest", "--topic", group, "--yes"))
    assert offsets(admin, f"{group}-new") == [5, 0]


def test_offsets_of_a_group_with_members_are_set_only_when_that_is_meant(
    penstock: Penstock, admin: AdminClient, group: str, member: Consumer
) -> None:
    assert b"--yes" in penstock("reset", group, "--to-earliest").stderr
    said_dry = said(penstock("reset", group, "--to-earliest", "--dry-run"))
    assert "nothing was changed; 1 member would be fenced" in said_dry
    assert offsets(admin, group) == [3, 0]
    assert len(told(penstock("describe", group, "--json"))[0]["members"]) == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--to-offset", "1", "--topic", "{}:0"], 1),
        (["--to-earliest"], 0),
        (["--to-time", "1h ago"], 0),
        (["--shift-by", "-1"], 2),
    ],
)
def test_members_that_run_go_on_from_the_offsets_that_were_set(
    penstock: Penstock, group: str, member: Consumer, options: list[str], expected: int
) -> None:
    read(member, 2)
    done = told(penstock("reset", group, *(option.format(group) for option in options), "--yes", "--json"))
    assert (done["changed"], done["fenced"]) == (True, 1)
    assert [message.offset() for message in read(member, 5 - expected)] == list(range(expected, 5))


def test_members_that_run_go_on_from_the_end(
    penstock: Penstock, broker: BrokerProcess, group: str, joined: tuple[Consumer, list[list[TopicPartition]]]
) -> None:
    member, assignments = joined
    said_so = said(penstock("reset", group, "--to-latest", "--yes"))
    assert f"1 member fenced; group {group} continues from there once members rejoin" in said_so
    until(lambda: member.poll(0.05) is None and len(assignments) > 1, "the member has lost its partitions and is back")
    send(broker, group, [b"6"])
    assert [message.value() for message in read(member, 1)] == [b"6"]


def test_a_group_is_paused_and_resumed(penstock: Penstock, group: str, member: Consumer) -> None:
    assert said(penstock("pause", group)) == f"group {group} receives nothing\n"
    until(lambda: not (member.poll(0.05), member.assignment())[1], "the member has given up its partitions")
    (described,) = told(penstock("describe", group, "--json"))
    assert (described["paused"], described["paused_topics"], len(described["members"])) == (True, [], 1)
    assert described["members"][0]["partitions"] == []
    assert f"group {group}: stable, range, 1 member, paused\n" in said(penstock("describe", group))
    assert {"group": group, "state": "stable", "paused": True, "paused_topics": []} in told(penstock("list", "--json"))
    assert told(penstock("resume", group, "--json")) == {"group": group, "paused": False, "paused_topics": []}
    assert [message.offset() for message in read(member, 2)] == [3, 4]


def test_a_topic_of_a_group_is_paused_and_resumed(penstock: Penstock, group: str) -> None:
    assert said(penstock("pause", group, "--topic", group)) == f"group {group} receives nothing of {group}\n"
    assert f"group {group}: empty, no members, paused: {group}\n" in said(penstock("describe", group))
    assert "is not paused; paused are" in complaint(penstock("resume", group, "--topic", "other"))
    assert said(penstock("resume", group, "--topic", group)) == f"group {group} receives everything\n"
    assert f"group {group} is not paused" in complaint(penstock("resume", group))


def test_all_of_a_group_is_resumed_at_once(penstock: Penstock, group: str) -> None:
    said(penstock("pause", group, "--topic", group))
    said(penstock("pause", group))
    assert "resume it without --topic" in complaint(penstock("resume", group, "--topic", group))
    assert said(penstock("resume", group)) == f"group {group} receives everything\n"


def test_a_group_is_paused_before_its_first_start(penstock: Penstock, group: str) -> None:
    done = penstock("pause", f"{group}-new")
    assert done.returncode == 0
    assert f"group {group}-new does not exist yet; it will start paused" in done.stderr.decode()
    assert f"group {group}-new does not exist yet; it will start paused" in complaint(
        penstock("describe", f"{group}-new")
    )
    assert said(penstock("resume", f"{group}-new")) == f"group {group}-new receives everything\n"
    assert f"there is no group {group}-new; did you mean {group}?" in complaint(penstock("resume", f"{group}-new"))


def test_a_topic_that_is_not_there_is_not_paused(penstock: Penstock, group: str) -> None:
    assert f"did you mean {group}?" in complaint(penstock("pause", group, "--topic", f"{group}~"))


def test_a_group_is_deleted_with_its_settings(penstock: Penstock, group: str) -> None:
    said(penstock("pause", group))
    said(penstock("delete", group, "--yes"))
    assert "there is no such group" in complaint(penstock("delete", group, "--yes"))
    assert f"there is no group {group}" in complaint(penstock("resume", group))


@pytest.mark.parametrize(
    ("options", "word", "code"),
    [
        ([], "--to-offset", 2),
        (["--to-earliest", "--to-latest"], "--to-offset", 2),
        (["--to-time", "soon"], "soon", 2),
        (["--to-time", "42"], "42", 2),
        (["--to-offset", "6"], "ends at", 1),
        (["--to-latest", "--topic", "{}:2"], "no partition 2", 1),
        (["--to-latest", "--topic", "{}:x"], "no partition x", 1),
        (["--to-latest", "--topic", "not-there"], "there is no topic not-there", 1),
    ],
)
def test_what_cannot_be_set_says_why(
    penstock: Penstock, admin: AdminClient, group: str, options: list[str], word: str, code: int
) -> None:
    assert word in complaint(penstock("reset", group, *(option.format(group) for option in options)), code)
    assert offsets(admin, group) == [3, 0]


def test_a_group_is_deleted_only_when_that_is_meant(penstock: Penstock, group: str) -> None:
    assert "--yes" in complaint(penstock("delete", group))
    assert said(penstock("delete", group, "--yes")) == f"deleted group {group}\n"
    assert "there is no such group" in complaint(penstock("delete", group, "--yes"))


def test_a_group_with_members_is_not_deleted(penstock: Penstock, group: str, member: Consumer) -> None:
    assert "it has members" in complaint(penstock("delete", group, "--yes"))
