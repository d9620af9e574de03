"""Alerts by mail, through a real SMTP server on loopback."""

from __future__ import annotations

import email
import email.policy
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword
from confluent_kafka import Producer
from starlette.testclient import TestClient

from penstock.console.console import Console
from penstock.console.settings import MailSettings
from penstock.errors import ConfigError
from support.broker_process import BrokerProcess
from support.ports import free_ports
from support.waiting import until

from .conftest import BASE, CLUSTER, app_of, console_settings, csrf_of, sign_in_once

TO = ["ops@example.org", "night@example.org"]


class Mailbox:
    """Keeps what it is given; knows one user."""

    def __init__(self) -> None:
        self.mails: list[tuple[str, list[str], EmailMessage]] = []

    async def handle_DATA(self, server: SMTP, session: Any, envelope: Any) -> str:
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append((envelope.mail_from, list(envelope.rcpt_tos), mail))
        return "250 kept"

    def knows(self, server: SMTP, session: Any, envelope: Any, mechanism: str, given: Any) -> AuthResult:
        return AuthResult(success=given == LoginPassword(b"penstock", b"right"))


@pytest.fixture
def server() -> Iterator[tuple[Mailbox, MailSettings]]:
    mailbox = Mailbox()
    (port,) = free_ports(1)
    controller = Controller(
        mailbox,
        hostname="127.0.0.1",
        port=port,
        authenticator=mailbox.knows,
        auth_required=True,
        auth_require_tls=False,
    )
    controller.start()
    given = {"host": "127.0.0.1", "port": str(port), "sender": "queue@example.org", "user": "penstock"}
    yield mailbox, MailSettings.of({**given, "password": "right"})
    controller.stop()


@pytest.fixture
def client(
    broker: BrokerProcess, tmp_path: Path, server: tuple[Mailbox, MailSettings]
) -> Iterator[tuple[TestClient, dict[str, str]]]:
    console = Console(console_settings(broker.kafka, tmp_path, mail=server[1]))
    with TestClient(app_of(console), base_url=BASE) as client:
        sign_in_once(console, client)
        yield client, {"x-csrf-token": csrf_of(client)}


def test_an_alert_is_mailed_when_it_begins_and_when_it_ends(
    broker: BrokerProcess, client: tuple[TestClient, dict[str, str]], server: tuple[Mailbox, MailSettings]
) -> None:
    http, csrf = client
    mailbox = server[0]
    topic = "mailed-group.dead"
    home = f"/api/clusters/{CLUSTER}/topics"
    assert http.post(home, json={"name": topic, "partitions": 1}, headers=csrf).status_code == 201
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce(topic, "x")
    assert producer.flush(30) == 0
    rule = {"name": "Dead letters ✉", "kind": "dead_letters", "prefix": "mailed-", "email": TO}
    made = http.post("/api/alerts/rules", json=rule, headers=csrf)
    assert made.status_code == 201, made.text
    until(lambda: len(mailbox.mails) == 1, "the alert was mailed")
    deleted = http.post(f"{home}/{topic}/records-deletion", json={"before": {"0": 1}, "confirm": topic}, headers=csrf)
    assert deleted.json()[0]["is_done"], deleted.text
    until(lambda: len(mailbox.mails) == 2, "the end was mailed")
    for (sender, to, mail), state in zip(mailbox.mails, ("firing", "resolved"), strict=True):
        assert (sender, to) == ("queue@example.org", TO)
        assert mail["subject"] == f"[{state}] Dead letters ✉: {topic}"
        body = mail.get_content()
        assert f"state: {state}" in body and f"resource: {topic}" in body and "kind: dead_letters" in body
    tested = http.post(f"/api/alerts/rules/{made.json()['id']}/test", headers=csrf)
    assert tested.json() == [] and mailbox.mails[2][2]["subject"].startswith("[test]")


def test_a_mail_server_that_does_not_answer_is_said(broker: BrokerProcess, tmp_path: Path) -> None:
    (gone,) = free_ports(1)
    console = Console(console_settings(broker.kafka, tmp_path, mail=MailSettings(host="127.0.0.1", port=gone)))
    with TestClient(app_of(console), base_url=BASE) as other:
        sign_in_once(console, other)
        token = {"x-csrf-token": csrf_of(other)}
        rule = {"name": "x", "kind": "unreachable", "email": TO}
        id = other.post("/api/alerts/rules", json=rule, headers=token).json()["id"]
        told = other.post(f"/api/alerts/rules/{id}/test", headers=token).json()
        assert told == ["the mail was not sent: ConnectionRefusedError"]


def test_a_wrong_password_of_the_mail_server_is_said(
    server: tuple[Mailbox, MailSettings], broker: BrokerProcess, tmp_path: Path
) -> None:
    mailbox, right = server
    wrong = MailSettings(host=right.host, port=right.port, user="penstock", password="wrong")
    console = Console(console_settings(broker.kafka, tmp_path / "wrong", mail=wrong))
    with TestClient(app_of(console), base_url=BASE) as other:
        sign_in_once(console, other)
        token = {"x-csrf-token": csrf_of(other)}
        rule = {"name": "x", "kind": "unreachable", "email": TO}
        id = other.post("/api/alerts/rules", json=rule, headers=token).json()["id"]
        told = other.post(f"/api/alerts/rules/{id}/test", headers=token).json()
    (why,) = told
    assert why.startswith("the mail was not sent: SMTP") and mailbox.mails == []


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"port": "25"}, "needs its host"),
        ({"host": "x", "port": "many"}, "'many' is not the port"),
        ({"host": "x", "tls": "yes"}, "true or false"),
        ({"host": "x", "colour": "red"}, "no setting 'colour'"),
    ],
)
def test_a_wrong_setting_of_the_mail_server_is_named(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        MailSettings.of(given)
