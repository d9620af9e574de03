"""`penstock topic` as it is run, against a real broker."""

from __future__ import annotations

import socket
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from support.broker_process import BrokerProcess
from support.commands import complaint, said, told
from support.programs import PENSTOCK, run

Penstock = Callable[..., CompletedProcess[bytes]]


@pytest.fixture
def penstock(broker: BrokerProcess) -> Penstock:
    def call(*arguments: str, stdin: bytes = b"") -> CompletedProcess[bytes]:
        return run([PENSTOCK, *arguments, "-b", broker.kafka], stdin)

    return call


def test_a_topic_is_created_listed_and_described(penstock: Penstock, topic: str) -> None:
    assert (
        said(penstock("topic", "create", topic, "--partitions", "3", "-c", "retention.ms=60000"))
        == f"created topic {topic} with 3 partitions\n"
    )
    assert topic in said(penstock("topic", "list"))
    assert {"topic": topic, "partitions": 3} in told(penstock("topic", "list", "--json"))
    penstock("send", topic, "one", "two", "--partition", "1")
    described = said(penstock("topic", "describe", topic))
    assert f"topic {topic}: 3 partitions" in described
    assert "retention.ms" in described
    (as_json,) = told(penstock("topic", "describe", topic, "--json"))
    assert [(each["partition"], each["latest"]) for each in as_json["partitions"]] == [(0, 0), (1, 2), (2, 0)]
    assert as_json["settings"] == [{"key": "retention.ms", "value": "60000", "origin": "topic"}]


def test_the_segments_of_a_topic_are_listed(penstock: Penstock, topic: str) -> None:
    said(penstock("topic", "create", topic, "--partitions", "2", "-c", "segment.bytes=1024"))
    for _ in range(3):
        penstock("send", topic, "x" * 700, "--partition", "1")
    empty, full = told(penstock("topic", "segments", topic, "--json"))
    assert (empty["partition"], empty["segments"]) == (0, [])
    places = [(each["base_offset"], each["end_offset"]) for each in full["segments"]]
    assert (full["partition"], full["broker"], places) == (1, 1, [(0, 1), (1, 2), (2, 3)])
    assert full["bytes"] == sum(each["bytes"] for each in full["segments"])
    lines = said(penstock("topic", "segments", topic)).splitlines()
    assert [line.split()[:6] for line in lines[1:]] == [
        ["0", "1", "0", "-", "-", "0"],
        ["1", "1", "3", "0", "3", str(full["bytes"])],
    ]
    assert len(said(penstock("topic", "segments", topic, "--partition", "1")).splitlines()) == 4
    assert "has no partition 2" in complaint(penstock("topic", "segments", topic, "--partition", "2"))


def test_the_broker_decides_what_is_not_said(penstock: Penstock, topic: str) -> None:
    made = {"topic": topic, "created": True, "partitions": 1, "replication_factor": 1}
    assert told(penstock("topic", "create", topic, "--json")) == made


def test_creating_twice_fails_unless_that_is_fine(penstock: Penstock, topic: str) -> None:
    said(penstock("topic", "create", topic))
    text = complaint(penstock("topic", "create", topic, "--partitions", "7"))
    assert f"topic {topic} already exists (1 partition); nothing was changed" in text
    assert "topic exists already" in said(penstock("topic", "create", topic, "--if-not-exists"))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["not/a/name"], "not/a/name"),
        (["fine", "-c", "retention.msec=1"], "retention.ms"),
        (["fine", "-c", "retention.ms=soon"], "retention.ms"),
        (["fine", "--partitions", "20000"], "limits.partitions_per_topic"),
        (["fine", "--replication-factor", "3"], "1 broker(s) can take replicas; alive are 1: ask for fewer replicas"),
        (["fine", "--replica-assignment", "1,7"], "broker 7, but no such broker is registered"),
        (["__consumer_offsets"], "is internal"),
        (["__transaction_state", "--replication-factor", "1"], "nothing was created"),
    ],
)
def test_what_cannot_be_created_says_why(penstock: Penstock, arguments: list[str], word: str) -> None:
    assert word in complaint(penstock("topic", "create", *arguments))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--replication-factor", "0"], "--replication-factor"),
        (["--replication-factor", "100000"], "--replication-factor"),
        (["--replica-assignment", "1:x"], "1:2:3"),
        (["--replica-assignment", "1,"], "partition 1"),
        (["--replica-assignment", "1:1"], "names a broker twice"),
        (["--replica-assignment", "1:2,1"], "partition 1 has 1 replicas, partition 0 has 2"),
        (["--replica-assignment", "1", "--partitions", "1"], "--partitions"),
        (["--replica-assignment", "1", "--replication-factor", "1"], "--replication-factor"),
    ],
)
def test_a_placement_that_means_nothing_is_refused_before_anybody_is_asked(arguments: list[str], word: str) -> None:
    assert word in complaint(run([PENSTOCK, "topic", "create", "fine", *arguments, "-b", "127.0.0.1:1"]), code=2)


def test_a_topic_is_placed_as_it_is_asked_for_and_described_with_its_replicas(penstock: Penstock, topic: str) -> None:
    said(penstock("topic", "create", topic, "--replica-assignment", "1,1"))
    described = said(penstock("topic", "describe", topic)).splitlines()
    assert described[0] == f"topic {topic}: 2 partitions"
    headings = "PARTITION LEADER REPLICAS IN SYNC OFFLINE STATE EARLIEST LATEST RECORDS"
    assert described[1].split() == headings.split()
    assert [line.split() for line in described[2:4]] == [[n, "1", "1", "1", "-", "ok", "0", "0", "0"] for n in "01"]
    (as_json,) = told(penstock("topic", "describe", topic, "--json"))
    assert as_json["partitions"][1] == {
        "partition": 1,
        "leader": 1,
        "replicas": [1],
        "isr": [1],
        "offline_replicas": [],
        "state": "ok",
        "error": None,
        "earliest": 0,
        "latest": 0,
        "records": 0,
        "successor": None,
        "behind": [],
    }
    assert said(penstock("topic", "describe", "--under-replicated-partitions")) == "no partition is under-replicated\n"
    assert told(penstock("topic", "describe", topic, "--unavailable-partitions", "--json")) == []
    assert "name a topic" in complaint(penstock("topic", "describe"), code=2)


