"""Users, ACLs and quotas of a cluster through the API, against a broker that has all of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from starlette.testclient import TestClient

from conftest import running_broker
from penstock.admin import Acl, AclEntry, Cluster, Operation, Permission, Principal, ResourcePattern, ResourceType
from penstock.console.console import Console
from penstock.console.settings import ClusterSettings, ConsoleSettings, PollingSettings
from support.broker_process import BrokerProcess
from support.sasl import ADMIN, librdkafka, log_in, sasl_settings
from support.sasl import PASSWORD as ADMIN_PASSWORD
from support.waiting import PATIENCE_S, until
from support.wire import Wire

from .conftest import BASE, CLUSTER, RoleClient, RunningConsole, app_of, csrf_of, sign_in_once

HOME = f"/clusters/{CLUSTER}"
PASSWORD = "correct horse, = battery 电池"


def named(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Clients have to log in, and may do what ACLs allow."""
    folder = tmp_path_factory.mktemp("secured")
    with running_broker(folder, sasl_settings(folder, authorizer="acls")) as process:
        yield process


@contextmanager
def console_of(user: str, password: str, broker: BrokerProcess, folder: Path) -> Iterator[RunningConsole]:
    """A console that logs in to the broker as this user."""
    login = librdkafka(broker.kafka, user=user, password=password)
    del login["bootstrap.servers"]
    settings = ConsoleSettings(
        clusters=(ClusterSettings(CLUSTER, broker.kafka, {key: str(value) for key, value in login.items()}),),
        data=folder,
        polling=PollingSettings(interval_ms=200, timeout_s=PATIENCE_S),
    )
    console = Console(settings)
    with TestClient(app_of(console), base_url=BASE) as client:
        sign_in_once(console, client)
        made = client.post(
            "/api/account/tokens", json={"label": "t", "role": "admin"}, headers={"x-csrf-token": csrf_of(client)}
        )
        client.cookies.clear()
        yield RunningConsole(console, client, {"admin": made.json()["text"]})


