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
from penstock.sdk.access import Access
from penstock.sdk.receive.deadletters import A_TRANSACTION, DeadLetters
from penstock.sdk.receive.letters import LetterId, Selection, State
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
    assert complaint(deadletter(broker, "show", group, "0/4711")) == "penstock: there is no dead letter 0/4711\n"


def test_what_cannot_be_done_is_said(broker: BrokerProcess, group: str) -> None:
    assert "has no dead letters" in complaint(deadletter(broker, "list", group))
    assert "say which" in complaint(deadletter(broker, "resend", group), 2)
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
    assert not seen_in(broker.kafka, f"{group}.retry")
    assert sorted(told(deadletter(broker, "resend", group, *ids, "--json"))["resent"]) == sorted(ids)
    again = told(deadletter(broker, "resend", group, *ids, "--json"))
    assert (again["resent"], sorted(again["skipped"])) == ([], sorted(ids))
    assert told(deadletter(broker, "resend", group, "--all", "--json"))["resent"] == []
    assert sorted(seen.value or b"" for seen in seen_in(broker.kafka, f"{group}.retry")) == [b"green", b"red"]


def test_several_who_resend_at_once_send_each_letter_once(
    broker: BrokerProcess, client: penstock.Client, group: str
) -> None:
    values = [f"{number}" for number in range(500)]
    kill_off(broker, client, group, values)
    together = threading.Barrier(3)

    def resend(_: int) -> int:
        together.wait(PATIENCE_S)
        with DeadLetters(Access(broker.kafka), group) as letters:
            try:
                return len(letters.resend(Selection()))
            except penstock.TransactionError:
                return 0

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(resend, range(3)))
    with DeadLetters(Access(broker.kafka), group) as letters:
        letters.resend(Selection())
    assert sorted(seen.value or b"" for seen in seen_in(broker.kafka, f"{group}.retry")) == sorted(
        value.encode() for value in values
    )


def test_a_resend_that_is_killed_in_the_middle_can_be_done_again(
    broker: BrokerProcess, client: penstock.Client, group: str
) -> None:
    values = [f"{number}" for number in range(3 * A_TRANSACTION)]
    kill_off(broker, client, group, values)
    command = [PENSTOCK, "--bootstrap", broker.kafka, "deadletter", "resend", group, "--all"]
    for _ in range(3):
        before = sum(ends(broker.kafka, f"{group}.retry", 2).values())
        process = subprocess.Popen(
            dying_with_us(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
        )
        until(
            lambda before=before, process=process: (
                sum(ends(broker.kafka, f"{group}.retry", 2).values()) > before or process.poll() is not None
            ),
            "something was sent",
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
    said(deadletter(broker, "resend", group, "--all"))
    assert sorted(seen.value or b"" for seen in seen_in(broker.kafka, f"{group}.retry")) == sorted(
        value.encode() for value in values
    )
    with DeadLetters(Access(broker.kafka), group) as letters:
        assert not list(letters.letters(Selection()))


def test_purged_letters_are_gone_and_cannot_be_resent(
    broker: BrokerProcess, client: penstock.Client, group: str
) -> None:
    kill_off(broker, client, group, ["red", "green", "blue"])
    assert "--yes" in complaint(deadletter(broker, "purge", group, "--all"))
    assert len(told(deadletter(broker, "purge", group, "--all", "--dry-run", "--json"))["purged"]) == 3
    assert len(told(deadletter(broker, "purge", group, "--error", "red", "--yes", "--json"))["purged"]) == 1
    assert {each["key"] for each in told(deadletter(broker, "list", group, "--json"))} == {"green", "blue"}
    assert len(told(deadletter(broker, "resend", group, "--all", "--json"))["resent"]) == 2
    assert sorted(seen.value or b"" for seen in seen_in(broker.kafka, f"{group}.retry")) == [b"blue", b"green"]
    said(deadletter(broker, "purge", group, "--all", "--yes"))
    # Nothing waits: everything is deleted from the topic.
    assert seen_in(broker.kafka, f"{group}.dead") == []


def test_whoever_reads_the_topic_sees_the_notes(broker: BrokerProcess, client: penstock.Client, group: str) -> None:
    kill_off(broker, client, group, ["red"])
    with DeadLetters(Access(broker.kafka), group) as letters:
        (letter,) = letters.letters(Selection())
        assert letters.resend(Selection(ids=frozenset({letter.id}))) == [letter.id]
        assert letters.resend(Selection(ids=frozenset({LetterId(0, 10**6)}))) == []
        (resent,) = letters.letters(Selection(states=frozenset({State.RESENT})))
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
