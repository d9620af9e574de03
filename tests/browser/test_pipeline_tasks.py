"""The archive at the console: how far it is, a message that only the lake has, and a query of both."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import expect

from support.broker_process import BrokerProcess
from support.console_pages import ConsolePages
from support.lake import archive_all, archiver_of

SPARK_MS = 300_000

pytestmark = pytest.mark.usefixtures("java")


def test_history_is_found_in_the_lake_and_queried(pages: ConsolePages, broker: BrokerProcess, lake: Path) -> None:
    topic = f"history-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(topic, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(20):
        producer.produce(topic, f"message {number}", key=f"key-{number}")
    assert producer.flush(30) == 0
    archive_all(archiver_of(broker, lake, topic))
    for number in range(20, 25):
        producer.produce(topic, f"message {number}")
    assert producer.flush(30) == 0
    admin.delete_records([TopicPartition(topic, 0, 10)])[TopicPartition(topic, 0)].result()

    page = pages.open("/pipeline")
    expect(pages.row(topic)).to_contain_text("Behind")
    pages.row(topic).get_by_role("button", name=topic).click()
    cells = page.get_by_role("dialog").locator("tbody tr").first.get_by_role("cell")
    expect(cells).to_have_text(["0", "10", "20", "25", "5", "0"])

    page = pages.open(f"/topics/{topic}/messages", text="message 3")
    expect(page.get_by_text("1 found in")).to_be_visible()
    expect(pages.row("message 3")).to_contain_text("archived")
    pages.row("message 3").get_by_role("button").click()
    expect(page.get_by_role("dialog").get_by_text("the lake; brokers have deleted it")).to_be_visible()

    page = pages.open("/pipeline/sql")
    times = "min(timestamp) as first, max(timestamp) as last"
    query = f"select count(*) as messages, max(offset) as end, {times} from `{topic}`"
    page.get_by_role("textbox", name="Query").fill(query)
    page.get_by_role("button", name="Run", exact=True).click()
    answer = page.locator("#main tbody tr").first
    expect(answer).to_contain_text("25", timeout=SPARK_MS)
    expect(answer).to_contain_text("24")
    assert answer.evaluate("(row) => [...row.cells].every((each) => each.scrollWidth <= each.clientWidth)")
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    expect(answer).to_contain_text("24")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.set_viewport_size({"width": 1280, "height": 900})
    pages.open("/pipeline/jobs")
    expect(pages.row(topic)).to_contain_text("Done")
