"""An operator's day at three brokers with a database group and a lake, from a new topic to the audit log."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from playwright.sync_api import expect

import penstock
from browser.conftest import NewPages
from browser.traffic import make_topic, named, running_group
from penstock.admin import AdminError
from penstock.admin import Cluster as AdminCluster
from support.broker_process import BrokerProcess
from support.cluster import Cluster
from support.console_pages import ConsolePages
from support.lake import archive_all, archiver_of
from support.stores import MariaDbProcess
from support.waiting import until
from support.zookeeper import ZooKeeperProcess

DRAINED = 3


@pytest.fixture(scope="module")
def brokers(
    zookeeper: ZooKeeperProcess, mariadb: MariaDbProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """With two replicas of everything, so that one broker can be drained."""
    folder = tmp_path_factory.mktemp("walk")
    database = mariadb.create_database(named("walk").replace("-", "_"))
    coordinator = f"{zookeeper.address}/{folder.name}"
    settings = {"broker.default_replication_factor": 2, "groups.initial_rebalance_delay_ms": 20}

    def env(number: int) -> dict[str, str]:
        return {"PENSTOCK_SQL_URL": database}

    with Cluster(folder, coordinator, settings=settings, env=env) as cluster:
        yield cluster
        assert cluster.complaints == []


@pytest.fixture(scope="module")
def broker(brokers: Cluster) -> BrokerProcess:
    """The one that the console is told of; it finds the others."""
    return brokers.brokers[1]


def test_a_cluster_is_run_from_its_pages(
    brokers: Cluster, broker: BrokerProcess, lake: Path, pages: ConsolePages, new_pages: NewPages
) -> None:
    kafka, admin = broker.kafka, AdminCluster(broker.kafka)
    created = creates_a_topic_and_finds_a_message(pages)
    resets_a_running_group(pages, kafka)
    cancels_a_delayed_message(pages, kafka, created)
    resends_dead_letters(pages, kafka)
    finds_history_in_the_lake(pages, broker, lake)
    drains_a_broker(pages, admin, created)
    viewer, refused = refuses_a_viewer(pages, new_pages)

    pages.open("/audit", user="admin", outcome="done")
    for operation in ("topics.create", "messages.produce", "groups.reset", "timers.cancel", "dead_letters.resend"):
        expect(pages.row(operation)).to_be_visible()
    expect(pages.row("brokers.drain")).to_be_visible()
    pages.open("/audit", user=viewer, outcome="refused")
    expect(pages.row("topics.create")).to_contain_text(refused)
    expect(pages.row("topics.create")).to_contain_text("Refused")


def creates_a_topic_and_finds_a_message(pages: ConsolePages) -> str:
    topic = named("orders")
    page = pages.open("/topics")
    page.get_by_role("button", name="New topic").first.click()
    page.get_by_label("Name", exact=True).fill(topic)
    page.get_by_label("Partitions", exact=True).fill("2")
    page.get_by_role("button", name="Create topic").click()
    pages.toast(f"Topic {topic} is created")
    expect(page.get_by_role("heading", name=topic)).to_be_visible()

    page.get_by_role("button", name="Produce").first.click()
    page.get_by_label("Value", exact=True).fill('{"order": {"id": 4711, "note": "needle"}}')
    page.get_by_role("button", name="penstock-tags").click()
    page.get_by_label("Header value").fill("eu")
    page.get_by_role("dialog").get_by_role("button", name="Produce").click()
    pages.toast("Produced to partition")

    page.get_by_label("Search", exact=True).fill("needle")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("1 found in")).to_be_visible()
    pages.row("needle").get_by_role("button").click()
    drawer = page.get_by_role("dialog")
    expect(drawer.get_by_text("4711")).to_be_visible()
    expect(drawer.get_by_text("penstock-tags")).to_be_visible()

    # Two partitions, two replicas of each; one of these logs has the message.
    page = pages.open(f"/topics/{topic}/segments")
    expect(page.locator("#main tbody tr:not([aria-hidden])")).to_have_count(4)
    filled = page.locator("#main tbody tr").filter(has_text=re.compile("ago|now"))
    filled.first.get_by_role("button").click()
    expect(page.get_by_role("dialog").locator("tbody tr")).to_have_count(1)
    return topic


def resets_a_running_group(pages: ConsolePages, kafka: str) -> None:
    """One that reads a topic in the database."""
    topic, group = named("stored"), named("billing")
    make_topic(kafka, topic, [b"1", b"2", b"3"], penstock_storage="sql")
    page = pages.open("/databases")
    expect(page.get_by_text("1 partition", exact=True)).to_be_visible()
    with running_group(kafka, group, topic) as read:
        until(lambda: len(read) == 3, "the group has read everything")
        page = pages.open(f"/groups/{group}")
        expect(pages.row(topic).get_by_role("cell").nth(2)).to_have_text("3")
        page.get_by_role("button", name="Reset offsets").click()
        expect(page.get_by_role("dialog").get_by_role("row", name=topic)).to_contain_text("3")
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_text("3 messages will be read again")).to_be_visible()
        page.get_by_role("dialog").get_by_role("button", name="Reset offsets").click()
        pages.toast("1 partition is reset")
        until(lambda: len(read) == 6, "the running member has read everything again")
        assert [message.value() for message in read] == [b"1", b"2", b"3"] * 2


def cancels_a_delayed_message(pages: ConsolePages, kafka: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(3):
        headers: list[tuple[str, str | bytes | None]] = [
            ("penstock-delay", "1h"),
            ("penstock-timer-id", f"close-{number}"),
        ]
        producer.produce(topic, f"order {number}", headers=headers)
    assert producer.flush(30) == 0
    page = pages.open(f"/delayed/{topic}")
    expect(page.get_by_text("3 wait")).to_be_visible()
    page.get_by_label("Find by timer id").fill("close-1")
    expect(page.locator("#main tbody tr")).to_have_count(1)
    pages.row("close-1").get_by_role("button", name="Cancel close-1").click()
    page.get_by_role("button", name="Cancel delivery").click()
    pages.toast("1 message is cancelled")
    waiting = AdminCluster(kafka).timers.list(topic).items
    assert sorted(message.timer_id or "" for message in waiting) == ["close-0", "close-2"]


def resends_dead_letters(pages: ConsolePages, kafka: str) -> None:
    topic, group = named("orders"), named("mailer")
    make_topic(kafka, topic, [b"one", b"two"])
    is_mended = threading.Event()
    handled: list[bytes | None] = []
    letters = AdminCluster(kafka).dead_letters

    def count() -> int:
        try:
            return len(letters.list(group).items)
        except AdminError:
            return 0

    with penstock.Client(kafka) as client:

        @client.subscribe(topic, group=group, from_beginning=True, retries=penstock.Retries(first="50ms", attempts=1))
        def handle(message: penstock.Message) -> None:
            if not is_mended.is_set():
                raise ValueError("no mail address")
            handled.append(message.value)

        client.start()
        until(lambda: count() == 2, "both messages are dead letters")
        page = pages.open(f"/dead-letters/{group}")
        expect(pages.row("ValueError: no mail address")).to_be_visible()
        page.get_by_label("Select all").first.check()
        is_mended.set()
        page.get_by_role("button", name="Resend", exact=True).click()
        pages.toast("2 letters are resent to their group")
        until(lambda: sorted(handled, key=str) == [b"one", b"two"], "the group has handled what was resent")


def finds_history_in_the_lake(pages: ConsolePages, broker: BrokerProcess, lake: Path) -> None:
    """A message that brokers have deleted, and the lag of the archive."""
    topic = named("history")
    make_topic(broker.kafka, topic, [b"message %d" % number for number in range(5)])
    archive_all(archiver_of(broker, lake, topic))
    client = AdminClient({"bootstrap.servers": broker.kafka})
    client.delete_records([TopicPartition(topic, 0, 3)])[TopicPartition(topic, 0)].result()
    pages.open("/pipeline")
    expect(pages.row(topic)).to_be_visible()
    page = pages.open(f"/topics/{topic}/messages", text="message 2")
    expect(page.get_by_text("1 found in")).to_be_visible()
    expect(pages.row("message 2")).to_contain_text("archived")


def drains_a_broker(pages: ConsolePages, admin: AdminCluster, topic: str) -> None:
    page = pages.open("/brokers")
    expect(page.locator("#main tbody tr", has_text="Up")).to_have_count(3)
    address = next(each.address for each in admin.brokers.list() if each.id == DRAINED)
    pages.row(str(address)).get_by_role("button", name="Drain").click()
    page.get_by_label(f"Type {DRAINED} to confirm").fill(str(DRAINED))
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    pages.toast(f"Broker {DRAINED} is being drained")
    expect(pages.row(str(address))).to_contain_text("Draining")

    def is_gone() -> bool:
        partitions = admin.topics.describe([topic])[topic].partitions
        return all(DRAINED not in each.replicas and len(each.isr) == 2 for each in partitions)

    until(is_gone, "the partitions have moved off the broker")


def refuses_a_viewer(pages: ConsolePages, new_pages: NewPages) -> tuple[str, str]:
    """The viewer, and the topic that it may not create."""
    viewer, topic = named("viewer"), named("forbidden")
    page = pages.open("/users")
    page.get_by_role("button", name="New user").click()
    page.get_by_label("Name", exact=True).fill(viewer)
    page.get_by_label("Password", exact=True).fill("a long pass phrase")
    page.get_by_role("button", name="Create user").click()
    pages.toast(f"{viewer} may come in")

    window = new_pages().sign_in(viewer, "a long pass phrase")
    theirs = window.open("/topics", create=1)
    theirs.get_by_label("Name", exact=True).fill(topic)
    theirs.get_by_role("button", name="Create topic").click()
    refusal = theirs.get_by_role("dialog").get_by_role("alert").first
    expect(refusal).to_contain_text("needs the role admin")
    expect(refusal).to_contain_text("nothing was done")
    return viewer, topic
