"""Alerts, jobs and samples, against a real broker and a real web server for the webhook."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from support.broker_process import BrokerProcess
from support.waiting import until

from .conftest import CLUSTER, RunningConsole, now_ms

DAY_MS = 24 * 3_600_000


class Webhook:
    """A web server that remembers what it was told."""

    def __init__(self) -> None:
        told: list[dict[str, object]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.told = told
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/alerts"

    def of(self, resource: str) -> list[object]:
        return [each["state"] for each in self.told if each["resource"] == resource]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    hook = Webhook()
    thread = threading.Thread(target=hook.server.serve_forever)
    thread.start()
    yield hook
    hook.server.shutdown()
    hook.server.server_close()
    thread.join()


@pytest.fixture
def group(broker: BrokerProcess, running: RunningConsole) -> str:
    """One that is 5 messages behind."""
    name = f"g-{uuid.uuid4().hex[:10]}"
    running.as_role("admin").post(f"/clusters/{CLUSTER}/topics", {"name": name, "partitions": 1}, status=201)
    producer = Producer({"bootstrap.servers": broker.kafka})
    for _ in range(5):
        producer.produce(name, "x")
    assert producer.flush(30) == 0
    commit(broker, name, 0)
    return name


def commit(broker: BrokerProcess, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": group})
    consumer.commit(offsets=[TopicPartition(group, 0, offset)], asynchronous=False)
    consumer.close()


def test_an_alert_fires_once_is_told_and_is_resolved(
    broker: BrokerProcess, running: RunningConsole, webhook: Webhook, group: str
) -> None:
    operator = running.as_role("operator")
    rule = {"name": "behind", "kind": "lag", "threshold": 3, "prefix": group, "webhook": webhook.url}
    id = operator.post("/alerts/rules", rule, status=201)["id"]
    until(lambda: webhook.of(group) == ["firing"], "the webhook was told")
    (firing,) = [each for each in operator.get("/alerts") if each["resource"] == group]
    assert firing["value"] == 5 and "5 messages behind" in firing["text"]
    commit(broker, group, 5)
    until(lambda: webhook.of(group) == ["firing", "resolved"], "the webhook was told of the end")
    (event,) = [each for each in operator.get("/alerts/history") if each["body"]["resource"] == group]
    assert event["ended_ms"] is not None
    assert operator.post(f"/alerts/rules/{id}/test") == [] and webhook.of("test") == ["test"]
    viewers = next(each for each in running.as_role("viewer").get("/alerts/rules") if each["id"] == id)
    assert viewers["webhook"] == "(hidden)"
    assert webhook.url not in str(running.as_role("admin").get("/audit", operation="alerts."))
    operator.call("DELETE", f"/alerts/rules/{id}")


def test_a_silenced_alert_fires_and_is_not_told(running: RunningConsole, webhook: Webhook, group: str) -> None:
    operator = running.as_role("operator")
    silence = operator.post("/alerts/silences", {"until_ms": now_ms() + DAY_MS, "resource": group}, status=201)
    rule = {"name": "no one", "kind": "no_active_consumer", "prefix": group, "webhook": webhook.url}
    id = operator.post("/alerts/rules", rule, status=201)["id"]
    until(lambda: group in {each["resource"] for each in operator.get("/alerts")}, "the alert fires")
    found = running.as_role("viewer").get(f"/clusters/{CLUSTER}")["findings"]
    assert ("alert", "no one") in {(each["kind"], each["name"]) for each in found}
    assert webhook.of(group) == []
    operator.call("DELETE", f"/alerts/silences/{silence['id']}")
    until(lambda: webhook.of(group) == ["firing"], "what still fires when the silence ends is told")
    operator.call("DELETE", f"/alerts/rules/{id}")
    until(lambda: webhook.of(group) == ["firing", "resolved"], "the webhook was told of the end")


def test_a_silence_of_another_rule_keeps_nothing(running: RunningConsole, webhook: Webhook, group: str) -> None:
    operator = running.as_role("operator")
    silence = operator.post("/alerts/silences", {"until_ms": now_ms() + DAY_MS, "rule": "another"}, status=201)
    rule = {"name": "behind", "kind": "lag", "threshold": 3, "prefix": group, "webhook": webhook.url}
    id = operator.post("/alerts/rules", rule, status=201)["id"]
    until(lambda: webhook.of(group) == ["firing"], "the webhook was told")
    for path in (f"/alerts/silences/{silence['id']}", f"/alerts/rules/{id}"):
        operator.call("DELETE", path)


def test_a_rule_with_a_wrong_address_is_refused(running: RunningConsole) -> None:
    for more in ({"webhook": "ftp://x"}, {"webhook": "file:///etc/passwd"}, {"email": ["a@b\nBcc: c@d"]}):
        answer = running.as_role("operator").call("POST", "/alerts/rules", json={"name": "x", "kind": "lag", **more})
        assert answer.status_code == 400 and "nothing was changed" in answer.json()["detail"]


def test_a_job_shows_its_schedule_and_what_it_removed(
    broker: BrokerProcess, running: RunningConsole, group: str
) -> None:
    admin = running.as_role("admin")
    jobs = {job["name"]: job for job in admin.get("/jobs")}
    assert not jobs["idle-groups"]["is_enabled"] and jobs["idle-groups"]["next_ms"] is None
    assert jobs["audit"]["next_ms"] > now_ms()
    running.until_round(
        lambda snapshot: group in snapshot.groups and snapshot.groups[group].idle_since_ms is not None,
        "the group is seen idle",
    )
    assert admin.post("/jobs/idle-groups/run")["removed"] == 0
    altered = admin.call(
        "PUT", "/jobs/idle-groups", json={"every_ms": DAY_MS, "is_enabled": False, "options": {"days": 0}}
    )
    assert altered.json()["options"] == {"days": 0}
    run = admin.post("/jobs/idle-groups/run")
    assert run["removed"] >= 1 and run["by"] == "admin"
    running.until_round(lambda snapshot: group not in snapshot.groups, "the group is gone")
    assert [each["removed"] for each in admin.get("/jobs/idle-groups/runs")] == [run["removed"], 0]
    assert admin.call("POST", "/jobs/absent/run").status_code == 404


def test_samples_show_what_came_in(running: RunningConsole, group: str) -> None:
    viewer = running.as_role("viewer")
    name = f"group.{group}"

    def points() -> list[float]:
        (found,) = viewer.get(f"/clusters/{CLUSTER}/samples", series=name)
        return list(found["values"])

    until(lambda: 5.0 in points(), "the lag is in the series")
    history = viewer.get(f"/clusters/{CLUSTER}/samples", series=["in", "lag"], from_ms=now_ms() - DAY_MS // 24)
    assert [each["name"] for each in history] == ["in", "lag"] and history[0]["times_ms"]


def test_samples_show_what_the_cluster_has(running: RunningConsole, group: str) -> None:
    viewer = running.as_role("viewer")
    names = ["brokers", "groups", "offline", "size"]

    def newest() -> dict[str, float]:
        found = viewer.get(f"/clusters/{CLUSTER}/samples", series=names)
        return {each["name"]: each["values"][-1] for each in found if each["values"]}

    until(lambda: newest().get("groups", 0) >= 1, "the group is in the series")
    until(lambda: newest()["size"] > 0, "the sizes of logs are in the series")
    assert (newest()["brokers"], newest()["offline"]) == (1, 0)
