"""Every call with every kind of caller, through the dispatcher of a whole broker.

A case is a request and what it needs. The walk makes it as a super user, as one who has exactly what the case needs, as
one who lacks one of the needs, as one who has everything and is denied one of the needs, as one who has permissions for
other things, and as a stranger. The needs of the cases of a call are those of its row in the table.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from penstock.broker.handlers.configs import ResourceType as ConfigType
from penstock.broker.permissions.guard import Need
from penstock.broker.permissions.table import table
from penstock.cluster.metadata import OFFSETS_TOPIC
from penstock.errors import Code
from penstock.ids import NO_TOPIC_ID
from penstock.protocol import apis
from penstock.protocol.apis import Api
from penstock.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    sync_group,
    txn_offset_commit,
    update_features,
    write_txn_markers,
)
from penstock.protocol.messages.api_versions import ApiVersionsRequest
from penstock.security.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from penstock.security.principal import Principal
from support import callers
from support.inner_broker import InnerBroker
from support.permissions import AUTHORIZED, DENIED, ROOT, acl, caller_of, codes, give
from support.wire import batch_of, fetch_request, produce_request

TOPIC, GHOST = "orders", "ghosts"
GROUP, GHOST_GROUP = "billing", "nobodies"
ID, GHOST_ID = "writer-1", "writer-0"
_numbers = itertools.count()

READ_TOPIC = Need(Operation.READ, ResourceType.TOPIC)
WRITE_TOPIC = Need(Operation.WRITE, ResourceType.TOPIC)
DESCRIBE_TOPIC = Need(Operation.DESCRIBE, ResourceType.TOPIC)
DELETE_TOPIC = Need(Operation.DELETE, ResourceType.TOPIC)
ALTER_TOPIC = Need(Operation.ALTER, ResourceType.TOPIC)
CREATE_TOPIC = Need(Operation.CREATE, ResourceType.TOPIC)
CREATE_ANY = Need(Operation.CREATE, ResourceType.CLUSTER)
READ_GROUP = Need(Operation.READ, ResourceType.GROUP)
DESCRIBE_GROUP = Need(Operation.DESCRIBE, ResourceType.GROUP)
DELETE_GROUP = Need(Operation.DELETE, ResourceType.GROUP)
WRITE_ID = Need(Operation.WRITE, ResourceType.TRANSACTIONAL_ID)
DESCRIBE_ID = Need(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)
ALTER_CLUSTER = Need(Operation.ALTER, ResourceType.CLUSTER)
DESCRIBE_CLUSTER = Need(Operation.DESCRIBE, ResourceType.CLUSTER)
IDEMPOTENT = Need(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)


@dataclass(frozen=True)
class Names:
    topic: str = TOPIC
    group: str = GROUP
    id: str = ID

    def of(self, type_: ResourceType) -> str:
        return {
            ResourceType.TOPIC: self.topic,
            ResourceType.GROUP: self.group,
            ResourceType.TRANSACTIONAL_ID: self.id,
        }.get(type_, CLUSTER_NAME)


@dataclass(frozen=True)
class Case:
    api: Api
    version: int
    needs: tuple[Need, ...]
    request: Callable[[Names], Any]
    hides: str = ""
    """What an answer leaves out, where nothing is refused."""
    does_not_leak: bool = True
    """Whether a stranger gets the same for what exists as for what does not."""

    def __str__(self) -> str:
        return f"{self.api.name}-v{self.version}-{'+'.join(map(str, self.needs)) or 'nothing'}".replace(" ", "-")


def _settings(type_: int, name: str) -> Any:
    return describe_configs.DescribeConfigsRequest(
        resources=(describe_configs.DescribeConfigsResource(resource_type=type_, resource_name=name),)
    )


def _altered(type_: int, name: str, key: str, value: str) -> Any:
    return incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=(
            incremental_alter_configs.IncrementalConfigsResource(
                resource_type=type_,
                resource_name=name,
                configs=(incremental_alter_configs.IncrementalConfig(name=key, config_operation=0, value=value),),
            ),
        ),
        validate_only=True,
    )


def _replaced(type_: int, name: str) -> Any:
    return alter_configs.AlterConfigsRequest(
        resources=(alter_configs.AlterConfigsResource(resource_type=type_, resource_name=name, configs=()),),
        validate_only=True,
    )


def _of_settings(operation: Operation) -> Iterator[tuple[Need, int, Callable[[Names], str]]]:
    yield Need(operation, ResourceType.TOPIC), ConfigType.TOPIC, lambda names: names.topic
    yield Need(operation, ResourceType.GROUP), ConfigType.GROUP, lambda names: names.group
    yield Need(operation, ResourceType.CLUSTER), ConfigType.BROKER, lambda names: ""
    yield Need(operation, ResourceType.CLUSTER), ConfigType.DATABASE, lambda names: "default"


def _named(request: Callable[..., Any], type_: int, name: Callable[[Names], str], names: Names) -> Any:
    return request(type_, name(names))


def _committed(names: Names) -> Any:
    return offset_commit.OffsetCommitRequest(
        group_id=names.group,
        topics=(
            offset_commit.OffsetCommitRequestTopic(
                name=names.topic,
                partitions=(offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1),),
            ),
        ),
    )


def _fetched(names: Names, *, all_topics: bool = False) -> Any:
    topics = (offset_fetch.OffsetFetchRequestTopics(name=names.topic, partition_indexes=(0,)),)
    return offset_fetch.OffsetFetchRequest(
        groups=(offset_fetch.OffsetFetchRequestGroup(group_id=names.group, topics=None if all_topics else topics),)
    )


def _fetched_of_one(names: Names) -> Any:
    topics = (offset_fetch.OffsetFetchRequestTopic(name=names.topic, partition_indexes=(0,)),)
    return offset_fetch.OffsetFetchRequest(group_id=names.group, topics=topics)


def _created(names: Names, *, base: str = "") -> Any:
    view = (("penstock.view.of", base), ("penstock.view.tags", "eu")) if base else ()
    return create_topics.CreateTopicsRequest(
        topics=(
            create_topics.CreatableTopic(
                name=f"{names.topic}-new",
                num_partitions=-1,
                replication_factor=-1,
                configs=tuple(create_topics.CreatableTopicConfig(name=name, value=value) for name, value in view),
            ),
        ),
        validate_only=True,
    )


def _added(names: Names) -> Any:
    return add_partitions_to_txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=names.id,
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=(add_partitions_to_txn.AddPartitionsToTxnTopic(name=names.topic, partitions=(0,)),),
    )


def _added_by_several(names: Names) -> Any:
    return add_partitions_to_txn.AddPartitionsToTxnRequest(
        transactions=(
            add_partitions_to_txn.AddPartitionsToTxnTransaction(
                transactional_id=names.id,
                producer_id=1,
                producer_epoch=0,
                verify_only=False,
                topics=(add_partitions_to_txn.AddPartitionsToTxnTopic(name=names.topic, partitions=(0,)),),
            ),
        )
    )


def _committed_in_transaction(names: Names) -> Any:
    return txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id=names.id,
        group_id=names.group,
        producer_id=1,
        producer_epoch=0,
        topics=(
            txn_offset_commit.TxnOffsetCommitRequestTopic(
                name=names.topic,
                partitions=(txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1),),
            ),
        ),
    )


def _metadata(*names: str, creates: bool = False) -> Any:
    topics = tuple(metadata.MetadataRequestTopic(name=name) for name in names)
    return metadata.MetadataRequest(topics=topics or None, allow_auto_topic_creation=creates)


def _acl_filter(kind: Any) -> Any:
    return kind(
        resource_type_filter=ResourceType.USER,
        resource_name_filter="nothing",
        pattern_type_filter=3,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )


CASES = [
    Case(apis.PRODUCE, 11, (WRITE_TOPIC,), lambda names: produce_request(names.topic, batch_of(b"x"))),
    Case(
        apis.PRODUCE,
        11,
        (WRITE_TOPIC, WRITE_ID),
        lambda names: produce_request(names.topic, batch_of(b"x"), transactional_id=names.id),
    ),
    Case(apis.FETCH, 12, (READ_TOPIC,), lambda names: fetch_request([(names.topic, 0, 0)])),
    Case(apis.FETCH, 12, (READ_TOPIC,), lambda names: fetch_request([(f"__timers.{names.topic}", 0, 0)])),
    Case(
        apis.LIST_OFFSETS,
        9,
        (DESCRIBE_TOPIC,),
        lambda names: list_offsets.ListOffsetsRequest(
            replica_id=-1,
            topics=(
                list_offsets.ListOffsetsTopic(
                    name=names.topic,
                    partitions=(list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1),),
                ),
            ),
        ),
    ),
    Case(apis.METADATA, 12, (DESCRIBE_TOPIC,), lambda names: _metadata(names.topic)),
    Case(apis.METADATA, 0, (DESCRIBE_TOPIC,), lambda names: _metadata(names.topic)),
    Case(apis.METADATA, 12, (DESCRIBE_TOPIC,), lambda names: _metadata(), hides=TOPIC),
    Case(apis.OFFSET_COMMIT, 8, (READ_GROUP, READ_TOPIC), _committed),
    Case(apis.OFFSET_FETCH, 9, (DESCRIBE_GROUP, DESCRIBE_TOPIC), _fetched),
    Case(apis.OFFSET_FETCH, 7, (DESCRIBE_GROUP, DESCRIBE_TOPIC), _fetched_of_one),
    Case(apis.OFFSET_FETCH, 1, (DESCRIBE_GROUP, DESCRIBE_TOPIC), _fetched_of_one),
    Case(
        apis.FIND_COORDINATOR,
        6,
        (DESCRIBE_GROUP,),
        lambda names: find_coordinator.FindCoordinatorRequest(coordinator_keys=(names.group,)),
    ),
    Case(
        apis.FIND_COORDINATOR,
        3,
        (DESCRIBE_ID,),
        lambda names: find_coordinator.FindCoordinatorRequest(key=names.id, key_type=1),
    ),
    Case(
        apis.JOIN_GROUP,
        5,
        (READ_GROUP,),
        lambda names: join_group.JoinGroupRequest(
            group_id=names.group, session_timeout_ms=6000, member_id="", protocol_type="consumer", protocols=()
        ),
    ),
    Case(
        apis.HEARTBEAT,
        4,
        (READ_GROUP,),
        lambda names: heartbeat.HeartbeatRequest(group_id=names.group, generation_id=1, member_id="m"),
    ),
    Case(
        apis.LEAVE_GROUP,
        5,
        (READ_GROUP,),
        lambda names: leave_group.LeaveGroupRequest(
            group_id=names.group, members=(leave_group.MemberIdentity(member_id="m"),)
        ),
    ),
    Case(
        apis.SYNC_GROUP,
        5,
        (READ_GROUP,),
        lambda names: sync_group.SyncGroupRequest(group_id=names.group, generation_id=1, member_id="m", assignments=()),
    ),
    Case(
        apis.DESCRIBE_GROUPS,
        5,
        (DESCRIBE_GROUP,),
        lambda names: describe_groups.DescribeGroupsRequest(groups=(names.group,)),
    ),
    Case(apis.LIST_GROUPS, 5, (DESCRIBE_GROUP,), lambda names: list_groups.ListGroupsRequest(), hides=GROUP),
    Case(apis.LIST_GROUPS, 5, (DESCRIBE_CLUSTER,), lambda names: list_groups.ListGroupsRequest(), hides=GROUP),
    Case(
        apis.API_VERSIONS,
        3,
        (),
        lambda names: ApiVersionsRequest(client_software_name="test", client_software_version="1"),
    ),
    Case(apis.CREATE_TOPICS, 7, (CREATE_TOPIC,), lambda names: _created(Names(topic=names.topic))),
    Case(apis.CREATE_TOPICS, 7, (CREATE_ANY,), _created),
    Case(
        apis.DELETE_TOPICS,
        6,
        (DELETE_TOPIC,),
        lambda names: delete_topics.DeleteTopicsRequest(
            topics=(delete_topics.DeleteTopicState(name=f"{names.topic}-new"),), timeout_ms=1000
        ),
    ),
    Case(
        apis.DELETE_TOPICS,
        5,
        (DELETE_TOPIC,),
        lambda names: delete_topics.DeleteTopicsRequest(topic_names=(f"{names.topic}-new",), timeout_ms=1000),
    ),
    Case(
        apis.DELETE_RECORDS,
        2,
        (DELETE_TOPIC,),
        lambda names: delete_records.DeleteRecordsRequest(
            topics=(
                delete_records.DeleteRecordsTopic(
                    name=names.topic,
                    partitions=(delete_records.DeleteRecordsPartition(partition_index=0, offset=0),),
                ),
            ),
            timeout_ms=1000,
        ),
    ),
    Case(
        apis.INIT_PRODUCER_ID,
        4,
        (WRITE_ID,),
        lambda names: init_producer_id.InitProducerIdRequest(transactional_id=names.id, transaction_timeout_ms=1000),
    ),
    Case(
        apis.INIT_PRODUCER_ID,
        4,
        (IDEMPOTENT,),
        lambda names: init_producer_id.InitProducerIdRequest(transaction_timeout_ms=1000),
    ),
    Case(
        apis.INIT_PRODUCER_ID,
        4,
        (WRITE_TOPIC,),
        lambda names: init_producer_id.InitProducerIdRequest(transaction_timeout_ms=1000),
    ),
    Case(
        apis.OFFSET_FOR_LEADER_EPOCH,
        4,
        (DESCRIBE_TOPIC,),
        lambda names: offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            topics=(
                offset_for_leader_epoch.OffsetForLeaderTopic(
                    topic=names.topic,
                    partitions=(offset_for_leader_epoch.OffsetForLeaderPartition(partition=0, leader_epoch=0),),
                ),
            )
        ),
    ),
    Case(apis.ADD_PARTITIONS_TO_TXN, 3, (WRITE_ID, WRITE_TOPIC), _added),
    Case(apis.ADD_PARTITIONS_TO_TXN, 5, (WRITE_ID, WRITE_TOPIC), _added_by_several),
    Case(
        apis.ADD_OFFSETS_TO_TXN,
        3,
        (WRITE_ID, READ_GROUP),
        lambda names: add_offsets_to_txn.AddOffsetsToTxnRequest(
            transactional_id=names.id, producer_id=1, producer_epoch=0, group_id=names.group
        ),
    ),
    Case(
        apis.END_TXN,
        3,
        (WRITE_ID,),
        lambda names: end_txn.EndTxnRequest(transactional_id=names.id, producer_id=1, producer_epoch=0, committed=True),
    ),
    Case(apis.TXN_OFFSET_COMMIT, 3, (WRITE_ID, READ_GROUP, READ_TOPIC), _committed_in_transaction),
    Case(apis.DESCRIBE_ACLS, 3, (DESCRIBE_CLUSTER,), lambda names: _acl_filter(describe_acls.DescribeAclsRequest)),
    Case(
        apis.CREATE_ACLS,
        3,
        (ALTER_CLUSTER,),
        lambda names: create_acls.CreateAclsRequest(
            creations=(acl(Principal.user("x"), Operation.READ, ResourceType.TOPIC, "x"),)
        ),
    ),
    Case(
        apis.DELETE_ACLS,
        3,
        (ALTER_CLUSTER,),
        lambda names: delete_acls.DeleteAclsRequest(filters=(_acl_filter(delete_acls.DeleteAclsFilter),)),
    ),
    *(
        Case(apis.DESCRIBE_CONFIGS, 4, (need,), partial(_named, _settings, type_, name))
        for need, type_, name in _of_settings(Operation.DESCRIBE_CONFIGS)
    ),
    *(
        Case(apis.ALTER_CONFIGS, 2, (need,), partial(_named, _replaced, type_, name))
        for need, type_, name in _of_settings(Operation.ALTER_CONFIGS)
    ),
    *(
        Case(
            apis.INCREMENTAL_ALTER_CONFIGS,
            1,
            (need,),
            partial(_named, partial(_altered, key="penstock.paused", value="true"), type_, name),
        )
        for need, type_, name in _of_settings(Operation.ALTER_CONFIGS)
    ),
    Case(
        apis.INCREMENTAL_ALTER_CONFIGS,
        1,
        (Need(Operation.ALTER_CONFIGS, ResourceType.TOPIC), ALTER_TOPIC),
        lambda names: _altered(ConfigType.TOPIC, names.topic, "penstock.partitions.retired", "1:0"),
    ),
    Case(
        apis.INCREMENTAL_ALTER_CONFIGS,
        1,
        (Need(Operation.ALTER_CONFIGS, ResourceType.CLUSTER), ALTER_CLUSTER),
        lambda names: _altered(ConfigType.BROKER, "1", "penstock.draining", "true"),
    ),
    Case(apis.DESCRIBE_LOG_DIRS, 4, (DESCRIBE_CLUSTER,), lambda names: describe_log_dirs.DescribeLogDirsRequest()),
    Case(
        apis.CREATE_PARTITIONS,
        3,
        (ALTER_TOPIC,),
        lambda names: create_partitions.CreatePartitionsRequest(
            topics=(create_partitions.CreatePartitionsTopic(name=names.topic, count=9),),
            timeout_ms=1000,
            validate_only=True,
        ),
    ),
    Case(
        apis.DELETE_GROUPS,
        2,
        (DELETE_GROUP,),
        lambda names: delete_groups.DeleteGroupsRequest(groups_names=(f"{names.group}-gone",)),
    ),
    Case(apis.ELECT_LEADERS, 2, (ALTER_CLUSTER,), lambda names: elect_leaders.ElectLeadersRequest(topic_partitions=())),
    Case(
        apis.ALTER_PARTITION_REASSIGNMENTS,
        0,
        (ALTER_CLUSTER,),
        lambda names: alter_partition_reassignments.AlterPartitionReassignmentsRequest(topics=()),
    ),
    Case(
        apis.LIST_PARTITION_REASSIGNMENTS,
        0,
        (DESCRIBE_CLUSTER,),
        lambda names: list_partition_reassignments.ListPartitionReassignmentsRequest(),
    ),
    Case(
        apis.OFFSET_DELETE,
        0,
        (DELETE_GROUP, READ_TOPIC),
        lambda names: offset_delete.OffsetDeleteRequest(
            group_id=names.group,
            topics=(
                offset_delete.OffsetDeleteRequestTopic(
                    name=names.topic,
                    partitions=(offset_delete.OffsetDeleteRequestPartition(partition_index=7),),
                ),
            ),
        ),
    ),
    Case(
        apis.DESCRIBE_CLIENT_QUOTAS,
        1,
        (Need(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),),
        lambda names: describe_client_quotas.DescribeClientQuotasRequest(components=(), strict=False),
    ),
    Case(
        apis.ALTER_CLIENT_QUOTAS,
        1,
        (Need(Operation.ALTER_CONFIGS, ResourceType.CLUSTER),),
        lambda names: alter_client_quotas.AlterClientQuotasRequest(
            entries=(
                alter_client_quotas.AlterClientQuotasEntry(
                    entity=(alter_client_quotas.AlterClientQuotasEntity(entity_type="user", entity_name="x"),), ops=()
                ),
            ),
            validate_only=True,
        ),
    ),
    Case(
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        (DESCRIBE_CLUSTER,),
        lambda names: describe_user_scram_credentials.DescribeUserScramCredentialsRequest(users=None),
    ),
    Case(
        apis.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        (ALTER_CLUSTER,),
        lambda names: alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            deletions=(alter_user_scram_credentials.ScramCredentialDeletion(name="x", mechanism=1),)
        ),
    ),
    Case(
        apis.UPDATE_FEATURES,
        1,
        (ALTER_CLUSTER,),
        lambda names: update_features.UpdateFeaturesRequest(feature_updates=(), validate_only=True),
    ),
    Case(apis.DESCRIBE_CLUSTER, 1, (), lambda names: describe_cluster.DescribeClusterRequest()),
    Case(
        apis.DESCRIBE_PRODUCERS,
        0,
        (READ_TOPIC,),
        lambda names: describe_producers.DescribeProducersRequest(
            topics=(describe_producers.TopicRequest(name=names.topic, partition_indexes=(0,)),)
        ),
    ),
    Case(
        apis.DESCRIBE_TRANSACTIONS,
        0,
        (DESCRIBE_ID,),
        lambda names: describe_transactions.DescribeTransactionsRequest(transactional_ids=(names.id,)),
    ),
    Case(
        apis.LIST_TRANSACTIONS,
        1,
        (DESCRIBE_ID,),
        lambda names: list_transactions.ListTransactionsRequest(),
        hides=ID,
    ),
    Case(
        apis.CONSUMER_GROUP_HEARTBEAT,
        0,
        (READ_GROUP, DESCRIBE_TOPIC),
        lambda names: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            group_id=names.group, member_id="m", member_epoch=5, subscribed_topic_names=(names.topic,)
        ),
    ),
    Case(
        apis.CONSUMER_GROUP_DESCRIBE,
        0,
        (DESCRIBE_GROUP,),
        lambda names: consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=(names.group,)),
    ),
    Case(
        apis.CONSUMER_GROUP_DESCRIBE,
        0,
        (DESCRIBE_GROUP, DESCRIBE_TOPIC),
        lambda names: consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=(f"{names.group}-new",)),
        does_not_leak=False,
    ),
    Case(
        apis.LIST_CONFIG_RESOURCES,
        1,
        (Need(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),),
        lambda names: list_config_resources.ListConfigResourcesRequest(),
    ),
    Case(
        apis.DESCRIBE_TOPIC_PARTITIONS,
        0,
        (DESCRIBE_TOPIC,),
        lambda names: describe_topic_partitions.DescribeTopicPartitionsRequest(
            topics=(describe_topic_partitions.TopicRequest(name=names.topic),)
        ),
    ),
    Case(
        apis.DESCRIBE_TOPIC_PARTITIONS,
        0,
        (DESCRIBE_TOPIC,),
        lambda names: describe_topic_partitions.DescribeTopicPartitionsRequest(topics=()),
        hides=TOPIC,
    ),
]


def _given(who: Principal, need: Need, name: str, permission: Permission) -> Any:
    # What is created or deleted has a name that begins like the others.
    pattern = PatternType.LITERAL if need.type is ResourceType.CLUSTER else PatternType.PREFIXED
    return acl(who, need.operation, need.type, name, permission=permission, pattern=pattern)


class World:
    """A broker with a topic, a group and a transactional id, which gives permissions and is asked."""

    def __init__(self, broker: InnerBroker) -> None:
        self.broker = broker

    def ask(self, who: Principal, case: Case, names: Names) -> dict[str, Any]:
        if case.api.key not in self.broker.answered:
            pytest.skip("no broker answers this yet")
        return self.broker.ask(caller_of(who), case.api, case.version, case.request(names))

    def give(self, who: Principal, *needs: Need, names: Names, permission: Permission = Permission.ALLOW) -> None:
        give(self.broker, *(_given(who, need, names.of(need.type), permission) for need in needs))

    def someone(self) -> Principal:
        return Principal.user(f"someone-{next(_numbers)}")


def is_denied(case: Case, answer: dict[str, Any]) -> bool:
    if case.hides:
        return case.hides not in repr(answer)
    return not DENIED.isdisjoint(codes(answer))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    settings = {
        **AUTHORIZED,
        "groups.initial_rebalance_delay_ms": "0",
        "broker.auto_create_topics": "false",
        "limits.acls": "10000",
    }
    broker = InnerBroker(tmp_path_factory.mktemp("walk"), settings)
    made = World(broker)
    root = caller_of(ROOT)
    topic = create_topics.CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1)
    broker.ask(root, apis.CREATE_TOPICS, 7, create_topics.CreateTopicsRequest(topics=(topic,)))
    for key_type, key in ((0, GROUP), (1, ID)):
        found = find_coordinator.FindCoordinatorRequest(coordinator_keys=(key,), key_type=key_type)
        broker.ask(root, apis.FIND_COORDINATOR, 6, found)
    broker.ask(root, apis.OFFSET_COMMIT, 8, _committed(Names()))
    transactional = init_producer_id.InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=1000)
    assert broker.ask(root, apis.INIT_PRODUCER_ID, 4, transactional)["error_code"] == 0
    joined = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id=f"{GROUP}-new",
        member_id="",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=(TOPIC,),
        topic_partitions=(),
    )
    assert broker.ask(root, apis.CONSUMER_GROUP_HEARTBEAT, 0, joined)["error_code"] == 0
    yield made
    broker.close()


WITHOUT_CASE = {apis.WRITE_TXN_MARKERS, apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE}
"""Brokers alone may the first, which has a test of its own; the others are how a caller becomes one."""

by_case = pytest.mark.parametrize("case", CASES, ids=str)


def test_no_call_is_without_a_row_and_a_case() -> None:
    rows = table()
    assert {api.key for api in rows} == set(apis.APIS)
    assert {case.api for case in CASES} == set(rows) - WITHOUT_CASE


@pytest.mark.parametrize("api", [apis.APIS[key] for key in sorted(apis.APIS)], ids=lambda api: str(api.name))
def test_cases_need_what_the_table_says(api: Api) -> None:
    if api in WITHOUT_CASE:
        return
    said = {need for choice in table()[api].needs for need in choice}
    needed = {need for case in CASES if case.api is api for need in case.needs}
    assert said <= needed
    beside = {ALTER_TOPIC, ALTER_CLUSTER} if api in (apis.INCREMENTAL_ALTER_CONFIGS, apis.ALTER_CONFIGS) else set()
    assert needed <= said | beside


@by_case
def test_super_user_may(world: World, case: Case) -> None:
    answer = world.ask(ROOT, case, Names())
    assert not is_denied(case, answer), answer


@by_case
def test_who_has_what_it_needs_may(world: World, case: Case) -> None:
    who = world.someone()
    world.give(who, *case.needs, names=Names())
    answer = world.ask(who, case, Names())
    assert not is_denied(case, answer), answer


@by_case
def test_who_lacks_one_need_may_not(world: World, case: Case) -> None:
    for missing in case.needs:
        who = world.someone()
        world.give(who, *(need for need in case.needs if need != missing), names=Names())
        answer = world.ask(who, case, Names())
        if case == CASES[1] and missing is WRITE_ID:
            assert Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED in codes(answer)
        assert is_denied(case, answer), (missing, answer)


@by_case
def test_who_is_denied_may_not_whatever_else_is_allowed(world: World, case: Case) -> None:
    everything = [Need(Operation.ALL, type_) for type_ in (2, 3, 4, 5) for type_ in [ResourceType(type_)]]
    for denied in case.needs:
        who = world.someone()
        world.give(who, *everything, names=Names())
        world.give(who, denied, names=Names(), permission=Permission.DENY)
        if denied.type is ResourceType.CLUSTER and case.api is apis.LIST_GROUPS:
            continue  # the other choice is still allowed
        if case.api is apis.LIST_GROUPS or case.api in (apis.CREATE_TOPICS, apis.INIT_PRODUCER_ID):
            # Two choices: both are denied.
            both = [need for choice in table()[case.api].needs for need in choice]
            world.give(who, *both, names=Names(), permission=Permission.DENY)
        answer = world.ask(who, case, Names())
        assert is_denied(case, answer), (denied, answer)


@by_case
def test_stranger_and_one_with_other_permissions_may_not(world: World, case: Case) -> None:
    other = world.someone()
    own = Names("payments", "shipping", "other")
    world.give(other, *(need for need in case.needs if need.type is not ResourceType.CLUSTER), names=own)
    is_open = not case.needs or (case.api is apis.INIT_PRODUCER_ID and case.needs != (WRITE_ID,))
    for who in (world.someone(), other) if not is_open else ():
        before = world.broker.denied
        answer = world.ask(who, case, Names())
        assert is_denied(case, answer), answer
        # What is left out is not denied; what is refused is counted.
        assert bool(case.hides) or world.broker.denied > before


@by_case
def test_stranger_is_told_the_same_of_what_exists_and_what_does_not(world: World, case: Case) -> None:
    if case.hides or not case.does_not_leak:
        return
    who = world.someone()
    known = world.ask(who, case, Names())
    unknown = world.ask(who, case, Names(GHOST, GHOST_GROUP, GHOST_ID))
    renamed = repr(unknown).replace(GHOST, TOPIC).replace(GHOST_GROUP, GROUP).replace(GHOST_ID, ID)
    assert repr(known) == renamed


def test_no_topic_id_tells_a_stranger_of_a_topic(world: World) -> None:
    told = world.broker.ask(caller_of(ROOT), apis.METADATA, 12, _metadata(TOPIC))["topics"][0]
    who = caller_of(world.someone())
    by_id = metadata.MetadataRequest(topics=(metadata.MetadataRequestTopic(topic_id=told["topic_id"], name=None),))
    (answered,) = world.broker.ask(who, apis.METADATA, 12, by_id)["topics"]
    assert (answered["error_code"], answered["name"]) == (Code.UNKNOWN_TOPIC_ID, None)
    deletion = delete_topics.DeleteTopicsRequest(
        topics=(delete_topics.DeleteTopicState(topic_id=told["topic_id"]),), timeout_ms=1000
    )
    (deleted,) = world.broker.ask(who, apis.DELETE_TOPICS, 6, deletion)["responses"]
    assert (deleted["error_code"], deleted["name"]) == (Code.TOPIC_AUTHORIZATION_FAILED, None)
    assert told["topic_id"] != NO_TOPIC_ID


def test_no_acl_gives_what_brokers_alone_may(world: World) -> None:
    """A stranger's marker would make an aborted record visible; a forged follower's fetch would acknowledge it."""
    who = world.someone()
    types = (ResourceType.CLUSTER, ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID)
    everything = [Need(Operation.ALL, type_) for type_ in types]
    world.give(who, *everything, names=Names())
    world.give(who, *everything, names=Names(topic=OFFSETS_TOPIC))
    for principal in (who, ROOT):
        # It says that it is the other broker, which counts for nothing.
        caller = caller_of(principal)
        caller.client_id = "penstock-1"
        marker = write_txn_markers.WritableTxnMarker(
            producer_id=1,
            producer_epoch=0,
            transaction_result=True,
            topics=(write_txn_markers.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=(0,)),),
            coordinator_epoch=0,
        )
        request = write_txn_markers.WriteTxnMarkersRequest(markers=(marker,))
        answer = world.broker.ask(caller, apis.WRITE_TXN_MARKERS, 1, request)
        assert Code.CLUSTER_AUTHORIZATION_FAILED in codes(answer)
        as_follower = {**fetch_request([(TOPIC, 0, 0)]), "replica_id": 1}
        assert Code.TOPIC_AUTHORIZATION_FAILED in codes(world.broker.ask(caller, apis.FETCH, 12, as_follower))
        added = _added_by_several(Names(topic=OFFSETS_TOPIC))
        assert Code.TOPIC_AUTHORIZATION_FAILED in codes(world.broker.ask(caller, apis.ADD_PARTITIONS_TO_TXN, 4, added))


def test_brokers_may_ask_each_other_what_they_have_to(world: World) -> None:
    broker = callers.broker()
    assert GROUP in repr(world.broker.ask(broker, apis.LIST_GROUPS, 4, list_groups.ListGroupsRequest()))
    assert DENIED.isdisjoint(codes(world.broker.ask(broker, apis.OFFSET_FETCH, 9, _fetched(Names()))))
    assert DENIED.isdisjoint(codes(world.broker.ask(broker, apis.FETCH, 12, fetch_request([(TOPIC, 0, 0)]))))
    # And nothing else.
    answer = world.broker.ask(broker, apis.METADATA, 12, _metadata(TOPIC))
    assert Code.TOPIC_AUTHORIZATION_FAILED in codes(answer)
