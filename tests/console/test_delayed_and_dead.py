"""Delayed messages, dead letters, transactions and brokers through the API, against a real broker."""

from __future__ import annotations

import json
import uuid

import pytest
from confluent_kafka import Producer

from penstock import Client, Message, Retries
from support.broker_process import BrokerProcess
from support.receiving import running as receiving
from support.receiving import wait_until_committed
from support.waiting import until

from .conftest import CLUSTER, RunningConsole, now_ms

HOME = f"/clusters/{CLUSTER}"
HOUR_MS = 3_600_000


@pytest.fixture
def topic(running: RunningConsole) -> str:
    name = f"t-{uuid.uuid4().hex[:10]}"
    running.as_role("admin").post(f"{HOME}/topics", {"name": name, "partitions": 1}, status=201)
    return name


def delayed(broker: BrokerProcess, topic: str, *ids: str) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka})
    for id in ids:
        producer.produce(topic, f"of {id}", headers=[("penstock-delay", "1h"), ("penstock-timer-id", id)])
    assert producer.flush(30) == 0


def test_delayed_messages_are_counted_listed_cancelled_moved_and_fired(
    broker: BrokerProcess, running: RunningConsole, topic: str
) -> None:
    operator, home = running.as_role("operator"), f"{HOME}/topics/{topic}/timers"
    delayed(broker, topic, "a", "b", "c")
    until(lambda: len(operator.get(home)["rows"]) == 3, "three messages wait")
    bins = operator.get(f"{home}/histogram", from_ms=now_ms(), bin_ms=HOUR_MS, bins=2)
    assert sum(bins["counts"]) == 3 and not bins["is_bounded"]
    done = operator.post(f"{home}/cancellation", {"timer_ids": ["a", "absent"]})
    assert [(each["item"], each["is_done"]) for each in done] == [("a", True), ("absent", False)]
    due_ms = now_ms() + 2 * HOUR_MS
    operator.post(f"{home}/rescheduling", {"timer_id": "b", "due_ms": due_ms})
    until(lambda: operator.get(f"{home}/found", timer_id="b")[0]["due_ms"] == due_ms, "b is due later")
    assert operator.call("POST", f"{home}/rescheduling", json={"timer_id": "b", "due_ms": 1}).status_code == 400
    operator.post(f"{home}/firing", {"timer_id": "c"})
    messages = f"{HOME}/topics/{topic}/messages"
    until(lambda: len(operator.get(messages, at="earliest")["rows"]) == 1, "c was delivered")
    assert operator.get(messages, at="earliest")["rows"][0]["value"]["text"] == "of c"
    assert [row["timer_id"] for row in operator.get(home)["rows"]] == ["b"]
    (entry,) = running.as_role("admin").get("/audit", resource=topic, operation="timers.cancel")["items"]
    assert entry["outcome"] == "partial" and "absent" in entry["problem"]


def test_dead_letters_are_shown_by_error_resent_edited_and_purged(
    broker: BrokerProcess, running: RunningConsole, topic: str
) -> None:
    group = f"g-{topic}"
    rejecting = Client(broker.kafka)

    @rejecting.subscribe(topic, group=group, from_beginning=True)
    def handle(message: Message) -> None:
        message.reject("it is broken")

    with rejecting, receiving(rejecting):
        for number in range(3):
            rejecting.send(topic, f"letter {number}")
        wait_until_committed(broker.kafka, group, topic, 1)
    operator, home = running.as_role("operator"), f"{HOME}/dead-letters/{group}"
    (error,) = operator.get(f"{home}/errors")
    assert error["count"] == 3 and "it is broken" in error["error"]
    running.until_round(lambda snapshot: group in snapshot.groups, "the group is known")
    assert group in {each["group"] for each in operator.get(f"{HOME}/dead-letters")}
    first, second, third = operator.get(home)["rows"]
    assert first["origin_topic"] == topic and first["message"]["value"]["text"].startswith("letter")
    assert operator.post(f"{home}/preview", {"ids": [first["id"]]}) == 1
    done = operator.post(f"{home}/resend", {"ids": [first["id"], "0/999"]})
    assert [(each["item"], each["is_done"]) for each in done] == [(first["id"], True), ("0/999", False)]
    edited = operator.post(f"{home}/{second['id']}/edit", {"value": {"text": "corrected"}})
    assert edited["topic"] == topic and edited["error"] == ""
    shown = operator.get(f"{HOME}/topics/{topic}/messages/{edited['partition']}/{edited['offset']}")
    assert shown["value"]["text"] == "corrected"
    assert operator.call("POST", f"{home}/purge", json={"confirm": "another"}).status_code == 409
    (purged,) = operator.post(f"{home}/purge", {"confirm": group})
    assert (purged["item"], purged["is_done"]) == (third["id"], True)
    assert operator.get(home)["rows"] == []


