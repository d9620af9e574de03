"""Topics and messages through the API, against a real broker."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from confluent_kafka import Producer

from support.broker_process import BrokerProcess
from support.waiting import until

from .conftest import CLUSTER, RoleClient, RunningConsole

HOME = f"/clusters/{CLUSTER}/topics"


@pytest.fixture
def admin(running: RunningConsole) -> RoleClient:
    return running.as_role("admin")


@pytest.fixture
def topic(admin: RoleClient) -> str:
    name = f"t-{uuid.uuid4().hex[:10]}"
    admin.post(HOME, {"name": name, "partitions": 2}, status=201)
    return name


def produce(broker: BrokerProcess, topic: str, count: int, **more: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(count):
        body = json.dumps({"number": number, "card": f"4711-{number}"})
        producer.produce(topic, body, **{"key": f"k{number}", "headers": [("kind", f"h{number % 3}")], **more})
    assert producer.flush(30) == 0


def test_a_topic_is_created_shown_configured_and_deleted(
    running: RunningConsole, admin: RoleClient, topic: str
) -> None:
    running.until_round(lambda snapshot: topic in snapshot.topics, "the topic is in the snapshot")
    listed = admin.get(HOME, text=topic)
    assert [row["name"] for row in listed["items"]] == [topic] and listed["items"][0]["partition_count"] == 2
    changed = admin.call("PATCH", f"{HOME}/{topic}/settings", json={"set": {"retention.ms": "60000"}})
    entry = next(each for each in changed.json() if each["name"] == "retention.ms")
    assert entry["value"] == "60000" and not entry["is_default"] and "Milliseconds" in entry["description"]["doc"]
    admin.call("PUT", f"{HOME}/{topic}/partitions", json={"total": 3})
    running.until_round(lambda snapshot: len(snapshot.partitions[topic]) == 3, "the topic has three partitions")
    refused = admin.call("POST", f"{HOME}/{topic}/deletion", json={"confirm": "another"})
    assert refused.status_code == 409 and "nothing was deleted" in refused.json()["detail"]
    assert admin.call("POST", f"{HOME}/{topic}/deletion", json={"confirm": topic}).status_code == 204
    running.until_round(lambda snapshot: topic not in snapshot.topics, "the topic is gone")


def test_the_segments_of_each_replica_are_shown(
    running: RunningConsole, admin: RoleClient, broker: BrokerProcess, topic: str
) -> None:
    admin.call("PATCH", f"{HOME}/{topic}/settings", json={"set": {"segment.bytes": "1024"}})
    for _ in range(3):
        produce(broker, topic, 1, partition=1, headers=[("padding", "x" * 700)])
    running.until_round(lambda snapshot: topic in snapshot.partitions, "the topic is in the snapshot")
    viewer = running.as_role("viewer")
    page = viewer.get(f"{HOME}/{topic}/segments")
    empty, full = page["items"]
    assert (page["total"], empty["partition"], empty["segments"], empty["first_offset"]) == (2, 0, None, None)
    assert (full["partition"], full["broker"], full["is_leader"]) == (1, 1, True)
    assert (full["segments"], full["first_offset"], full["end_offset"]) == (3, 0, 3)
    assert full["size_bytes"] > 2100 and full["oldest_ms"] <= full["newest_ms"]
    second = viewer.get(f"{HOME}/{topic}/segments", first=1, limit=1, sort="partition")
    assert [each["partition"] for each in second["items"]] == [1] and second["total"] == 2
    segments = viewer.get(f"{HOME}/{topic}/partitions/1/segments")
    assert [(each["base_offset"], each["end_offset"]) for each in segments] == [(0, 1), (1, 2), (2, 3)]
    assert sum(each["size_bytes"] for each in segments) == full["size_bytes"]
    assert viewer.call("GET", f"{HOME}/{topic}/partitions/2/segments").status_code == 404
    assert viewer.call("GET", f"{HOME}/{topic}/segments?sort=size_bytes").status_code == 400


def test_a_bad_setting_changes_nothing_and_is_explained(admin: RoleClient, topic: str) -> None:
    wanted = {"set": {"retention.ms": "60000", "cleanup.policy": "shred"}}
    answer = admin.call("PATCH", f"{HOME}/{topic}/settings", json=wanted)
    assert answer.status_code == 400 and "cleanup.policy" in answer.json()["detail"]
    entries = {each["name"]: each for each in admin.get(f"{HOME}/{topic}/settings")}
    assert entries["retention.ms"]["is_default"]


def test_the_last_partition_is_retired(admin: RoleClient, topic: str) -> None:
    assert admin.post(f"{HOME}/{topic}/retirement", {"partitions": [1]}) == {"1": 0}
    assert admin.get(f"{HOME}/{topic}")["successors"] == {"1": 0}


def test_a_view_names_its_topic(admin: RoleClient, topic: str) -> None:
    admin.post(f"{HOME}/views", {"name": f"{topic}-red", "view_of": topic, "tags": "red"}, status=201)
    assert admin.get(f"{HOME}/{topic}-red")["view_of"] == topic


def test_messages_are_browsed_page_by_page_from_any_position(
    broker: BrokerProcess, admin: RoleClient, topic: str
) -> None:
    produce(broker, topic, 30)
    home = f"{HOME}/{topic}/messages"
    first = admin.get(home, at="earliest", limit=20)
    second = admin.get(home, limit=20, after=first["next"])
    seen = [(row["partition"], row["offset"]) for row in [*first["rows"], *second["rows"]]]
    assert len(seen) == len(set(seen)) == 30 and second["next"] is None
    assert first["rows"][0]["value"]["format"] == "json"
    newest = admin.get(home, limit=5)["rows"]
    times = [row["timestamp_ms"] for row in newest]
    assert len(newest) == 5 and times == sorted(times, reverse=True)
    one = second["rows"][-1]
    at = {"at": "offset", "value": one["offset"], "partition": one["partition"]}
    assert admin.get(home, **at)["rows"][0]["offset"] == one["offset"]
    shown = admin.get(f"{home}/{one['partition']}/{one['offset']}")
    assert shown["key"] == one["key"] and shown["headers"][0]["name"] == "kind"
    assert admin.call("GET", f"{home}/0/9999").status_code == 404


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({"key": "k7"}, 1),
        ({"header": "kind", "header_value": "h1"}, 10),
        ({"text": '"NUMBER": 2'}, 11),
        ({"json_path": "$.number", "json_value": "7"}, 1),
        ({"json_path": "$.card", "json_value": "4711-9"}, 1),
        ({"biz_id": "order-1"}, 1),
        ({"tag": "red"}, 1),
        ({"key": "k7'; DROP TABLE console_users; --"}, 0),
    ],
)
def test_a_search_finds_messages_in_all_partitions(
    broker: BrokerProcess, running: RunningConsole, wanted: dict[str, str], count: int
) -> None:
    admin, name = running.as_role("admin"), "searched"
    if admin.call("GET", f"{HOME}/{name}").status_code == 404:
        admin.post(HOME, {"name": name, "partitions": 3}, status=201)
        produce(broker, name, 30)
        sent = {"value": {"text": "red one"}, "tags": ["red"], "biz_id": "order-1"}
        admin.post(f"{HOME}/{name}/messages", sent, status=201)
    id = admin.post(f"{HOME}/{name}/searches", wanted, status=202)["id"]
    until(lambda: admin.get(f"/searches/{id}")["state"] != "running", "the search has ended")
    found = admin.get(f"/searches/{id}")
    assert (found["state"], found["hits"], found["scanned"] >= 31) == ("done", count, True)
    assert running.as_role("viewer").call("GET", f"/searches/{id}").status_code == 404


def test_a_message_is_produced_resent_and_downloaded(admin: RoleClient, topic: str) -> None:
    wanted = {"value": {"base64": "AAEC"}, "key": {"text": "key"}, "headers": [{"name": ":x", "value": {"text": "y"}}]}
    sent = admin.post(f"{HOME}/{topic}/messages", wanted, status=201)
    place = {"partition": sent["partition"], "offset": sent["offset"]}
    (copy,) = admin.post(f"{HOME}/{topic}/messages/resend", {"messages": [place]})
    assert copy["error"] == "" and copy["offset"] == sent["offset"] + 1
    answer = admin.call("GET", f"{HOME}/{topic}/download", params={"at": "earliest"})
    assert answer.headers["content-disposition"] == f'attachment; filename="{topic}.jsonl"'
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["value"]["text"] for line in lines] == ["00 01 02"] * 2
    (header,) = lines[0]["headers"]
    assert (header["name"], header["value"]["format"], header["value"]["text"]) == (":x", "text", "y")


def test_one_binary_message_is_shown_whole(broker: BrokerProcess, admin: RoleClient, topic: str) -> None:
    body = bytes(range(256)) * 40
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce(topic, body, partition=0)
    assert producer.flush(30) == 0
    (listed,) = admin.get(f"{HOME}/{topic}/messages", at="earliest")["rows"]
    assert listed["value"]["is_cut"] and listed["value"]["size_bytes"] == len(body)
    shown = admin.get(f"{HOME}/{topic}/messages/0/0")["value"]
    assert bytes.fromhex(shown["text"]) == body and not shown["is_cut"]


@pytest.mark.parametrize("path", ["..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "....//etc/passwd"])
def test_a_download_leads_to_no_file(running: RunningConsole, path: str) -> None:
    answer = running.as_role("admin").call("GET", f"{HOME}/{path}/download")
    assert answer.status_code in (404, 405, 422) and "root:" not in answer.text
    static = running.client.get(f"/static/{path}", follow_redirects=False)
    assert static.status_code in (303, 404, 401) and "root:" not in static.text


def test_masked_fields_are_neither_shown_nor_found(broker: BrokerProcess, running: RunningConsole, topic: str) -> None:
    admin, viewer = running.as_role("admin"), running.as_role("viewer")
    produce(broker, topic, 3)
    rules = [
        {"part": "json", "topic_prefix": topic, "path": "$.card"},
        {"part": "header", "topic_prefix": topic, "path": "kind"},
    ]
    ids = [admin.post("/masking-rules", rule, status=201)["id"] for rule in rules]
    home = f"{HOME}/{topic}"
    for text in (json.dumps(viewer.get(f"{home}/messages")), viewer.call("GET", f"{home}/download").text):
        assert "4711" not in text and "h1" not in text and "number" in text
    assert "4711" in json.dumps(admin.get(f"{home}/messages"))
    for wanted in (
        {"text": "4711"},
        {"json_path": "$.card", "json_value": "4711-1"},
        {"header_value": "h1", "header": "kind"},
    ):
        id = viewer.post(f"{home}/searches", wanted, status=202)["id"]
        until(lambda id=id: viewer.get(f"/searches/{id}")["state"] != "running", "the search has ended")
        assert viewer.get(f"/searches/{id}")["hits"] == 0
    for id in ids:
        admin.call("DELETE", f"/masking-rules/{id}")


def test_a_view_of_a_masked_topic_is_masked_too(running: RunningConsole, topic: str) -> None:
    admin, viewer = running.as_role("admin"), running.as_role("viewer")
    rule = admin.post("/masking-rules", {"part": "json", "topic_prefix": topic, "path": "$..card"}, status=201)
    view = f"v-{topic}"
    admin.post(f"{HOME}/views", {"name": view, "view_of": topic, "tags": "red"}, status=201)
    sent = {"value": {"text": '{"deep": [{"card": "4711"}]}'}, "tags": ["red"]}
    admin.post(f"{HOME}/{topic}/messages", sent, status=201)
    assert "4711" in json.dumps(admin.get(f"{HOME}/{view}/messages", at="earliest"))
    rows = viewer.get(f"{HOME}/{view}/messages", at="earliest")["rows"]
    assert len(rows) == 1 and rows[0]["is_masked"] and "4711" not in json.dumps(rows)
    admin.call("DELETE", f"/masking-rules/{rule['id']}")


def test_a_role_may_be_kept_from_viewing_messages(running: RunningConsole, topic: str) -> None:
    admin, viewer = running.as_role("admin"), running.as_role("viewer")
    rule = admin.post(
        "/masking-rules", {"part": "messages", "topic_prefix": topic, "visible_from": "operator"}, status=201
    )
    for path in ("messages", "messages/0/0", "download", "tail"):
        assert viewer.call("GET", f"{HOME}/{topic}/{path}").status_code == 403
    assert viewer.call("POST", f"{HOME}/{topic}/searches", json={}).status_code == 403
    assert running.as_role("operator").call("GET", f"{HOME}/{topic}/messages").status_code == 200
    admin.call("DELETE", f"/masking-rules/{rule['id']}")


def test_messages_of_internal_topics_are_for_admins(running: RunningConsole) -> None:
    path = f"{HOME}/__consumer_offsets/messages"
    assert running.as_role("operator").call("GET", path).status_code == 403