@pytest.fixture(scope="module")
def console(secured: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with console_of(ADMIN, ADMIN_PASSWORD, secured, tmp_path_factory.mktemp("console")) as running:
        yield running


@pytest.fixture
def admin(console: RunningConsole) -> RoleClient:
    return console.as_role("admin")


def may_log_in(broker: BrokerProcess, user: str, password: str) -> bool:
    with Wire(broker.address) as wire:
        return bool(log_in(wire, user, password)["error_code"] == 0)


def acl(principal: str, operation: str, name: str, **more: str) -> dict[str, str]:
    return {
        "principal": f"User:{principal}",
        "permission": "ALLOW",
        "operation": operation,
        "resource_type": "TOPIC",
        "resource_name": name,
        "pattern_type": "LITERAL",
        "host": "*",
        **more,
    }


def add(admin: RoleClient, principal: str, operations: list[str], name: str, **more: str) -> Any:
    body = {"principal": principal, "operations": operations, "resource_type": "TOPIC", "resource_name": name, **more}
    return admin.post(f"{HOME}/acls", body, status=201)


def decision(admin: RoleClient, principal: str, operation: str, name: str, **more: str) -> Any:
    asked = {"principal": principal, "operation": operation, "resource_type": "TOPIC", "resource_name": name, **more}
    return admin.get(f"{HOME}/acls/decision", **asked)


class TestUsers:
    def test_a_user_is_added_changed_and_removed_and_brokers_follow(
        self, secured: BrokerProcess, admin: RoleClient
    ) -> None:
        name = named("a/b c")
        made = admin.post(f"{HOME}/users", {"name": name, "password": PASSWORD}, status=201)
        assert made == {"name": name, "mechanisms": {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}}
        assert [each["name"] for each in admin.get(f"{HOME}/users", text=name)["items"]] == [name]
        assert may_log_in(secured, name, PASSWORD)
        again = admin.call("POST", f"{HOME}/users", json={"name": name, "password": "another"})
        assert again.status_code == 409 and "nothing was changed" in again.json()["detail"]
        body = {"name": name, "password": "a new one", "iterations": 4096}
        assert admin.call("PUT", f"{HOME}/users/password", json=body).status_code == 204
        until(lambda: may_log_in(secured, name, "a new one"), "the new password counts")
        assert not may_log_in(secured, name, PASSWORD)
        refused = admin.call("POST", f"{HOME}/users/removal", json={"name": name, "confirm": "other"})
        assert refused.status_code == 409 and "nothing was removed" in refused.json()["detail"]
        assert admin.call("POST", f"{HOME}/users/removal", json={"name": name, "confirm": name}).status_code == 204
        until(lambda: not may_log_in(secured, name, "a new one"), "the user is gone")

    def test_one_mechanism_stays_one_when_the_password_changes(self, admin: RoleClient) -> None:
        name = named("single")
        admin.post(f"{HOME}/users", {"name": name, "password": "x", "mechanisms": ["SCRAM-SHA-256"]}, status=201)
        admin.call("PUT", f"{HOME}/users/password", json={"name": name, "password": "y"})
        (user,) = admin.get(f"{HOME}/users", text=name)["items"]
        assert user["mechanisms"] == {"SCRAM-SHA-256": 8192}

    def test_what_does_not_exist_is_not_changed(self, admin: RoleClient) -> None:
        for method, path, more in (
            ("PUT", "password", {"password": "x"}),
            ("POST", "removal", {"confirm": "nobody"}),
        ):
            answer = admin.call(method, f"{HOME}/users/{path}", json={"name": "nobody", **more})
            assert answer.status_code == 404 and "nothing was" in answer.json()["detail"]

    def test_passwords_are_nowhere(
        self, console: RunningConsole, admin: RoleClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("DEBUG")
        name, secret = named("secretive"), f"hush-{uuid.uuid4().hex}"
        users, as_json = f"{HOME}/users", {"content-type": "application/json"}
        answers = [
            admin.call("POST", users, json={"name": name, "password": secret}),
            admin.call("POST", users, json={"name": name, "password": secret}),
            admin.call("POST", users, json={"name": name, "password": secret, "iterations": 1}),
            admin.call("POST", users, json={"name": name, "password": [secret]}),
            admin.call("POST", users, json={"name": name, "password": secret * 20}),
            admin.call("POST", users, content=f'{{"password": "{secret}"', headers=as_json),
            admin.call("PUT", f"{users}/password", json={"name": name, "password": secret}),
            admin.call("PUT", f"{users}/password", json={"name": "nobody", "password": secret}),
        ]
        assert [each.status_code for each in answers] == [201, 409, 422, 422, 422, 400, 204, 404]
        entries = admin.get("/audit", operation="cluster_users.", resource=name)["items"]
        assert [each["outcome"] for each in entries] == ["done", "failed", "done"]
        assert all('"password": "(hidden)"' in each["params"] for each in entries)
        told = "".join(each.text for each in answers) + admin.call("GET", "/audit/export").text + caplog.text
        assert secret not in told
        for file in console.console.settings.data.iterdir():
            assert secret.encode() not in file.read_bytes()


class TestAcls:
    def test_permissions_let_a_client_in_and_their_removal_keeps_it_out(
        self, secured: BrokerProcess, admin: RoleClient
    ) -> None:
        name, topic = named("writer"), named("orders")
        admin.post(f"{HOME}/topics", {"name": topic, "partitions": 1}, status=201)
        admin.post(f"{HOME}/users", {"name": name, "password": PASSWORD}, status=201)

        def error_of_a_write() -> str:
            failed: list[Any] = []
            producer = Producer(librdkafka(secured.kafka, user=name, password=PASSWORD))
            producer.produce(topic, b"x", on_delivery=lambda error, _: failed.append(error))
            producer.flush(PATIENCE_S)
            return "" if failed[0] is None else str(failed[0])

        assert "uthoriz" in error_of_a_write()
        done = add(admin, name, ["WRITE", "DESCRIBE"], topic)
        assert [each["is_done"] for each in done] == [True, True]
        until(lambda: error_of_a_write() == "", "the user may write")
        listed = admin.get(f"{HOME}/acls", principal=name)
        assert listed["items"] == [acl(name, "WRITE", topic), acl(name, "DESCRIBE", topic)]
        admin.post(f"{HOME}/acls/removal", {"acls": listed["items"]})
        until(lambda: "uthoriz" in error_of_a_write(), "the user may not write")

    def test_lists_are_filtered_by_what_applies(self, admin: RoleClient) -> None:
        name, prefix = named("reader"), named("pre")
        add(admin, name, ["READ"], f"{prefix}-", pattern_type="PREFIXED")
        add(admin, name, ["READ"], f"{prefix}-one", host="10.0.0.1")
        add(admin, name, ["WRITE"], f"{prefix}-two", permission="DENY")
        applies = admin.get(f"{HOME}/acls", principal=name, resource_type="TOPIC", resource_name=f"{prefix}-one")
        assert {each["resource_name"] for each in applies["items"]} == {f"{prefix}-", f"{prefix}-one"}
        assert admin.get(f"{HOME}/acls", principal=name, limit=1, first=1)["total"] == 3
        words = admin.get(f"{HOME}/acls", principal=f"User:{name}", text="deny", sort="resource_name")
        assert [each["permission"] for each in words["items"]] == ["DENY"]
        assert admin.get(f"{HOME}/acls", principal=named("nobody"))["items"] == []

    def test_the_check_names_the_rule(self, admin: RoleClient) -> None:
        name, topic = named("asker"), named("orders")
        nothing = decision(admin, name, "READ", topic)
        assert (nothing["is_allowed"], nothing["acl"], nothing["reason"]) == (False, None, "no ACL allows it")
        add(admin, name, ["READ"], topic[:5], pattern_type="PREFIXED")
        allowed = decision(admin, name, "DESCRIBE", topic)
        assert allowed["is_allowed"] and allowed["acl"]["resource_name"] == topic[:5]
        add(admin, name, ["READ"], topic, permission="DENY", host="10.1.1.1")
        assert decision(admin, name, "READ", topic)["is_allowed"]
        denied = decision(admin, name, "READ", topic, host="10.1.1.1")
        assert not denied["is_allowed"] and denied["acl"]["permission"] == "DENY"
        assert decision(admin, "admin", "WRITE", topic)["reason"] == "User:admin is a super user"

    def test_a_preview_says_what_goes_and_what_another_rule_keeps(self, admin: RoleClient) -> None:
        name, topic = named("leaver"), named("orders")
        add(admin, name, ["READ", "WRITE"], topic)
        add(admin, name, ["READ"], topic[:6], pattern_type="PREFIXED")
        add(admin, name, ["DELETE"], topic, permission="DENY")
        add(admin, name, ["DELETE"], "*")
        wanted = [
            acl(name, "WRITE", topic),
            acl(name, "READ", topic),
            acl(name, "READ", topic[:6], pattern_type="PREFIXED"),
            acl(name, "DELETE", topic, permission="DENY"),
            acl(name, "ALTER", topic),
        ]

        def effects(chosen: list[int]) -> list[tuple[bool, bool, bool]]:
            body = {"acls": [wanted[each] for each in chosen]}
            told = admin.post(f"{HOME}/acls/removal-preview", body)
            return [(each["exists"], each["before"]["is_allowed"], each["after"]["is_allowed"]) for each in told]

        assert effects([0]) == [(True, True, False)]
        assert effects([1]) == [(True, True, True)], "the prefix still allows it"
        assert effects([2]) == [(True, True, False)], "one name is not all names with the prefix"
        assert effects([1, 2]) == [(True, True, False)] * 2
        assert effects([3]) == [(True, False, True)], "without the denial another rule allows it"
        assert effects([4]) == [(False, False, False)]
        assert admin.get(f"{HOME}/acls", principal=name)["total"] == 5, "a preview removes nothing"

    def test_only_what_was_previewed_is_removed(self, admin: RoleClient) -> None:
        name, topic = named("leaver"), named("orders")
        add(admin, name, ["READ", "WRITE"], topic)
        done = admin.post(f"{HOME}/acls/removal", {"acls": [acl(name, "READ", topic), acl(name, "DELETE", topic)]})
        assert [(each["is_done"], each["code"]) for each in done] == [(True, ""), (False, "RESOURCE_NOT_FOUND")]
        assert [each["operation"] for each in admin.get(f"{HOME}/acls", principal=name)["items"]] == ["WRITE"]
        gone = admin.call("POST", f"{HOME}/acls/removal", json={"acls": [acl(name, "READ", topic)]})
        assert gone.status_code == 404 and "nothing was removed" in gone.json()["detail"]

    @pytest.mark.parametrize(
        ("change", "status", "reason"),
        [
            ({"resource_type": "CLUSTER", "resource_name": "kafka-cluster"}, 400, "READ means nothing for a cluster"),
            ({"resource_type": "CLUSTER", "operations": ["ALTER"]}, 400, "the cluster is called kafka-cluster"),
            ({"principal": ":"}, 400, "is not a principal"),
            ({"operations": ["LOOK"]}, 422, "operations"),
            ({"operations": []}, 422, "operations"),
            ({"resource_type": "USER"}, 422, "resource_type"),
            ({"resource_name": "a\x00b"}, 422, "resource_name"),
        ],
    )
    def test_what_means_nothing_is_refused(
        self, admin: RoleClient, change: dict[str, object], status: int, reason: str
    ) -> None:
        body = {"principal": "x", "operations": ["READ"], "resource_type": "TOPIC", "resource_name": "y", **change}
        answer = admin.call("POST", f"{HOME}/acls", json=body)
        assert (answer.status_code, reason in answer.json()["detail"]) == (status, True), answer.text
        assert "nothing was" in answer.json()["detail"]

    def test_what_was_done_is_in_the_audit_log(self, admin: RoleClient) -> None:
        name, topic = named("audited"), named("orders")
        add(admin, name, ["READ"], topic)
        admin.post(f"{HOME}/acls/removal", {"acls": [acl(name, "READ", topic)]})
        removed, added = admin.get("/audit", operation="acls.", text=name)["items"]
        assert (added["resource"], added["outcome"]) == (name, "done")
        words = f"ALLOW User:{name} READ on topic {topic} from any host"
        assert json.loads(added["after"]) == [words] == json.loads(removed["before"])

    def test_what_decides_beside_acls_is_told(self, admin: RoleClient) -> None:
        assert admin.get(f"{HOME}/acls/authorizer") == {
            "is_known": True,
            "is_on": True,
            "super_users": ["User:admin"],
            "allows_without_acl": False,
        }

    def test_a_cluster_without_an_authorizer_says_what_to_set(self, running: RunningConsole) -> None:
        """Its broker lets everyone do everything."""
        admin = running.as_role("admin")
        assert admin.get(f"{HOME}/acls/authorizer")["is_on"] is False
        body = {"principal": "x", "operations": ["READ"], "resource_type": "TOPIC", "resource_name": "y"}
        listed, added = admin.call("GET", f"{HOME}/acls"), admin.call("POST", f"{HOME}/acls", json=body)
        for answer in (listed, added):
            assert (answer.status_code, answer.json()["code"]) == (409, "SECURITY_DISABLED")
        assert "security.authorizer = acls" in listed.json()["detail"]
        assert "no authorizer" in decision(admin, "x", "READ", "y")["reason"]


class TestQuotas:
    def test_quotas_are_set_listed_and_removed(self, admin: RoleClient) -> None:
        name = named("importer")
        for entity, limits in (
            ({"client-id": name}, {"producer_byte_rate": 1_000_000, "request_percentage": 12.5}),
            ({"user": name, "client-id": None}, {"consumer_byte_rate": 5_000_000}),
            ({"ip": "::0001"}, {"connection_creation_rate": 10}),
        ):
            admin.call("PUT", f"{HOME}/quotas", json={"entity": entity, "limits": limits}).raise_for_status()
        set_again = {"entity": {"client-id": name}, "limits": {"producer_byte_rate": 2_000_000}}
        told = admin.call("PUT", f"{HOME}/quotas", json=set_again).json()
        assert told["limits"] == {"producer_byte_rate": 2_000_000, "request_percentage": 12.5}
        rows = {each["name"]: each for each in admin.get(f"{HOME}/quotas")["items"]}
        assert rows[f"client-id '{name}'"]["limits"] == told["limits"]
        both = rows[f"user '{name}', default client-id"]
        assert both["entity"] == {"user": name, "client-id": None}
        assert rows["ip '::1'"]["limits"] == {"connection_creation_rate": 10}
        admin.post(
            f"{HOME}/quotas/removal", {"entity": {"client-id": name}, "keys": ["request_percentage"]}, status=204
        )
        rows = {each["name"]: each for each in admin.get(f"{HOME}/quotas", text=name)["items"]}
        assert rows[f"client-id '{name}'"]["limits"] == {"producer_byte_rate": 2_000_000}
        for entity in ({"client-id": name}, {"user": name, "client-id": None}, {"ip": "::1"}):
            admin.post(f"{HOME}/quotas/removal", {"entity": entity}, status=204)
        assert admin.get(f"{HOME}/quotas", text=name)["items"] == []
        gone = admin.call("POST", f"{HOME}/quotas/removal", json={"entity": {"client-id": name}})
        assert gone.status_code == 404 and "nothing was removed" in gone.json()["detail"]
        changes = admin.get("/audit", operation="quotas.set", text=name)["items"]
        assert json.loads(changes[0]["before"]) == {"producer_byte_rate": 1_000_000, "request_percentage": 12.5}
        assert json.loads(changes[0]["after"]) == told["limits"]

    @pytest.mark.parametrize(
        ("entity", "limits", "reason"),
        [
            ({"user": "x", "ip": "10.0.0.1"}, {"connection_creation_rate": 1}, "does not go with"),
            ({"ip": "somewhere"}, {"connection_creation_rate": 1}, "is not an IP address"),
            ({"ip": "10.0.0.1"}, {"producer_byte_rate": 1}, "can have connection_creation_rate"),
            ({"user": "x"}, {"connection_creation_rate": 1}, "can have producer_byte_rate"),
            ({"user": "x"}, {"producer_byte_rate": 0.5}, "whole number"),
            ({"user": "x"}, {"producer_byte_rate": 0}, "must be greater than 0"),
            ({"tenant": "x"}, {"producer_byte_rate": 1}, "Unhandled client quota entity type"),
        ],
    )
    def test_a_quota_that_cannot_be_is_refused(
        self, admin: RoleClient, entity: dict[str, str], limits: dict[str, float], reason: str
    ) -> None:
        answer = admin.call("PUT", f"{HOME}/quotas", json={"entity": entity, "limits": limits})
        assert (answer.status_code, reason in answer.json()["detail"]) == (400, True), answer.text
        assert "Nothing was changed" in answer.json()["detail"]


def test_a_console_that_may_not_see_acls_says_so(secured: BrokerProcess, tmp_path: Path) -> None:
    """Its own user has no permissions."""
    name = named("console")
    cluster = Cluster(secured.kafka, settings=librdkafka(secured.kafka))
    cluster.users.set_password(name, PASSWORD)
    topics = Acl(
        ResourcePattern(ResourceType.TOPIC, "*"),
        AclEntry(Principal.user(name), "*", Operation.DESCRIBE, Permission.ALLOW),
    )
    cluster.acls.add([topics]).all()
    login = {
        key: str(value)
        for key, value in librdkafka(secured.kafka, user=name, password=PASSWORD).items()
        if key != "bootstrap.servers"
    }
    settings = ConsoleSettings(
        clusters=(ClusterSettings(CLUSTER, secured.kafka, login),),
        data=tmp_path,
        polling=PollingSettings(timeout_s=PATIENCE_S),
    )
    console = Console(settings)
    with TestClient(app_of(console), base_url=BASE) as client:
        sign_in_once(console, client)
        for path in ("acls", "users", "quotas"):
            answer = client.get(f"/api{HOME}/{path}")
            assert (answer.status_code, answer.json()["code"]) == (502, "CLUSTER_AUTHORIZATION_FAILED"), path
        assert client.get(f"/api{HOME}/acls/authorizer").json()["is_known"] is False


def test_a_console_that_may_use_no_group_shows_messages(
    secured: BrokerProcess, admin: RoleClient, tmp_path: Path
) -> None:
    user, topic = named("onlooker"), named("watched")
    admin.post(f"{HOME}/users", {"name": user, "password": PASSWORD}, status=201)
    admin.post(f"{HOME}/topics", {"name": topic, "partitions": 1}, status=201)
    add(admin, user, ["READ", "DESCRIBE_CONFIGS"], topic)
    add(admin, user, ["DESCRIBE", "DESCRIBE_CONFIGS"], "kafka-cluster", resource_type="CLUSTER")
    producer = Producer(librdkafka(secured.kafka))
    producer.produce(topic, b"hello")
    assert producer.flush(PATIENCE_S) == 0
    with console_of(user, PASSWORD, secured, tmp_path) as onlooker:
        onlooker.until_round(lambda snapshot: topic in snapshot.topics, "the topic is known")
        reader = onlooker.as_role("admin")
        (row,) = reader.get(f"{HOME}/topics/{topic}/messages", at="earliest")["rows"]
        assert row["value"]["text"] == "hello"
        producer.produce(topic, b"again")
        assert producer.flush(PATIENCE_S) == 0
        found = reader.post(f"{HOME}/topics/{topic}/searches", {"text": "again"}, status=202)
        until(lambda: reader.get(f"/searches/{found['id']}")["hits"] == 1, "the message is found")