@pytest.mark.parametrize("command", [["create", "fine", "-p"], ["add-partitions", "fine", "--total"]])
def test_more_partitions_than_the_client_library_allows_are_refused(penstock: Penstock, command: list[str]) -> None:
    penstock("topic", "create", "fine")
    assert "partitions" in complaint(penstock("topic", *command, "200000"))


def test_settings_are_altered_and_returned_to_their_default(penstock: Penstock, topic: str) -> None:
    said(penstock("topic", "create", topic, "-c", "segment.bytes=4096"))
    assert f"{topic}: retention.ms = 1000" in said(penstock("topic", "alter", topic, "--set", "retention.ms=1000"))
    (described,) = told(penstock("topic", "describe", topic, "--json"))
    assert {each["key"]: each["value"] for each in described["settings"]} == {
        "retention.ms": "1000",
        "segment.bytes": "4096",
    }
    assert "is reset to its default" in said(penstock("topic", "alter", topic, "--unset", "retention.ms"))
    (described,) = told(penstock("topic", "describe", topic, "--json"))
    assert [each["key"] for each in described["settings"]] == ["segment.bytes"]
    assert "retention.ms" in complaint(penstock("topic", "alter", topic, "--set", "retention.msec=1"))
    assert "retention.ms" in complaint(penstock("topic", "alter", topic, "--unset", "retention.msec"))


def test_partitions_are_added_and_never_taken_away(penstock: Penstock, topic: str) -> None:
    said(penstock("topic", "create", topic, "--partitions", "2"))
    assert "has 5 partitions now, 2 before" in said(penstock("topic", "add-partitions", topic, "--total", "5"))
    assert told(penstock("topic", "add-partitions", topic, "--add", "1", "--json"))["partitions"] == 6
    complaint(penstock("topic", "add-partitions", topic, "--total", "3"))
    complaint(penstock("topic", "add-partitions", topic), code=2)


def test_a_topic_is_deleted_only_when_that_is_meant(penstock: Penstock, topic: str) -> None:
    said(penstock("topic", "create", topic))
    assert "--yes" in complaint(penstock("topic", "delete", topic))
    assert said(penstock("topic", "delete", topic, "--yes")) == f"deleted topic {topic}\n"
    assert topic not in said(penstock("topic", "list", "--json"))
    assert topic in complaint(penstock("topic", "delete", topic, "--yes"))


def test_a_topic_that_is_not_there_is_named_with_its_nearest(penstock: Penstock, topic: str) -> None:
    said(penstock("topic", "create", topic))
    text = complaint(penstock("topic", "describe", topic[:-1] + "~"))
    assert f"did you mean {topic}?" in text
    complaint(penstock("topic", "alter", "nothing-like-it-at-all", "--set", "retention.ms=1"))


def test_without_a_broker_the_command_says_how_to_start_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        for command in (["topic", "list"], ["send", "orders", "x"], ["tail", "orders"]):
            text = complaint(run([PENSTOCK, *command, "-b", nobody]))
            assert f"penstock serve --listen {nobody}" in text


def test_something_that_is_no_broker_is_recognised(broker: BrokerProcess) -> None:
    # The HTTP side takes connections and answers, but not as a broker does.
    assert f"no broker answers at {broker.http}" in complaint(run([PENSTOCK, "topic", "list", "-b", broker.http]))


def test_the_broker_may_be_named_in_the_environment_or_before_the_command(broker: BrokerProcess, topic: str) -> None:
    assert run([PENSTOCK, "topic", "create", topic], env={"PENSTOCK_BOOTSTRAP": broker.kafka}).returncode == 0
    assert topic in said(run([PENSTOCK, "-b", broker.kafka, "topic", "list"]))


def test_a_view_is_created_and_described_and_its_base_stays(penstock: Penstock, topic: str) -> None:
    said(penstock("topic", "create", topic, "--partitions", "3"))
    view = f"{topic}-view"
    assert (
        said(penstock("topic", "create", view, "--view-of", topic, "--tags", "checkout,refund"))
        == f"created topic {view} with 3 partitions\n"
    )
    described = said(penstock("topic", "describe", view))
    assert "penstock.view.of" in described and "checkout,refund" in described
    said(penstock("topic", "alter", view, "--set", "penstock.view.tags=checkout and not test"))
    assert "delete them first" in complaint(penstock("topic", "delete", topic, "--yes"))
    assert "add them there" in complaint(penstock("topic", "add-partitions", view, "--add", "1"))
    refused = penstock("send", view, "hello")
    assert refused.returncode == 1 and b"takes no messages: it is a view" in refused.stderr
    said(penstock("topic", "delete", topic, view, "--yes"))


def test_a_view_that_means_nothing_is_refused_before_anybody_is_asked(penstock: Penstock, topic: str) -> None:
    assert "both --view-of and --tags" in complaint(penstock("topic", "create", topic, "--view-of", "x"), 2)
    assert "a tag at the end" in complaint(penstock("topic", "create", topic, "--view-of", "x", "--tags", "a and"), 2)
    assert "no topic 'missing'" in complaint(penstock("topic", "create", topic, "--view-of", "missing", "--tags", "a"))
