"""What producers and consumers choose (bodies, keys, headers, names of groups and clients) is shown and never run."""

from __future__ import annotations

import json
import uuid

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import Page, expect

from support.broker_process import BrokerProcess
from support.console_pages import ConsolePages

HOSTILE = [
    "<img src=x onerror=window.hacked=1>",
    "<script>window.hacked=1</script>",
    "<svg onload=window.hacked=1>",
    '"><iframe srcdoc="<script>parent.hacked=1</script>">',
    "javascript:window.hacked=1",
    "{{constructor.constructor('window.hacked=1')()}}",
    "${window.hacked=1}",
    "'; window.hacked=1; //",
    ":onclick=window.hacked=1",
]


@pytest.fixture(scope="module")
def hostile_topic(broker: BrokerProcess) -> str:
    """A topic whose messages are hostile in every part, as text, as JSON, and as names of headers."""
    name = f"hostile-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(name, 1)])[name].result()
    producer = Producer({"bootstrap.servers": broker.kafka})
    for text in HOSTILE:
        headers: list[tuple[str, str | bytes | None]] = [(text, text), (":x", "window.hacked=1"), ("__proto__", text)]
        producer.produce(name, text, key=text, headers=headers)
        producer.produce(name, json.dumps({text: text, ":x": "window.hacked=1"}), key=text)
    assert producer.flush(30) == 0
    return name


def assert_not_hacked(page: Page, complaints: list[str]) -> None:
    assert page.evaluate("window.hacked") is None
    assert page.locator("#main img, #main iframe, #main script, dialog img, dialog iframe").count() == 0
    assert complaints == []


def test_messages_are_text(pages: ConsolePages, hostile_topic: str) -> None:
    page = pages.open(f"/topics/{hostile_topic}/messages", **{"from": "earliest"})
    rows = page.locator("#main tbody tr")
    expect(rows).to_have_count(2 * len(HOSTILE))
    for text in HOSTILE:
        expect(rows.filter(has_text=text).first).to_be_visible()
    assert_not_hacked(page, pages.complaints)


def test_a_message_with_its_headers_is_text(pages: ConsolePages, hostile_topic: str) -> None:
    for number, text in enumerate(HOSTILE):
        page = pages.open(f"/topics/{hostile_topic}/messages", open=f"0-{2 * number}")
        drawer = page.get_by_role("dialog")
        expect(drawer.get_by_text(text, exact=True).first).to_be_visible()
        expect(drawer.get_by_text("__proto__")).to_be_visible()
        drawer.get_by_role("button", name="Hex").last.click()
        assert_not_hacked(page, pages.complaints)
    page = pages.open(f"/topics/{hostile_topic}/messages", open="0-1")
    expect(page.get_by_role("dialog").locator(".j-key").first).to_be_visible()
    assert_not_hacked(page, pages.complaints)


def test_a_message_that_is_edited_is_text(pages: ConsolePages, hostile_topic: str) -> None:
    page = pages.open(f"/topics/{hostile_topic}/messages", open="0-0")
    page.get_by_role("button", name="Edit and send again").click()
    expect(page.get_by_label("Value", exact=True)).to_have_value(HOSTILE[0])
    expect(page.get_by_label("Header name", exact=True).first).to_have_value(HOSTILE[0])
    assert_not_hacked(page, pages.complaints)


def test_what_is_in_an_address_is_text(pages: ConsolePages, hostile_topic: str) -> None:
    for text in HOSTILE:
        page = pages.open(f"/topics/{hostile_topic}/messages", field="text", text=text)
        expect(page.get_by_text("found in")).to_be_visible()
        assert_not_hacked(page, pages.complaints)
    for path in ("/topics", "/groups", "/audit"):
        page = pages.open(path, text=HOSTILE[0], sort="name")
        assert_not_hacked(page, pages.complaints)


def test_a_javascript_address_after_the_login_is_not_followed(pages: ConsolePages) -> None:
    page = pages.page
    page.goto(f"{pages.address}/login?next=javascript:window.hacked=1")
    page.wait_for_selector("#main[data-ready]", state="attached")
    assert_not_hacked(page, pages.complaints)


def test_names_of_groups_and_clients_are_text(pages: ConsolePages, broker: BrokerProcess, hostile_topic: str) -> None:
    group = HOSTILE[0]
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": group,
            "client.id": HOSTILE[1],
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([hostile_topic])
    try:
        message = None
        while message is None:
            message = consumer.poll(1)
        consumer.commit(message=message, asynchronous=False)
        page = pages.open("/groups", text=group)
        expect(pages.row(group)).to_be_visible()
        pages.row(group).get_by_role("link").click()
        expect(page.get_by_role("heading", name=group)).to_be_visible()
        page.get_by_role("link", name="Members").click()
        expect(pages.row(HOSTILE[1])).to_be_visible()
        assert_not_hacked(page, pages.complaints)
    finally:
        consumer.close()


def test_the_policy_allows_only_scripts_of_the_console(pages: ConsolePages) -> None:
    page = pages.page
    answer = page.goto(f"{pages.address}/")
    assert answer is not None
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert "unsafe-eval" not in policy["script-src"]
    assert "unsafe-inline" not in policy["script-src"]
    assert "http" not in policy["script-src"]
