"""Dead letters: looked at, sent again once, thrown away, by people and by scripts."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from subprocess import CompletedProcess

import pytest
from confluent_kafka.admin import AdminClient

import penstock
from penstock.admin import AdminError, Cluster, DeadLetterId, DeadLetterSelection, DeadLetterState
from penstock.admin.dead_letter_topic import LETTERS_PER_TRANSACTION
from penstock.sdk.topic_names import retry_topic
from support.broker_process import BrokerProcess
from support.commands import complaint, said, told
from support.foreign import seen_in
from support.programs import PENSTOCK, dying_with_us, environment, run
from support.receiving import SOON, Heard, create, ends, running, wait_until_committed
from support.waiting import PATIENCE_S, until


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[penstock.Client]:
    with penstock.Client(broker.kafka) as client:
        yield client


@pytest.fixture
def group(admin: AdminClient, topic: str) -> str:
    """Also the name of its topic."""
    return create(admin, topic, 2)


def deadletter(broker: BrokerProcess, *arguments: str) -> CompletedProcess[bytes]:
    return run([PENSTOCK, "--bootstrap", broker.kafka, "deadletter", *arguments])


def kill_off(broker: BrokerProcess, client: penstock.Client, group: str, values: list[str]) -> None:
    """Makes dead letters of these: messages that are rejected."""
    rejecting = penstock.Client(broker.kafka)

    @rejecting.subscribe(group, group=group, concurrency=4, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        message.reject(f"nobody wants {(message.value or b'').decode()}")

    for value in values:
        client.send_soon(group, value, key=value)
    assert client.flush()
    with rejecting, running(rejecting):
        # Acknowledged: the letters are durable.
        wait_until_committed(broker.kafka, group, group, 2)


def test_letters_are_listed_by_what_is_known_of_them(
    broker: BrokerProcess, client: penstock.Client, group: str
) -> None:
    kill_off(broker, client, group, ["red", "green"])
    listed = told(deadletter(broker, "list", group, "--json"))
    assert {each["key"] for each in listed} == {"red", "green"}
    red = next(each for each in listed if each["key"] == "red")
    assert (red["error"], red["attempts"], red["state"]) == ("nobody wants red", 1, "waiting")
    assert red["origin"]["topic"] == group
    assert [each["key"] for each in told(deadletter(broker, "list", group, "--error", "WANTS GREEN", "--json"))] == [
        "green"
    ]
    assert told(deadletter(broker, "list", group, "--origin", "elsewhere", "--json")) == []
    assert len(told(deadletter(broker, "list", group, "--since", "1h ago", "--json"))) == 2
    assert told(deadletter(broker, "list", group, "--until", "1h ago", "--json")) == []
    assert len(told(deadletter(broker, "list", group, "-n", "1", "--json"))) == 1
    table = said(deadletter(broker, "list", group)).splitlines()
    assert table[0].split() == ["ID", "DIED", "ORIGIN", "ATTEMPTS", "KEY", "STATE", "ERROR"]
    assert len(table) == 3


def test_a_letter_is_shown_in_full(broker: BrokerProcess, client: penstock.Client, group: str) -> None:
    kill_off(broker, client, group, ["red"])
    (listed,) = told(deadletter(broker, "list", group, "--json"))
    (shown,) = told(deadletter(broker, "show", group, listed["id"], "--json"))
    assert shown["value"] == "red"
    assert ["penstock-error", "nobody wants red"] in shown["headers"]
    text = said(deadletter(broker, "show", group, listed["id"]))
    assert "error     nobody wants red" in text
    assert (
        complaint(deadletter(broker, "show", group, "0/4711")) == f"penstock: group {group} has no dead letter 0/4711\n"
    )


def test_what_cannot_be_done_is_said(broker: BrokerProcess, group: str) -> None:
    assert "has no dead letters" in complaint(deadletter(broker, "list", group))
    assert "choose dead letters" in complaint(deadletter(broker, "resend", group), 2)
    assert "3-42" in complaint(deadletter(broker, "resend", group, "3-42"), 2)
    assert "--since" in complaint(deadletter(broker, "list", group, "--since", "yesterday"), 2)


def test_a_letter_that_is_resent_comes_to_its_group_only_with_all_attempts_before_it(
    broker: BrokerProcess, client: penstock.Client, group: str
) -> None:
    kill_off(broker, client, group, ["red", "green"])
    heard, other = Heard(), Heard()

    @client.subscribe(group, group=group, retries=SOON)
    def handle(message: penstock.Message) -> None:
        heard(message)
        if message.attempt == 1:
            raise ValueError("once more")

    client.subscribe(group, other, group=f"{group}.other", from_beginning=True)
    with running(client):
        other.wait(2)
        assert said(deadletter(broker, "resend", group, "--error", "red")) == f"1 dead letter of group {group} resent\n"
        heard.wait(2)
    assert heard.values == [b"red", b"red"]
    first, second = heard.messages
    assert (first.attempt, first.topic, first.error) == (1, group, "nobody wants red")
    assert second.attempt == 2
    assert dict(second.headers)["penstock-resend"] == dict(first.headers)["penstock-resend"]
    assert sorted(other.values) == [b"green", b"red"]
    listed = told(deadletter(broker, "list", group, "--settled", "--json"))
    assert {each["key"]: each["state"] for each in listed} == {"red": "resent", "green": "waiting"}


def test_resending_twice_sends_once(broker: BrokerProcess, client: penstock.Client, group: str) -> None:
    kill_off(broker, client, group, ["red", "green"])
    ids = [each["id"] for each in told(deadletter(broker, "list", group, "--json"))]
    dry = told(deadletter(broker, "resend", group, "--all", "--dry-run", "--json"))
    assert (sorted(dry["resent"]), dry["dry_run"]) == (sorted(ids), True)
    assert not seen_in(broker.kafka, retry_topic(group, group))
    assert sorted(told(deadletter(broker, "resend", group, *ids, "--json"))["resent"]) == sorted(ids)
    again = told(deadletter(broker, "resend", group, *ids, "--json"))
    assert (again["resent"], sorted(again["skipped"])) == ([], sorted(ids))
    assert told(deadletter(broker, "resend", group, "--all", "--json"))["resent"] == []
    assert sorted(seen.value or b"" for seen in seen_in(broker.kafka, retry_topic(group, group))) == [b"green", b"red"]


def test_several_who_resend_at_once_send_each_letter_once(
    broker: BrokerProcess, cluster: Cluster, client: penstock.Client, group: str
) -> None:
    values = [f"{number}" for number in range(500)]
    kill_off(broker, client, group, values)
    together = threading.Barrier(3)

    def resend(_: int) -> int:
        together.wait(PATIENCE_S)
        try:
            return len(Cluster(broker.kafka).dead_letters.resend(group, DeadLetterSelection()).values)
        except AdminError:
            return 0

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(resend, range(3)))
    cluster.dead_letters.resend(group, DeadLetterSelection())
    assert sorted(seen.value or b"" for seen in seen_in(broker.kafka, retry_topic(group, group))) == sorted(
        value.encode() for value in values
    )


def test_a_resend_that_is_killed_in_the_middle_can_be_done_again(
    broker: BrokerProcess, cluster: Cluster, client: penstock.Client, group: str
) -> None:
    values = [f"{number}" for number in range(3 * LETTERS_PER_TRANSACTION)]
    kill_off(broker, client, group, values)
    command = [PENSTOCK, "--bootstrap", broker.kafka, "deadletter", "resend", group, "--all"]
    for _ in range(3):
        before = sum(ends(broker.kafka, retry_topic(group, group), 2).values())
        process = subprocess.Popen(
            dying_with_us(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
        )
        until(
            lambda before=before, process=process: (
                sum(ends(broker.kafka, retry_topic(group, group), 2).values()) > before or process.poll() is not None
            ),
            "something was sent",
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
    said(deadletter(broker, "resend", group, "--all"))
    assert sorted(seen.value or b"" for seen in seen_in(broker.kafka, retry_topic(group, group))) == sorted(
        value.encode() for value in values
    )
    assert cluster.dead_letters.list(group).items == ()


def test_purged_letters_are_gone_and_cannot_be_resent(
    broker: BrokerProcess, client: penstock.Client, group: str
) -> None:
    kill_off(broker, client, group, ["red", "green", "blue"])
    assert "--yes" in complaint(deadletter(broker, "purge", group, "--all"))
    assert len(told(deadletter(broker, "purge", group, "--all", "--dry-run", "--json"))["purged"]) == 3
    assert len(told(deadletter(broker, "purge", group, "--error", "red", "--yes", "--json"))["purged"]) == 1
    assert {each["key"] for each in told(deadletter(broker, "list", group, "--json"))} == {"green", "blue"}
    assert len(told(deadletter(broker, "resend", group, "--all", "--json"))["resent"]) == 2
    assert sorted(seen.value or b"" for seen in seen_in(broker.kafka, retry_topic(group, group))) == [b"blue", b"green"]
    said(deadletter(broker, "purge", group, "--all", "--yes"))
    # Nothing waits: everything is deleted from the topic.
    assert seen_in(broker.kafka, f"{group}.dead") == []


def test_whoever_reads_the_topic_sees_the_notes(
    broker: BrokerProcess, cluster: Cluster, client: penstock.Client, group: str
) -> None:
    kill_off(broker, client, group, ["red"])
    letters = cluster.dead_letters
    (letter,) = letters.list(group).items
    assert list(letters.resend(group, DeadLetterSelection(ids=frozenset({letter.id}))).values) == [letter.id]
    assert letters.resend(group, DeadLetterSelection(ids=frozenset({DeadLetterId(0, 10**6)}))).values == {}
    (resent,) = letters.list(group, DeadLetterSelection(states=frozenset({DeadLetterState.RESENT}))).items
    assert resent.id == letter.id
    note = seen_in(broker.kafka, f"{group}.dead")[-1]
    assert (note.partition, note.value) == (letter.id.partition, None)
    assert note.headers == [("penstock-settled", f"resent {letter.id.offset}".encode())]


def test_a_message_that_dies_again_is_a_new_letter(broker: BrokerProcess, client: penstock.Client, group: str) -> None:
    kill_off(broker, client, group, ["red"])
    said(deadletter(broker, "resend", group, "--all"))
    heard = Heard()

    @client.subscribe(group, group=group)
    def handle(message: penstock.Message) -> None:
        heard(message)
        message.reject("still nobody")

    with running(client):
        heard.wait(1)
        until(
            lambda: (
                [each["error"] for each in json.loads(deadletter(broker, "list", group, "--json").stdout)]
                == ["still nobody"]
            ),
            "it is a letter again",
        )
    assert said(deadletter(broker, "resend", group, "--all")) == f"1 dead letter of group {group} resent\n"


def test_a_letter_is_resent_to_the_subscription_that_it_came_from(
    broker: BrokerProcess, admin: AdminClient, client: penstock.Client, topic: str
) -> None:
    """Two subscriptions of one group to views of one topic: only one of them has given it up."""
    create(admin, topic, 2)
    heard = {tag: Heard() for tag in ("red", "blue")}

    def subscribe(tag: str) -> None:
        @client.subscribe(topic, group=topic, tags=tag, from_beginning=True)
        def handle(message: penstock.Message) -> None:
            heard[tag](message)
            if tag == "red" and "penstock-resend" not in dict(message.headers):
                message.reject("not now")

    for tag in heard:
        subscribe(tag)
    for number in range(5):
        client.send(topic, f"{number}", tags=["red", "blue"])
    with running(client):
        for tag in heard:
            heard[tag].wait(5)
        until(lambda: len(told(deadletter(broker, "list", topic, "--json"))) == 5, "they are dead letters")
        assert "5 dead letters" in said(deadletter(broker, "resend", topic, "--all"))
        heard["red"].wait(10)
    assert set(heard["blue"].counts.values()) == {1}
    assert set(heard["red"].counts.values()) == {2}


@pytest.mark.parametrize("written", [None, "somebody-elses-topic", "other.orders-12345678.retry"])
def test_a_letter_that_does_not_say_where_to_goes_to_its_groups_own_retries(
    broker: BrokerProcess, client: penstock.Client, group: str, written: str | None
) -> None:
    """Version 0.1 did not write it, and anybody may write anything."""
    heard = Heard()
    client.subscribe(group, heard, group=group)
    headers = {"penstock-attempt": "3", "penstock-origin": f"{group}/0/0/1700000000000", "penstock-error": "no"}
    if written is not None:
        headers["penstock-retry-topic"] = written
        client.send(written, b"made")
    with running(client):
        until(lambda: f"{group}.dead" in AdminClient({"bootstrap.servers": broker.kafka}).list_topics().topics, "begun")
        client.send(f"{group}.dead", b"red", headers=headers)
        assert said(deadletter(broker, "resend", group, "--all")) == f"1 dead letter of group {group} resent\n"
        heard.wait(1)
    assert heard.values == [b"red"]


def test_a_letter_whose_group_has_no_retry_topic_stays_and_the_command_says_why(
    broker: BrokerProcess, client: penstock.Client, group: str
) -> None:
    client.send(f"{group}.dead", b"red", headers={"penstock-origin": f"{group}/0/0/1700000000000"})
    why = complaint(deadletter(broker, "resend", group, "--all"))
    assert f"group {group} has no retry topic for {group}" in why
    assert len(told(deadletter(broker, "list", group, "--json"))) == 1


def test_a_letter_of_version_0_1_reaches_a_subscription_to_a_view(
    broker: BrokerProcess, admin: AdminClient, client: penstock.Client, topic: str
) -> None:
    """It names its topic and not the view; the retry topic that the whole group shared is read by all of the group."""
    create(admin, topic, 2)
    create(admin, f"{topic}.retry", 2)
    heard = Heard()
    client.subscribe(topic, heard, group=topic, tags="red")
    headers = {"penstock-attempt": "3", "penstock-origin": f"{topic}/0/0/1700000000000", "penstock-error": "no"}
    with running(client):
        until(lambda: f"{topic}.dead" in admin.list_topics().topics, "it has begun")
        client.send(f"{topic}.dead", b"old", headers=headers, tags=["red"])
        said(deadletter(broker, "resend", topic, "--all"))
        heard.wait(1)
    assert heard.values == [b"old"]
