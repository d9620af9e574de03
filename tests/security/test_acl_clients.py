"""Permissions as real clients meet them: `penstock acl`, confluent-kafka, kafka-python, aiokafka and kcat.

Clients of this broker do not log in: they are User:ANONYMOUS. At first that is a super user, who gives permissions;
then the broker is started again without one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from conftest import running_broker
from support.broker_process import BrokerProcess
from support.commands import complaint, said, told
from support.programs import PENSTOCK, required_program, run
from support.waiting import PATIENCE_S

ANONYMOUS = "User:ANONYMOUS"
AUTHORIZER = {"security.authorizer": "acls", "groups.initial_rebalance_delay_ms": 20}


@pytest.fixture(scope="module")
def open_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Its anonymous clients are super users."""
    settings = {**AUTHORIZER, "security.super_users": ANONYMOUS}
    with running_broker(tmp_path_factory.mktemp("open"), settings) as process:
        yield process


@pytest.fixture(scope="module")
def closed_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Its anonymous clients may do what was given to them: use topics that begin with `orders`, as group billing."""
    settings = {**AUTHORIZER, "security.super_users": ANONYMOUS}
    with running_broker(tmp_path_factory.mktemp("closed"), settings) as process:
        admin = AdminClient({"bootstrap.servers": process.kafka})
        for future in admin.create_topics([NewTopic("orders", 1), NewTopic("secrets", 1)]).values():
            future.result(PATIENCE_S)
        acl = [PENSTOCK, "acl", "add", "ANONYMOUS", "-b", process.kafka]
        said(run([*acl, "READ,WRITE", "--topic", "orders", "--prefix"]))
        said(run([*acl, "READ", "--group", "billing"]))
        said(run([*acl, "WRITE", "--transactional-id", "writer"]))
        process.stop()
        process.settings = {**AUTHORIZER, "security.super_users": ""}
        process.start()
        yield process


class TestCommand:
    def test_permissions_are_added_listed_checked_and_removed(self, open_broker: BrokerProcess) -> None:
        base = [PENSTOCK, "-b", open_broker.kafka, "acl"]
        added = said(run([*base, "add", "alice", "READ,DESCRIBE", "--topic", "orders-", "--prefix"]))
        assert added == (
            "added ALLOW User:alice READ on topic orders-… (prefixed) from any host\n"
            "added ALLOW User:alice DESCRIBE on topic orders-… (prefixed) from any host\n"
        )
        said(run([*base, "add", "User:alice", "READ", "--topic", "orders-secret", "--deny"]))
        assert len(told(run([*base, "list", "--principal", "alice", "--json"]))) == 3
        assert len(told(run([*base, "list", "--topic", "orders-eu", "--json"]))) == 2
        assert "orders-secret" in said(run([*base, "list", "--topic", "orders-secret"]))
        check = [*base, "check", "alice", "READ", "--topic"]
        assert said(run([*check, "orders-eu"])) == (
            "may User:alice READ topic orders-eu from 127.0.0.1? "
            "yes, by ALLOW User:alice READ on topic orders-… (prefixed) from any host\n"
        )
        denied = run([*check, "orders-secret"])
        assert denied.returncode == 1
        assert b"no, by DENY User:alice READ on topic orders-secret" in denied.stdout
        unknown = run([*check, "payments"])
        assert unknown.returncode == 1
        assert b"no: no ACL allows it" in unknown.stdout
        assert "is a super user" in said(run([*base, "check", "ANONYMOUS", "ALTER", "--cluster"]))
        assert "pass --yes" in complaint(run([*base, "remove", "alice", "--topic", "orders-secret"]))
        removed = told(run([*base, "remove", "alice", "READ", "--topic", "orders-", "--prefix", "--yes", "--json"]))
        assert [each["operation"] for each in removed["removed"]] == ["READ"]
        said(run([*base, "remove", "alice", "--yes"]))
        assert told(run([*base, "list", "--principal", "alice", "--json"])) == []
        assert "no such permissions" in complaint(run([*base, "remove", "alice", "--yes"]))

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["add", "alice", "READ"], "name a resource"),
            (["add", "alice", "LOOK", "--topic", "x"], "there is no operation LOOK"),
            (["add", "alice", "READ", "--cluster"], "READ means nothing for a cluster"),
            (["add", ":", "READ", "--topic", "x"], "is not a principal"),
            (["check", "alice", "READ"], "name one resource"),
        ],
    )
    def test_what_means_nothing_is_refused(self, open_broker: BrokerProcess, arguments: list[str], reason: str) -> None:
        done = run([PENSTOCK, "acl", *arguments, "-b", open_broker.kafka])
        assert reason in complaint(done, 2)

    def test_who_may_not_see_permissions_is_told_so(self, closed_broker: BrokerProcess) -> None:
        base = [PENSTOCK, "-b", closed_broker.kafka, "acl"]
        assert "permissions cannot be listed" in complaint(run([*base, "list"]))
        assert "was not added" in complaint(run([*base, "add", "ANONYMOUS", "ALL", "--cluster"]))


class TestConfluent:
    def test_admin_creates_describes_and_deletes_acls(self, open_broker: BrokerProcess) -> None:
        admin = AdminClient({"bootstrap.servers": open_broker.kafka})
        binding = AclBinding(
            ResourceType.TRANSACTIONAL_ID,
            "writer-",
            ResourcePatternType.PREFIXED,
            "User:CN=bob,O=Example",
            "10.0.0.1",
            AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )
        (created,) = admin.create_acls([binding]).values()
        created.result(PATIENCE_S)
        fitting: Any = AclBindingFilter
        applies = fitting(
            ResourceType.TRANSACTIONAL_ID,
            "writer-7",
            ResourcePatternType.MATCH,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        assert admin.describe_acls(applies).result(PATIENCE_S) == [binding]
        (deleted,) = admin.delete_acls([applies]).values()
        assert deleted.result(PATIENCE_S) == [binding]
        assert admin.describe_acls(applies).result(PATIENCE_S) == []

    def test_producer_writes_where_it_may_and_is_told_where_not(self, closed_broker: BrokerProcess) -> None:
        outcomes: dict[str, KafkaError | None] = {}
        producer = Producer({"bootstrap.servers": closed_broker.kafka, "enable.idempotence": True, "log_level": 0})
        for topic in ("orders", "secrets", "ghosts"):
            producer.produce(topic, b"x", callback=partial(_note, outcomes, topic))
        assert producer.flush(PATIENCE_S) == 0
        assert outcomes["orders"] is None
        for topic in ("secrets", "ghosts"):
            refused = outcomes[topic]
            assert refused is not None
            assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    def test_only_topics_that_may_be_described_are_listed(self, closed_broker: BrokerProcess) -> None:
        listed = AdminClient({"bootstrap.servers": closed_broker.kafka}).list_topics(timeout=PATIENCE_S)
        assert set(listed.topics) == {"orders"}

    def test_consumer_reads_as_its_group_and_no_other(self, closed_broker: BrokerProcess) -> None:
        producer = Producer({"bootstrap.servers": closed_broker.kafka})
        producer.produce("orders", b"for billing")
        assert producer.flush(PATIENCE_S) == 0
        settings = {"bootstrap.servers": closed_broker.kafka, "auto.offset.reset": "earliest", "log_level": 0}
        consumer = Consumer({**settings, "group.id": "billing"})
        consumer.subscribe(["orders"])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        consumer.commit(message=message, asynchronous=False)
        consumer.close()
        for group, topic, code in (
            ("shipping", "orders", KafkaError.GROUP_AUTHORIZATION_FAILED),
            ("billing", "secrets", KafkaError.TOPIC_AUTHORIZATION_FAILED),
        ):
            consumer = Consumer({**settings, "group.id": group})
            consumer.subscribe([topic])
            assert _first_error(consumer) == code
            consumer.close()

    def test_transactions_need_their_id(self, closed_broker: BrokerProcess) -> None:
        settings = {"bootstrap.servers": closed_broker.kafka, "log_level": 0}
        producer = Producer({**settings, "transactional.id": "writer"})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("orders", b"in a transaction")
        producer.commit_transaction(PATIENCE_S)
        foreign = Producer({**settings, "transactional.id": "foreign"})
        with pytest.raises(KafkaException) as raised:
            foreign.init_transactions(PATIENCE_S)
        assert raised.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    def test_admin_calls_are_refused(self, closed_broker: BrokerProcess) -> None:
        admin = AdminClient({"bootstrap.servers": closed_broker.kafka})
        for futures, code in (
            (admin.create_topics([NewTopic("new", 1)]), KafkaError.TOPIC_AUTHORIZATION_FAILED),
            (admin.delete_topics(["orders"]), KafkaError.TOPIC_AUTHORIZATION_FAILED),
            (admin.delete_topics(["ghosts"]), KafkaError.TOPIC_AUTHORIZATION_FAILED),
            (admin.delete_consumer_groups(["billing"]), KafkaError.GROUP_AUTHORIZATION_FAILED),
        ):
            (future,) = futures.values()
            with pytest.raises(KafkaException) as raised:
                future.result(PATIENCE_S)
            assert raised.value.args[0].code() == code


def test_kafka_python_is_told_what_it_may_not(closed_broker: BrokerProcess) -> None:
    from kafka import KafkaProducer
    from kafka.errors import TopicAuthorizationFailedError

    producer = KafkaProducer(bootstrap_servers=closed_broker.kafka, max_block_ms=PATIENCE_S * 1000)
    assert producer.send("orders", b"x").get(PATIENCE_S).topic == "orders"
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send("secrets", b"x").get(PATIENCE_S)
    producer.close()


def test_aiokafka_is_told_what_it_may_not(closed_broker: BrokerProcess) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

    async def use() -> None:
        async with AIOKafkaProducer(bootstrap_servers=closed_broker.kafka) as producer:
            assert (await producer.send_and_wait("orders", b"x")).topic == "orders"
            with pytest.raises(TopicAuthorizationFailedError):
                await producer.send_and_wait("secrets", b"x")
        consumer = AIOKafkaConsumer("orders", bootstrap_servers=closed_broker.kafka, group_id="shipping")
        with pytest.raises(GroupAuthorizationFailedError):
            async with asyncio.timeout(PATIENCE_S):
                await consumer.start()
        await consumer.stop()

    asyncio.run(use())


def test_kcat_lists_what_it_may_see(closed_broker: BrokerProcess) -> None:
    done = run([required_program("kcat"), "-b", closed_broker.kafka, "-L", "-J"])
    assert [topic["topic"] for topic in json.loads(done.stdout)["topics"]] == ["orders"]


def test_denials_are_counted_and_logged_without_flooding(closed_broker: BrokerProcess) -> None:
    producer = Producer({"bootstrap.servers": closed_broker.kafka, "log_level": 0})
    producer.produce("secrets", b"x")
    producer.flush(PATIENCE_S)
    assert closed_broker.metric("penstock_authorization_denied_total", operation="DESCRIBE", resource="TOPIC") > 0
    assert "a request was denied" in closed_broker.log


def _note(outcomes: dict[str, KafkaError | None], topic: str, error: KafkaError | None, message: object) -> None:
    outcomes[topic] = error


def _first_error(consumer: Consumer) -> int:
    message = consumer.poll(PATIENCE_S)
    assert message is not None
    error = message.error()
    assert error is not None
    return error.code()
