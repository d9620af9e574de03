"""Messages in Avro are decoded by the schemas that are kept for a topic, wherever messages are read."""

from __future__ import annotations

import io
import json
import struct
import uuid
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer

from support.broker_process import BrokerProcess
from support.waiting import until

from .conftest import CLUSTER, RoleClient, RunningConsole

HOME = f"/clusters/{CLUSTER}/topics"
PAYMENT: dict[str, Any] = {
    "type": "record",
    "name": "Payment",
    "fields": [{"name": "number", "type": "long"}, {"name": "card", "type": "string"}],
}


@pytest.fixture
def topic(running: RunningConsole, broker: BrokerProcess) -> str:
    """With three payments behind the frame of schema 7, and one message that is no payment."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    running.as_role("admin").post(HOME, {"name": name, "partitions": 1}, status=201)
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(3):
        producer.produce(name, payment(number), key=b"\x02k")
    producer.produce(name, struct.pack(">bI", 0, 7) + b"\xff")
    assert producer.flush(30) == 0
    return name


def payment(number: int) -> bytes:
    out = io.BytesIO(struct.pack(">bI", 0, 7))
    out.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(out, fastavro.parse_schema(PAYMENT), {"number": number, "card": f"4711-{number}"})
    return out.getvalue()


def add(client: RoleClient, topic: str, **more: Any) -> Any:
    wanted = {"side": "value", "format": "avro", "text": json.dumps(PAYMENT), **more}
    return client.call("POST", f"{HOME}/{topic}/schemas", json=wanted)


def test_messages_are_decoded_wherever_they_are_read(running: RunningConsole, topic: str) -> None:
    admin = running.as_role("admin")
    home = f"{HOME}/{topic}"
    before = admin.get(f"{home}/messages", at="earliest")["rows"]
    assert before[0]["value"]["format"] == "hex" and before[0]["value"]["schema"] == ""
    added = add(admin, topic)
    assert added.status_code == 201, added.text
    add(admin, topic, side="key", text='"string"', is_framed=False)
    rows = admin.get(f"{home}/messages", at="earliest")["rows"]
    value = rows[1]["value"]
    assert (value["format"], value["schema"], json.loads(value["text"])) == (
        "json",
        "avro",
        {"number": 1, "card": "4711-1"},
    )
    assert value["size_bytes"] == len(payment(1)) and json.loads(rows[1]["key"]["text"]) == "k"
    odd = rows[3]["value"]
    assert odd["format"] == "hex" and odd["problem"] != ""
    shown = admin.get(f"{home}/messages/0/1")
    assert shown["value"] == value
    raw = admin.get(f"{home}/messages/0/1", raw=True)["value"]
    assert bytes.fromhex(raw["text"].replace(" ", "")) == payment(1)
    lines = admin.call("GET", f"{home}/download", params={"at": "earliest"}).text.splitlines()
    assert json.loads(lines[2])["value"]["text"] == '{"number": 2, "card": "4711-2"}'
    for wanted in ({"json_path": "$.card", "json_value": "4711-2"}, {"text": "4711-2"}):
        id = admin.post(f"{home}/searches", wanted, status=202)["id"]
        until(lambda id=id: admin.get(f"/searches/{id}")["state"] != "running", "the search has ended")
        assert [row["offset"] for row in admin.get(f"/searches/{id}")["rows"]] == [2]
    (copy,) = admin.post(f"{home}/messages/resend", {"messages": [{"partition": 0, "offset": 1}]})
    again = admin.get(f"{home}/messages/0/{copy['offset']}", raw=True)["value"]
    assert again["text"] == raw["text"], "what is resent is what was stored"
    gone = admin.call("DELETE", f"{home}/schemas/{added.json()['id']}")
    assert gone.status_code == 204
    assert admin.get(f"{home}/messages", at="earliest")["rows"][1]["value"]["format"] == "hex"


def test_masks_find_their_fields_in_decoded_messages(running: RunningConsole, topic: str) -> None:
    admin, viewer = running.as_role("admin"), running.as_role("viewer")
    rule = admin.post("/masking-rules", {"part": "json", "topic_prefix": topic, "path": "$.card"}, status=201)
    hidden = viewer.get(f"{HOME}/{topic}/messages", at="earliest")["rows"]
    assert [row["value"]["text"] for row in hidden] == ["•••"] * 4, "what cannot be read is masked whole"
    add(admin, topic)
    rows = viewer.get(f"{HOME}/{topic}/messages", at="earliest")["rows"]
    assert [json.loads(row["value"]["text"]) for row in rows[:3]] == [
        {"number": number, "card": "•••"} for number in range(3)
    ]
    assert rows[3]["value"]["text"] == "•••" and rows[3]["value"]["problem"] == ""
    for text in (
        json.dumps(viewer.get(f"{HOME}/{topic}/messages/0/1", raw=True), ensure_ascii=False),
        viewer.call("GET", f"{HOME}/{topic}/download").text,
    ):
        assert "4711" not in text and "34 37 31 31" not in text and "•••" in text
    id = viewer.post(f"{HOME}/{topic}/searches", {"text": "4711"}, status=202)["id"]
    until(lambda: viewer.get(f"/searches/{id}")["state"] != "running", "the search has ended")
    assert viewer.get(f"/searches/{id}")["hits"] == 0
    admin.call("DELETE", f"/masking-rules/{rule['id']}")


def test_a_schema_is_checked_kept_once_and_audited(running: RunningConsole, topic: str) -> None:
    admin = running.as_role("admin")
    for more, status in (
        ({"text": '{"type": "no such"}'}, 400),
        ({"is_framed": False, "schema_id": 3}, 400),
        ({"message": "shop.Order"}, 400),
        ({"format": "protobuf", "text": "aGVsbG8="}, 400),
        ({"text": "x" * 300_000}, 422),
        ({}, 201),
        ({}, 409),
        ({"schema_id": 3}, 201),
    ):
        answer = add(admin, topic, **more)
        assert answer.status_code == status, f"{more}: {answer.text}"
    assert len(admin.get(f"{HOME}/{topic}/messages", at="earliest")["rows"]) == 4
    assert add(admin, "absent-topic").status_code == 404
    listed = running.as_role("viewer").get(f"{HOME}/{topic}/schemas")
    assert [each["schema_id"] for each in listed] == [None, 3]
    assert running.as_role("operator").call("DELETE", f"{HOME}/{topic}/schemas/{listed[0]['id']}").status_code == 403
    other = f"{topic}-other"
    admin.post(HOME, {"name": other, "partitions": 1}, status=201)
    assert admin.call("DELETE", f"{HOME}/{other}/schemas/{listed[0]['id']}").status_code == 404
    told = json.dumps(admin.get("/audit", operation="schemas.", resource=topic))
    assert "schemas.add" in told and "characters" in told and "Payment" not in told


def test_a_view_and_dead_letters_are_decoded_as_the_topic_they_come_from(
    running: RunningConsole, broker: BrokerProcess, topic: str
) -> None:
    admin = running.as_role("admin")
    add(admin, topic)
    view, group = f"v-{topic}", f"g-{topic}"
    admin.post(f"{HOME}/views", {"name": view, "view_of": topic, "tags": "red"}, status=201)
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce(topic, payment(9), headers={"penstock-tags": "red"})
    dead = f"{group}.dead"
    admin.post(HOME, {"name": dead, "partitions": 1}, status=201)
    producer.produce(dead, payment(8), headers={"penstock-origin": f"{topic}/0/5/", "penstock-error": "why"})
    assert producer.flush(30) == 0
    (row,) = admin.get(f"{HOME}/{view}/messages", at="earliest")["rows"]
    assert json.loads(row["value"]["text"])["number"] == 9
    (row,) = admin.get(f"{HOME}/{dead}/messages", at="earliest")["rows"]
    assert json.loads(row["value"]["text"])["number"] == 8
