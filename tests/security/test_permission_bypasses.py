"""Ways around permissions that lead nowhere: views, delayed messages, transactions, settings, waiting fetches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.broker.handlers.configs import ResourceType as ConfigType
from penstock.errors import Code
from penstock.net.caller import Caller
from penstock.protocol import apis
from penstock.protocol.messages import (
    add_partitions_to_txn,
    alter_configs,
    consumer_group_heartbeat,
    create_topics,
    delete_acls,
    describe_configs,
    end_txn,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    metadata,
    offset_commit,
)
from penstock.records.records import Record, build_batch
from penstock.security.acls import Operation, PatternType, Permission, ResourceType
from penstock.security.principal import Principal
from support.inner_broker import InnerBroker
from support.permissions import AUTHORIZED, ROOT, acl, caller_of, codes, give
from support.wire import batch_of, fetch_request, produce_request

ALICE = Principal.user("alice")
TOPIC = ResourceType.TOPIC
GROUP = ResourceType.GROUP
ID = ResourceType.TRANSACTIONAL_ID
TRANSACTIONAL = 0x10
"""An attribute of a batch."""


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InnerBroker]:
    settings = {**AUTHORIZED, "groups.initial_rebalance_delay_ms": "0"}
    broker = InnerBroker(tmp_path_factory.mktemp("bypass"), settings)
    yield broker
    broker.close()


@pytest.fixture
def root() -> Caller:
    return caller_of(ROOT)


@pytest.fixture
def alice() -> Caller:
    return caller_of(ALICE)


def create(broker: InnerBroker, caller: Caller, name: str, **configs: str) -> int:
    topic = create_topics.CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        configs=tuple(
            create_topics.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ),
    )
    answer = broker.ask(caller, apis.CREATE_TOPICS, 7, create_topics.CreateTopicsRequest(topics=(topic,)))
    code: int = answer["topics"][0]["error_code"]
    return code


def produce(broker: InnerBroker, caller: Caller, topic: str, batch: bytes, **options: Any) -> int:
    answer = broker.ask(caller, apis.PRODUCE, 11, produce_request(topic, batch, **options))
    code: int = answer["responses"][0]["partition_responses"][0]["error_code"]
    return code


def fetch(broker: InnerBroker, caller: Caller, topic: str, **options: Any) -> dict[str, Any]:
    answer = broker.ask(caller, apis.FETCH, 12, fetch_request([(topic, 0, 0)], **options))
    found: dict[str, Any] = answer["responses"][0]["partitions"][0]
    return found


def tagged(value: bytes, tags: str) -> bytes:
    headers = (("penstock-tags", tags.encode()),)
    return bytes(build_batch([Record(None, value, headers, timestamp_ms=int(time.time() * 1000))]))


def altered(broker: InnerBroker, caller: Caller, type_: int, name: str, key: str, value: str) -> int:
    config = incremental_alter_configs.IncrementalConfig(name=key, config_operation=0, value=value)
    resource = incremental_alter_configs.IncrementalConfigsResource(
        resource_type=type_, resource_name=name, configs=(config,)
    )
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=(resource,))
    code: int = broker.ask(caller, apis.INCREMENTAL_ALTER_CONFIGS, 1, request)["responses"][0]["error_code"]
    return code


class TestViews:
    @pytest.fixture(autouse=True)
    def orders(self, broker: InnerBroker, root: Caller) -> None:
        create(broker, root, "orders")
        assert produce(broker, root, "orders", tagged(b"for europe", "eu")) == 0
        assert produce(broker, root, "orders", tagged(b"secret", "internal")) == 0

    def test_view_is_a_permission_for_what_it_shows_and_nothing_else(
        self, broker: InnerBroker, root: Caller, alice: Caller
    ) -> None:
        assert create(broker, root, "orders-eu", penstock_view_of="orders", penstock_view_tags="eu") == 0
        give(broker, acl(ALICE, Operation.READ, TOPIC, "orders-eu"))
        shown = fetch(broker, alice, "orders-eu")
        assert b"for europe" in shown["records"]
        assert b"secret" not in shown["records"]
        assert fetch(broker, alice, "orders")["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
        give(broker, acl(ALICE, Operation.READ, TOPIC, "orders", permission=Permission.DENY))
        assert b"for europe" in fetch(broker, alice, "orders-eu")["records"]

    def test_view_of_a_topic_that_may_not_be_read_cannot_be_created(self, broker: InnerBroker, alice: Caller) -> None:
        give(broker, acl(ALICE, Operation.ALL, TOPIC, "mine", pattern=PatternType.PREFIXED))
        made = create(broker, alice, "mine", penstock_view_of="orders", penstock_view_tags="internal")
        assert made == Code.TOPIC_AUTHORIZATION_FAILED
        # And the answer is the same for a topic that does not exist.
        made = create(broker, alice, "mine", penstock_view_of="ghosts", penstock_view_tags="internal")
        assert made == Code.TOPIC_AUTHORIZATION_FAILED
        assert fetch(broker, alice, "mine")["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION

    def test_view_is_not_widened_by_who_may_not_read_its_base(
        self, broker: InnerBroker, root: Caller, alice: Caller
    ) -> None:
        create(broker, root, "orders-eu", penstock_view_of="orders", penstock_view_tags="eu")
        give(broker, acl(ALICE, Operation.ALL, TOPIC, "orders-eu"))
        widened = altered(broker, alice, ConfigType.TOPIC, "orders-eu", "penstock.view.tags", "eu or internal")
        assert widened == Code.TOPIC_AUTHORIZATION_FAILED
        replacement = alter_configs.AlterConfigsResource(
            resource_type=ConfigType.TOPIC,
            resource_name="orders-eu",
            configs=(alter_configs.AlterableConfig(name="penstock.view.tags", value="internal"),),
        )
        request = alter_configs.AlterConfigsRequest(resources=(replacement,))
        answer = broker.ask(alice, apis.ALTER_CONFIGS, 2, request)
        assert answer["responses"][0]["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
        assert b"secret" not in fetch(broker, alice, "orders-eu")["records"]


class TestDelayedMessages:
    def test_write_suffices_to_delay_and_to_cancel(self, broker: InnerBroker, root: Caller, alice: Caller) -> None:
        create(broker, root, "orders")
        give(broker, acl(ALICE, Operation.WRITE, TOPIC, "orders"))
        delay = (("penstock-delay", b"1h"), ("penstock-timer-id", b"close-7"))
        now_ms = int(time.time() * 1000)
        later = bytes(build_batch([Record(b"k", b"later", delay, timestamp_ms=now_ms)]))
        assert produce(broker, alice, "orders", later) == 0

    @pytest.mark.parametrize("name", ["__timers.orders", "__timer-ids.orders"])
    def test_list_of_what_waits_is_read_as_its_topic_is(
        self, broker: InnerBroker, root: Caller, alice: Caller, name: str
    ) -> None:
        create(broker, root, "orders")
        # An ACL about the list itself means nothing: it would be a way around those of the topic.
        give(broker, acl(ALICE, Operation.ALL, TOPIC, "__timer", pattern=PatternType.PREFIXED))
        assert fetch(broker, alice, name)["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
        asked = metadata.MetadataRequest(topics=(metadata.MetadataRequestTopic(name=name),))
        assert Code.TOPIC_AUTHORIZATION_FAILED in codes(broker.ask(alice, apis.METADATA, 12, asked))
        give(broker, acl(ALICE, Operation.READ, TOPIC, "orders"))
        assert fetch(broker, alice, name)["error_code"] == 0
        assert not any(codes(broker.ask(alice, apis.METADATA, 12, asked)))


class TestTransactions:
    def test_batch_of_a_foreign_transaction_is_not_slipped_in(
        self, broker: InnerBroker, root: Caller, alice: Caller
    ) -> None:
        """The transaction is open in the partition; a batch that names no transactional id would become part of it."""
        create(broker, root, "orders")
        found = find_coordinator.FindCoordinatorRequest(coordinator_keys=("writer",), key_type=1)
        broker.ask(root, apis.FIND_COORDINATOR, 6, found)
        begun = init_producer_id.InitProducerIdRequest(transactional_id="writer", transaction_timeout_ms=60_000)
        producer = broker.ask(root, apis.INIT_PRODUCER_ID, 4, begun)
        assert producer["error_code"] == 0
        id, epoch = producer["producer_id"], producer["producer_epoch"]
        added = add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="writer",
            v3_and_below_producer_id=id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=(add_partitions_to_txn.AddPartitionsToTxnTopic(name="orders", partitions=(0,)),),
        )
        assert not any(codes(broker.ask(root, apis.ADD_PARTITIONS_TO_TXN, 3, added)))
        own = batch_of(b"own", producer_id=id, producer_epoch=epoch, base_sequence=0, attributes=TRANSACTIONAL)
        assert produce(broker, root, "orders", own, transactional_id="writer") == 0
        give(broker, acl(ALICE, Operation.WRITE, TOPIC, "orders"), acl(ALICE, Operation.WRITE, ID, "alices"))
        foreign = batch_of(b"foreign", producer_id=id, producer_epoch=epoch, base_sequence=1, attributes=TRANSACTIONAL)
        assert produce(broker, alice, "orders", foreign) == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        forged = produce(broker, alice, "orders", foreign, transactional_id="writer")
        assert forged == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        ended = end_txn.EndTxnRequest(transactional_id="writer", producer_id=id, producer_epoch=epoch, committed=False)
        answer = broker.ask(alice, apis.END_TXN, 3, ended)
        assert answer["error_code"] == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert b"foreign" not in fetch(broker, root, "orders")["records"]


class TestSettings:
    def test_secrets_are_told_to_no_caller(self, tmp_path_factory: pytest.TempPathFactory, root: Caller) -> None:
        secrets = {"security.admin_password": "the-secret-of-admin"}
        broker = InnerBroker(
            tmp_path_factory.mktemp("secrets"), {**AUTHORIZED, "security.admin_user": "root", **secrets}
        )
        try:
            resource = describe_configs.DescribeConfigsResource(
                resource_type=ConfigType.BROKER, resource_name="1", configuration_keys=None
            )
            request = describe_configs.DescribeConfigsRequest(resources=(resource,), include_synonyms=True)
            answer = broker.ask(root, apis.DESCRIBE_CONFIGS, 4, request)
            described = {each["name"]: each for each in answer["results"][0]["configs"]}
            assert described["security.admin_password"]["value"] is None
            assert described["security.admin_password"]["is_sensitive"]
            assert "the-secret-of-admin" not in repr(answer)
        finally:
            broker.close()

    def test_pausing_a_group_needs_its_settings(self, broker: InnerBroker, alice: Caller) -> None:
        give(broker, acl(ALICE, Operation.READ, GROUP, "billing"))
        paused = altered(broker, alice, ConfigType.GROUP, "billing", "penstock.paused", "true")
        assert paused == Code.GROUP_AUTHORIZATION_FAILED
        give(broker, acl(ALICE, Operation.ALTER_CONFIGS, GROUP, "billing"))
        assert altered(broker, alice, ConfigType.GROUP, "billing", "penstock.paused", "true") == 0

    def test_archive_of_a_topic_needs_its_settings(self, broker: InnerBroker, root: Caller, alice: Caller) -> None:
        create(broker, root, "orders")
        give(broker, acl(ALICE, Operation.WRITE, TOPIC, "orders"), acl(ALICE, Operation.READ, TOPIC, "orders"))
        held = altered(broker, alice, ConfigType.TOPIC, "orders", "penstock.archive.group", "lake")
        assert held == Code.TOPIC_AUTHORIZATION_FAILED


class TestReset:
    def test_reset_is_for_all_topics_or_none(self, broker: InnerBroker, root: Caller, alice: Caller) -> None:
        create(broker, root, "orders")
        create(broker, root, "payments")
        broker.ask(
            root, apis.FIND_COORDINATOR, 6, find_coordinator.FindCoordinatorRequest(coordinator_keys=("billing",))
        )
        give(broker, acl(ALICE, Operation.READ, GROUP, "billing"), acl(ALICE, Operation.READ, TOPIC, "orders"))

        def reset(metadata: str) -> list[int]:
            request = offset_commit.OffsetCommitRequest(
                group_id="billing",
                topics=tuple(
                    offset_commit.OffsetCommitRequestTopic(
                        name=name,
                        partitions=(
                            offset_commit.OffsetCommitRequestPartition(
                                partition_index=0, committed_offset=0, committed_metadata=metadata
                            ),
                        ),
                    )
                    for name in ("orders", "payments")
                ),
            )
            answer = broker.ask(alice, apis.OFFSET_COMMIT, 8, request)
            return [topic["partitions"][0]["error_code"] for topic in answer["topics"]]

        assert reset("") == [0, Code.TOPIC_AUTHORIZATION_FAILED]
        assert reset("penstock-reset") == [Code.OPERATION_NOT_ATTEMPTED, Code.TOPIC_AUTHORIZATION_FAILED]


class TestCommits:
    def test_commit_of_many_partitions_is_refused_for_the_topics_that_are_denied(
        self, broker: InnerBroker, root: Caller, alice: Caller
    ) -> None:
        for name in ("orders", "payments"):
            create(broker, root, name)
        broker.ask(
            root, apis.FIND_COORDINATOR, 6, find_coordinator.FindCoordinatorRequest(coordinator_keys=("billing",))
        )
        denied = Code.TOPIC_AUTHORIZATION_FAILED

        def commit() -> dict[str, list[int]]:
            request = offset_commit.OffsetCommitRequest(
                group_id="billing",
                topics=tuple(
                    offset_commit.OffsetCommitRequestTopic(
                        name=name,
                        partitions=tuple(
                            offset_commit.OffsetCommitRequestPartition(partition_index=index, committed_offset=5)
                            for index in (0, 7)
                        ),
                    )
                    for name in ("payments", "orders")
                ),
            )
            answer = broker.ask(alice, apis.OFFSET_COMMIT, 9, request)
            return {topic["name"]: [each["error_code"] for each in topic["partitions"]] for topic in answer["topics"]}

        unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
        refused = [Code.GROUP_AUTHORIZATION_FAILED] * 2
        assert commit() == {"orders": refused, "payments": refused}
        give(broker, acl(ALICE, Operation.READ, GROUP, "billing"), acl(ALICE, Operation.READ, TOPIC, "orders"))
        for _ in range(2):
            # Whether a partition exists is told to nobody who may not read its topic.
            assert commit() == {"orders": [0, unknown], "payments": [denied] * 2}
        give(broker, acl(ALICE, Operation.READ, TOPIC, "payments"))
        assert commit() == {"orders": [0, unknown], "payments": [0, unknown]}

    def test_commit_that_was_allowed_before_is_refused_once_it_is_denied(
        self, broker: InnerBroker, root: Caller, alice: Caller
    ) -> None:
        create(broker, root, "orders")
        broker.ask(
            root, apis.FIND_COORDINATOR, 6, find_coordinator.FindCoordinatorRequest(coordinator_keys=("billing",))
        )
        partition = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
        request = offset_commit.OffsetCommitRequest(
            group_id="billing",
            topics=(offset_commit.OffsetCommitRequestTopic(name="orders", partitions=(partition,)),),
        )
        give(broker, acl(ALICE, Operation.READ, GROUP, "billing"), acl(ALICE, Operation.READ, TOPIC, "orders"))
        for _ in range(2):
            assert not any(codes(broker.ask(alice, apis.OFFSET_COMMIT, 9, request)))
        give(broker, acl(ALICE, Operation.READ, TOPIC, "orders", permission=Permission.DENY))
        assert list(codes(broker.ask(alice, apis.OFFSET_COMMIT, 9, request))) == [Code.TOPIC_AUTHORIZATION_FAILED]


class TestTopicsOnDemand:
    def test_topic_is_created_on_demand_only_with_create(self, broker: InnerBroker, alice: Caller) -> None:
        request = metadata.MetadataRequest(topics=(metadata.MetadataRequestTopic(name="fresh"),))
        give(broker, acl(ALICE, Operation.WRITE, TOPIC, "fresh"))
        assert Code.TOPIC_AUTHORIZATION_FAILED in codes(broker.ask(alice, apis.METADATA, 12, request))
        give(broker, acl(ALICE, Operation.CREATE, TOPIC, "fresh"))
        assert not any(codes(broker.ask(alice, apis.METADATA, 12, request)))

    def test_authorized_operations_are_those_that_are_allowed(
        self, broker: InnerBroker, root: Caller, alice: Caller
    ) -> None:
        create(broker, root, "orders")
        give(broker, acl(ALICE, Operation.READ, TOPIC, "orders"))
        request = metadata.MetadataRequest(topics=None, include_topic_authorized_operations=True)
        (seen,) = broker.ask(alice, apis.METADATA, 12, request)["topics"]
        assert seen["topic_authorized_operations"] == 1 << Operation.READ | 1 << Operation.DESCRIBE
        (seen,) = broker.ask(root, apis.METADATA, 12, request)["topics"]
        assert seen["topic_authorized_operations"] == sum(1 << each for each in (3, 4, 5, 6, 7, 8, 10, 11))

    def test_all_topics_are_those_of_the_caller_also_when_it_asks_again(
        self, broker: InnerBroker, root: Caller, alice: Caller
    ) -> None:
        create(broker, root, "orders")
        create(broker, root, "payments")
        give(broker, acl(ALICE, Operation.DESCRIBE, TOPIC, "orders"))
        request = metadata.MetadataRequest(topics=None)

        def names(caller: Caller) -> list[str]:
            return sorted(topic["name"] for topic in broker.ask(caller, apis.METADATA, 12, request)["topics"])

        for _ in range(2):
            assert names(alice) == ["orders"]
            assert names(root) == ["orders", "payments"]
        give(broker, acl(ALICE, Operation.DESCRIBE, TOPIC, "payments"))
        assert names(alice) == ["orders", "payments"]


class TestRevocation:
    def test_fetch_that_waits_gives_nothing_that_is_denied_by_now(
        self, broker: InnerBroker, root: Caller, alice: Caller
    ) -> None:
        create(broker, root, "orders")
        give(broker, acl(ALICE, Operation.READ, TOPIC, "orders"))
        waiting = broker.start(alice, apis.FETCH, 12, fetch_request([("orders", 0, 0)], max_wait_ms=60_000))
        everything = delete_acls.DeleteAclsFilter(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=str(ALICE),
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        deleted = broker.ask(root, apis.DELETE_ACLS, 3, delete_acls.DeleteAclsRequest(filters=(everything,)))
        assert len(deleted["filter_results"][0]["matching_acls"]) == 1
        assert produce(broker, root, "orders", batch_of(b"secret")) == 0
        answer = waiting()["responses"][0]["partitions"][0]
        assert answer["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
        assert not answer["records"]


class TestGroups:
    def test_pattern_does_not_tell_of_topics_that_may_not_be_described(
        self, broker: InnerBroker, root: Caller, alice: Caller
    ) -> None:
        create(broker, root, "orders")
        create(broker, root, "payments")
        broker.ask(root, apis.FIND_COORDINATOR, 6, find_coordinator.FindCoordinatorRequest(coordinator_keys=("any",)))
        give(broker, acl(ALICE, Operation.READ, GROUP, "any"), acl(ALICE, Operation.READ, TOPIC, "orders"))

        def joins(group: str, pattern: str) -> dict[str, Any]:
            request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
                group_id=group,
                member_id="8e3b1f6e-8f0c-4b0e-9a55-2c1f1e0f6d01",
                member_epoch=0,
                rebalance_timeout_ms=10_000,
                subscribed_topic_names=(),
                subscribed_topic_regex=pattern,
                topic_partitions=(),
            )
            return broker.ask(alice, apis.CONSUMER_GROUP_HEARTBEAT, 1, request)

        answer = joins("any", ".*")
        assert answer["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
        assert not answer["assignment"]


def test_with_everyone_allowed_only_what_has_acls_is_closed(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {**AUTHORIZED, "security.allow_everyone_if_no_acl_found": "true"}
    broker = InnerBroker(tmp_path_factory.mktemp("everyone"), settings)
    try:
        anyone = caller_of(Principal.user("anyone"))
        assert create(broker, anyone, "orders") == 0
        give(broker, acl(ALICE, Operation.READ, TOPIC, "orders"))
        assert produce(broker, anyone, "orders", batch_of(b"x")) == Code.TOPIC_AUTHORIZATION_FAILED
        assert create(broker, anyone, "payments") == 0
        assert produce(broker, anyone, "payments", batch_of(b"x")) == 0
    finally:
        broker.close()


def test_without_authorizer_everyone_may_do_everything(tmp_path_factory: pytest.TempPathFactory) -> None:
    broker = InnerBroker(tmp_path_factory.mktemp("open"), {})
    try:
        anyone = caller_of(Principal.user("anyone"))
        assert create(broker, anyone, "orders") == 0
        assert produce(broker, anyone, "orders", batch_of(b"x")) == 0
        assert b"x" in fetch(broker, anyone, "orders")["records"]
    finally:
        broker.close()