def test_an_error_that_quotes_a_masked_message_is_shown_by_its_type_only(
    broker: BrokerProcess, running: RunningConsole, topic: str
) -> None:
    group, card = f"g-{topic}", "4111-1111"
    failing = Client(broker.kafka)

    @failing.subscribe(topic, group=group, from_beginning=True, retries=Retries(attempts=1))
    def handle(message: Message) -> None:
        raise ValueError(f"no such card: {json.loads(message.value or b'')['card']}")

    with failing, receiving(failing):
        failing.send(topic, json.dumps({"card": card}))
        wait_until_committed(broker.kafka, group, topic, 1)
    admin, viewer, home = running.as_role("admin"), running.as_role("viewer"), f"{HOME}/dead-letters/{group}"
    rule = {"part": "json", "path": "$.card", "topic_prefix": topic, "visible_from": "admin"}
    made = admin.post("/masking-rules", rule, status=201)
    try:
        assert [each["error"] for each in viewer.get(f"{home}/errors")] == ["ValueError: •••"]
        (row,) = viewer.get(home)["rows"]
        assert row["error"] == "ValueError: •••"
        messages = viewer.get(f"{HOME}/topics/{group}.dead/messages", at="earliest")
        for seen in (row, viewer.get(f"{home}/{row['id']}"), messages):
            assert card not in json.dumps(seen) and "ValueError: •••" in json.dumps(seen, ensure_ascii=False)
        found = {text: viewer.get(home, error=text)["rows"] for text in (card, "no such", "KeyError", "valueerror")}
        assert [len(rows) for rows in found.values()] == [0, 0, 0, 1]
        operator = running.as_role("operator")
        assert operator.post(f"{home}/preview", {"error": card}) == 0
        assert operator.post(f"{home}/purge", {"error": card, "confirm": group}) == []
        (entry,) = admin.get("/audit", operation="dead_letters.purge", resource=group)["items"]
        assert "shown_error" not in json.dumps(entry)
        assert operator.post(f"{home}/preview", {"error": "ValueError: •••"}) == 1
        assert [each["error"] for each in admin.get(f"{home}/errors")] == [f"ValueError: no such card: {card}"]
        assert admin.post(f"{home}/preview", {"error": card}) == 1
    finally:
        admin.call("DELETE", f"/masking-rules/{made['id']}")


def test_an_open_transaction_is_shown_and_aborted(broker: BrokerProcess, running: RunningConsole, topic: str) -> None:
    operator, id = running.as_role("operator"), f"tx/{topic}"
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": id})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "never seen")
    producer.flush(30)
    home = f"{HOME}/transactions"
    assert id in {each["transactional_id"] for each in operator.get(home, open=True)["transactions"]}
    described = operator.get(f"{home}/description", id=id)
    assert described["partitions"] == [[topic, 0]] or described["partitions"][0]["topic"] == topic
    assert operator.call("POST", f"{home}/abort", json={"id": id, "confirm": ""}).status_code == 409
    operator.post(f"{home}/abort", {"id": id, "confirm": id})
    until(lambda: operator.get(f"{home}/description", id=id)["state"] != "Ongoing", "it is not open any more")
    again = operator.call("POST", f"{home}/abort", json={"id": id, "confirm": id})
    assert again.status_code == 409 and "nothing was aborted" in again.json()["detail"]
    assert operator.get(f"{HOME}/topics/{topic}/messages", at="earliest")["rows"] == []
    assert operator.call("GET", f"{home}/description", params={"id": "absent"}).status_code == 404


def test_a_broker_shows_its_disks_and_settings_and_is_drained(running: RunningConsole) -> None:
    admin = running.as_role("admin")
    (broker,) = admin.get(f"{HOME}/brokers")
    assert broker["is_controller"] and broker["disks"][0]["total_bytes"] > 0
    assert admin.get(f"{HOME}/brokers/{broker['id']}")["settings"]
    path = f"{HOME}/brokers/{broker['id']}/draining"
    assert admin.call("PUT", path, json={"draining": True}).status_code == 204
    running.until_round(lambda snapshot: snapshot.brokers[0].state == "draining", "the broker is being drained")
    assert admin.call("PUT", path, json={"draining": False}).status_code == 204
    running.until_round(lambda snapshot: snapshot.brokers[0].state == "alive", "the broker has partitions again")
    assert admin.get(f"{HOME}/moves") == []
    assert admin.call("PUT", f"{HOME}/brokers/99/draining", json={"draining": True}).status_code == 404


def test_database_passwords_are_in_no_answer_and_not_in_the_audit_log(running: RunningConsole) -> None:
    admin, secret = running.as_role("admin"), "s3cr3t-word"
    address = f"mysql://user:{secret}@127.0.0.1:1/db"
    tested = admin.post(f"{HOME}/databases/test", {"address": address})
    assert not tested["is_done"] and secret not in str(tested)
    refused = admin.call("POST", f"{HOME}/databases", json={"name": "db2", "servers": [address]})
    assert refused.status_code >= 400 and secret not in refused.text
    assert secret not in str(admin.get("/audit", operation="databases."))
