"""What an operator gets wrong, and what fails while a page is open: pages say so, and say what to do."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer
from playwright.sync_api import Browser, expect

from browser.conftest import CLUSTER
from browser.traffic import make_topic, named
from penstock.admin import Cluster
from support.broker_process import BrokerProcess
from support.console_pages import ConsolePages
from support.console_process import ConsoleProcess
from support.waiting import until


def test_a_wrong_number_is_said_at_its_field(pages: ConsolePages) -> None:
    page = pages.open("/topics", create=1)
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill(named("orders"))
    for wrong in ("0", "", "1.5"):
        dialog.get_by_label("Partitions", exact=True).fill(wrong)
        dialog.get_by_role("button", name="Create topic").click()
        expect(dialog.get_by_text("A whole number, 1 or more.")).to_be_visible()
        expect(dialog.get_by_label("Partitions", exact=True)).to_be_focused()
    dialog.get_by_label("Partitions", exact=True).fill("1")
    dialog.get_by_label("Replicas", exact=True).fill("0")
    dialog.get_by_role("button", name="Create topic").click()
    expect(dialog.get_by_label("Replicas", exact=True)).to_be_focused()
    expect(dialog.get_by_text("A whole number, 1 or more.")).to_have_count(1)


def test_a_search_without_a_hit_says_so(pages: ConsolePages, broker: BrokerProcess) -> None:
    topic = named("orders")
    make_topic(broker.kafka, topic, [b"hay"] * 3)
    page = pages.open(f"/topics/{topic}/messages")
    page.get_by_label("Search", exact=True).fill("needle")
    page.keyboard.press("Enter")
    expect(page.get_by_text("0 found in 3 of 3 messages")).to_be_visible()
    expect(page.get_by_role("heading", name="No message matches", exact=True)).to_be_visible()
    expect(page.get_by_text("No messages here")).to_have_count(0)


def test_an_offset_behind_the_end_says_so(pages: ConsolePages, broker: BrokerProcess) -> None:
    topic = named("orders")
    make_topic(broker.kafka, topic, [b"hay"] * 3)
    page = pages.open(f"/topics/{topic}/messages", **{"from": "offset", "offset": 1000})
    expect(page.get_by_text("No message at offset 1,000 or after it")).to_be_visible()
    page.get_by_label("Offset", exact=True).fill("-5")
    page.keyboard.press("Enter")
    expect(page.locator("#main tbody tr")).to_have_count(3)


def test_a_partition_in_the_address_is_not_another_one(pages: ConsolePages, broker: BrokerProcess) -> None:
    topic = named("orders")
    make_topic(broker.kafka, topic, [b"hay"] * 3)
    page = pages.open(f"/topics/{topic}/messages", partition=7)
    expect(page.get_by_text(f"{topic} has no partition 7")).to_be_visible()


def test_a_time_that_is_none_is_not_asked_for(pages: ConsolePages, broker: BrokerProcess) -> None:
    topic = named("orders")
    make_topic(broker.kafka, topic, [b"hay"] * 3)
    page = pages.open(f"/topics/{topic}/messages", **{"from": "time", "time": "yesterday"})
    expect(page.locator("#main tbody tr")).to_have_count(3)
    page.get_by_label("Time (UTC)").fill("")
    expect(page.get_by_label("Time (UTC)")).to_be_focused()
    expect(page.locator("#main tbody tr")).to_have_count(3)
    expect(page.get_by_text("malformed")).to_have_count(0)


def test_what_does_not_exist_is_not_found(pages: ConsolePages) -> None:
    name = named("nothing")
    for path, place in (
        (f"/topics/{name}", "Topics"),
        (f"/groups/{name}", "Consumer groups"),
        (f"/delayed/{name}", "Delayed messages"),
        (f"/dead-letters/{name}", "Dead letters"),
    ):
        page = pages.open(path)
        expect(page.get_by_role("heading", name="Not found")).to_be_visible()
        assert page.locator("#main .skeleton").count() == 0
        page.locator("#main").get_by_role("link", name=place).click()
        expect(page.get_by_role("heading", name=place).first).to_be_visible()
    page.goto(f"{pages.address}/c/{name}/topics")
    expect(page.get_by_text(f"There is no cluster {name}.")).to_be_visible()
    page.locator("#main").get_by_role("link", name=CLUSTER).click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_a_tab_that_does_not_exist_is_the_first(pages: ConsolePages) -> None:
    page = pages.open("/alerts/nonsense")
    expect(page.get_by_role("link", name="Firing")).to_have_attribute("aria-current", "page")
    expect(page.get_by_role("heading", name="Firing")).to_be_visible()


def test_the_filter_of_every_list_is_in_the_address(pages: ConsolePages, broker: BrokerProcess) -> None:
    topic, other = named("orders"), named("payments")
    make_topic(broker.kafka, topic, [])
    make_topic(broker.kafka, other, [])
    page = pages.open("/topics", text=topic)
    expect(pages.row(topic)).to_be_visible()
    expect(page.locator("#main tbody tr")).to_have_count(1)
    page.get_by_label("Filter topics").fill(other)
    expect(pages.row(other)).to_be_visible()
    expect(page).to_have_url(f"{pages.address}/c/{CLUSTER}/topics?text={other}")
    pages.row(other).get_by_role("link").click()
    expect(page.get_by_role("heading", name=other)).to_be_visible()
    page.go_back()
    expect(page.get_by_label("Filter topics")).to_have_value(other)
    expect(page.locator("#main tbody tr")).to_have_count(1)
    page = pages.open("/groups", text=topic)
    expect(page.get_by_label("Filter groups")).to_have_value(topic)
    expect(page.get_by_text("No group matches")).to_be_visible()


def test_a_message_that_waits_no_longer_is_not_cancelled(pages: ConsolePages, broker: BrokerProcess) -> None:
    topic = named("orders")
    make_topic(broker.kafka, topic, [])
    producer = Producer({"bootstrap.servers": broker.kafka})
    headers: list[tuple[str, str | bytes | None]] = [("penstock-delay", "1h"), ("penstock-timer-id", "soon")]
    producer.produce(topic, b"later", headers=headers)
    assert producer.flush(30) == 0
    page = pages.open(f"/delayed/{topic}")
    pages.row("soon").get_by_role("button", name="Cancel soon").click()
    expect(page.get_by_text("It is never delivered. This cannot be undone.")).to_be_visible()
    Cluster(broker.kafka).timers.cancel(topic, ["soon"]).all()
    page.get_by_role("button", name="Cancel delivery").click()
    pages.toast("Nothing is cancelled")
    expect(page.get_by_role("heading", name="Nothing waits here")).to_be_visible()


def test_every_page_says_that_the_cluster_or_the_console_does_not_answer(browser: Browser, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker").start()
    console = ConsoleProcess(tmp_path / "console", CLUSTER, broker.kafka)
    try:
        topic = named("orders")
        make_topic(broker.kafka, topic, [b"1"])
        window = ConsolePages(browser, console.start(), CLUSTER).sign_in_once()
        page = window.open("/topics")
        until(lambda: window.row(topic).count() == 1, "the console has seen the topic")
        outage = page.locator(".outage")
        expect(outage).to_be_hidden()
        broker.kill()
        expect(outage).to_contain_text("The cluster does not answer. What you see is of 2")
        expect(window.row(topic)).to_be_visible()
        page.get_by_role("link", name="Overview").first.click()
        expect(page.get_by_role("heading", name="Needs attention")).to_be_visible()
        expect(page.locator(".attention li")).to_have_count(1)
        expect(page.get_by_text("all replicas in sync")).to_have_count(0)
        expect(outage).to_be_visible()
        console.kill()
        expect(outage).to_have_text("The console does not answer. What you see may be old.")
        window.close()
    finally:
        console.kill()
        broker.kill()
