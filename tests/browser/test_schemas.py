"""Schemas on the messages page: added, used, removed; what is edited is sent as it was stored."""

from __future__ import annotations

import io
import json
import struct

import fastavro
from axe_playwright_python.sync_playwright import Axe
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import expect

from support.broker_process import BrokerProcess
from support.console_pages import ConsolePages
from support.waiting import PATIENCE_S

TOPIC = "payments.avro"
SCHEMA = {
    "type": "record",
    "name": "Payment",
    "fields": [{"name": "number", "type": "long"}, {"name": "payer", "type": "string"}],
}


def payment() -> bytes:
    out = io.BytesIO(struct.pack(">bI", 0, 7))
    out.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), {"number": 41, "payer": "<b>Mei</b>"})
    return out.getvalue()


def test_a_schema_shows_messages_as_json(pages: ConsolePages, broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce(TOPIC, payment())
    assert producer.flush(PATIENCE_S) == 0
    page = pages.open(f"/topics/{TOPIC}/messages")
    expect(page.locator("#main tbody tr").first).to_contain_text("Hex")
    page.get_by_role("button", name="Schemas").click()
    page.get_by_text("Give a schema").wait_for()
    page.get_by_role("button", name="Add schema").click()
    page.get_by_label("Schema", exact=True).fill('{"type": "nothing"}')
    page.locator("dialog:last-of-type").get_by_role("button", name="Add schema").click()
    expect(page.get_by_text("it is no Avro schema")).to_be_visible()
    page.get_by_label("Schema", exact=True).fill(json.dumps(SCHEMA))
    serious = [
        each["id"] for each in Axe().run(page).response["violations"] if each["impact"] in ("serious", "critical")
    ]
    assert serious == []
    page.locator("dialog:last-of-type").get_by_role("button", name="Add schema").click()
    pages.toast("are decoded from now on")
    expect(page.locator("dialog[open]")).to_have_count(1)
    page.keyboard.press("Escape")
    row = page.locator("#main tbody tr").first
    expect(row).to_contain_text('"payer": "<b>Mei</b>"')
    row.get_by_role("button").click()
    expect(page.locator("dialog .section-title", has_text="Avro")).to_be_visible()
    page.get_by_role("button", name="As stored").click()
    expect(page.locator("dialog pre.hex")).to_contain_text("00 00 00 00 07")
    page.get_by_role("button", name="Edit and send again").click()
    expect(page.get_by_text("Binary: it is sent as it is.")).to_be_visible()
    page.locator("dialog:last-of-type").get_by_role("button", name="Produce").click()
    pages.toast("Produced to partition 0 at offset 1")
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "check"})
    consumer.assign([TopicPartition(TOPIC, 0, 1)])
    message = consumer.poll(PATIENCE_S)
    assert message is not None and message.value() == payment(), "what was stored is what is sent"
    consumer.close()
    page.get_by_role("button", name="Schemas").click()
    page.get_by_role("button", name="Remove the schema").click()
    page.get_by_role("button", name="Remove", exact=True).click()
    pages.toast("The schema is removed")
