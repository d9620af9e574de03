"""What clients do not show: parked requests when a client or the broker goes away, and old versions."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from conftest import BrokerFactory
from penstock.protocol import apis
from penstock.protocol.messages.find_coordinator import FindCoordinatorRequest
from penstock.protocol.messages.heartbeat import HeartbeatRequest
from penstock.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.protocol.messages.leave_group import LeaveGroupRequest
from penstock.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from penstock.protocol.messages.offset_fetch import OffsetFetchRequest
from penstock.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from support.broker_process import BrokerProcess
from support.crew import SETTINGS
from support.waiting import until
from support.wire import Wire, batch_of

WITHOUT_ID = 3
UNKNOWN_TOPIC_OR_PARTITION = 3
COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 15, 16
NONE, ILLEGAL_GENERATION, INVALID_GROUP_ID, UNKNOWN_MEMBER_ID = 0, 22, 24, 25
REBALANCE_IN_PROGRESS, GROUP_ID_NOT_FOUND, INVALID_TOPIC = 27, 69, 17


def join_request(group: str, member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=6000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="test",
        protocols=(JoinGroupRequestProtocol(name="any", metadata=b""),),
    )


def joined(wire: Wire, group: str, member_id: str = "") -> dict[str, Any]:
    answer = wire.ask(apis.JOIN_GROUP, WITHOUT_ID, join_request(group, member_id))
    assert answer["error_code"] == NONE
    return answer


def sync_request(group: str, me: dict[str, Any], plan: dict[str, bytes] | None = None) -> SyncGroupRequest:
    assignments = tuple(
        SyncGroupRequestAssignment(member_id=member_id, assignment=assigned)
        for member_id, assigned in (plan or {}).items()
    )
    return SyncGroupRequest(
        group_id=group, generation_id=me["generation_id"], member_id=me["member_id"], assignments=assignments
    )


def synced(wire: Wire, group: str, me: dict[str, Any], plan: dict[str, bytes] | None = None) -> dict[str, Any]:
    return wire.ask(apis.SYNC_GROUP, 3, sync_request(group, me, plan))


def find(wire: Wire, group: str) -> None:
    until(
        lambda: wire.ask(apis.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=group, key_type=0))["error_code"] == NONE,
        "there is a coordinator",
    )


@pytest.mark.parametrize("number", range(5))
def test_a_leader_that_goes_away_with_its_plan_leaves_nobody_waiting(
    broker: BrokerProcess, topic: str, number: int
) -> None:
    """What was begun for it is carried out, although nobody waits for that answer any more."""
    with Wire(broker.address) as wire:
        find(wire, topic)
        with Wire(broker.address) as leading:
            sent = leading.send(apis.JOIN_GROUP, WITHOUT_ID, join_request(topic))
            follower = joined(wire, topic)
            leader = leading.receive(apis.JOIN_GROUP, WITHOUT_ID, sent)
            if leader["leader"] == follower["member_id"]:
                leader, follower = follower, leader
            # Both have asked; the leader's connection is the one that is closed.
            with Wire(broker.address) as waiting:
                asked = waiting.send(apis.SYNC_GROUP, 3, sync_request(topic, follower))
                plan = {leader["member_id"]: b"one", follower["member_id"]: b"two"}
                leading.send(apis.SYNC_GROUP, 3, sync_request(topic, leader, plan))
                leading.socket.close()
                answer = waiting.receive(apis.SYNC_GROUP, 3, asked)
        assert (answer["error_code"], answer["assignment"]) in ((NONE, b"two"), (REBALANCE_IN_PROGRESS, b""))


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_broker_with_a_parked_join_stops_and_knows_the_group_again(new_broker: BrokerFactory, how: str) -> None:
    broker = new_broker(SETTINGS)
    with Wire(broker.address) as wire:
        find(wire, "g")
        me = joined(wire, "g")
        assert synced(wire, "g", me, {me["member_id"]: b"all"})["assignment"] == b"all"
        with Wire(broker.address) as parked:
            parked.send(apis.JOIN_GROUP, WITHOUT_ID, join_request("g"))
            until(lambda: heartbeat(wire, "g", me) == REBALANCE_IN_PROGRESS, "a rebalance has begun")
            if how == "stop":
                assert broker.stop() == 0
            else:
                broker.kill()
    broker.start()
    with Wire(broker.address) as wire:
        assert heartbeat(wire, "g", me) == NONE
        assert synced(wire, "g", me)["assignment"] == b"all"


def heartbeat(wire: Wire, group: str, me: dict[str, Any]) -> int:
    request = HeartbeatRequest(group_id=group, generation_id=me["generation_id"], member_id=me["member_id"])
    code: int = wire.ask(apis.HEARTBEAT, 3, request)["error_code"]
    return code


def set_needed_replicas(broker: BrokerProcess, count: int) -> None:
    """With more than there are, nothing can be written to the internal topic."""
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    entry = ConfigEntry("min.insync.replicas", str(count), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()


def committed(wire: Wire, topic: str, group: str, offset: int) -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id=group, topics=(OffsetCommitRequestTopic(name=topic, partitions=(partition,)),)
    )
    ((answer,),) = (found["partitions"] for found in wire.ask(apis.OFFSET_COMMIT, 8, request)["topics"])
    code: int = answer["error_code"]
    return code


@pytest.mark.log_files("the commit satisfies min.insync.replicas: copies are the database's matter")
def test_what_cannot_be_written_is_not_acknowledged(new_broker: BrokerFactory) -> None:
    broker = new_broker(SETTINGS)
    with Wire(broker.address) as wire:
        wire.create_topic("orders")
        find(wire, "g")
        me = joined(wire, "g")
        set_needed_replicas(broker, 2)
        assert synced(wire, "g", me, {me["member_id"]: b"all"})["error_code"] == COORDINATOR_NOT_AVAILABLE
        assert heartbeat(wire, "g", me) == REBALANCE_IN_PROGRESS
        assert committed(wire, "orders", "simple", 5) == COORDINATOR_NOT_AVAILABLE
        set_needed_replicas(broker, 1)
        answer = wire.ask(apis.OFFSET_FETCH, 5, OffsetFetchRequest(group_id="simple", topics=None))
        assert answer["topics"] == []
        again = joined(wire, "g", me["member_id"])
        assert again["generation_id"] == me["generation_id"] + 1
        assert synced(wire, "g", again, {me["member_id"]: b"all"})["assignment"] == b"all"
        assert committed(wire, "orders", "simple", 5) == NONE


def test_groups_begin_anew_when_the_internal_topic_is_deleted(new_broker: BrokerFactory) -> None:
    broker = new_broker(SETTINGS)
    with Wire(broker.address) as wire, Wire(broker.address) as parked:
        find(wire, "g")
        me = joined(wire, "g")
        synced(wire, "g", me, {me["member_id"]: b"all"})
        asked = parked.send(apis.JOIN_GROUP, WITHOUT_ID, join_request("g"))
        until(lambda: heartbeat(wire, "g", me) == REBALANCE_IN_PROGRESS, "a rebalance has begun")
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        admin.delete_topics(["__consumer_offsets"])["__consumer_offsets"].result()
        assert parked.receive(apis.JOIN_GROUP, WITHOUT_ID, asked)["error_code"] == NOT_COORDINATOR
        find(wire, "g")
        assert heartbeat(wire, "g", me) == UNKNOWN_MEMBER_ID
        assert joined(wire, "g")["generation_id"] == 1


def test_a_commit_to_a_group_that_is_not_there_is_refused_as_the_version_knows_it(
    broker: BrokerProcess, topic: str
) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        find(wire, topic)
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        request = OffsetCommitRequest(
            group_id=topic,
            generation_id_or_member_epoch=3,
            member_id="somebody",
            topics=(OffsetCommitRequestTopic(name=topic, partitions=(partition,)),),
        )
        for version, code in ((8, ILLEGAL_GENERATION), (9, GROUP_ID_NOT_FOUND)):
            (found,) = wire.ask(apis.OFFSET_COMMIT, version, request)["topics"]
            assert found["partitions"] == [{"partition_index": 0, "error_code": code}]


def test_a_group_without_a_name_is_refused(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        assert wire.ask(apis.JOIN_GROUP, 3, join_request(""))["error_code"] == INVALID_GROUP_ID
        me = {"generation_id": 1, "member_id": "x"}
        assert heartbeat(wire, "", me) == INVALID_GROUP_ID
        assert synced(wire, "", me)["error_code"] == INVALID_GROUP_ID
        left = wire.ask(apis.LEAVE_GROUP, 2, LeaveGroupRequest(group_id="", member_id="x"))
        assert left["error_code"] == INVALID_GROUP_ID


def test_offsets_of_a_group_that_is_not_there_are_none(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        find(wire, topic)
        answer = wire.ask(apis.OFFSET_FETCH, 5, OffsetFetchRequest(group_id=topic, topics=None))
        assert (answer["topics"], answer["error_code"]) == ([], NONE)


def test_committed_offsets_are_deleted_one_by_one(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        find(wire, topic)
        partitions = tuple(OffsetDeleteRequestPartition(partition_index=index) for index in (0, 1))
        request = OffsetDeleteRequest(
            group_id=topic, topics=(OffsetDeleteRequestTopic(name=topic, partitions=partitions),)
        )
        assert wire.ask(apis.OFFSET_DELETE, 0, request)["error_code"] == GROUP_ID_NOT_FOUND
        assert committed(wire, topic, topic, 5) == NONE
        (answer,) = wire.ask(apis.OFFSET_DELETE, 0, request)["topics"]
        codes = [found["error_code"] for found in answer["partitions"]]
        assert codes == [NONE, UNKNOWN_TOPIC_OR_PARTITION]
        left = wire.ask(apis.OFFSET_FETCH, 5, OffsetFetchRequest(group_id=topic, topics=None))
        assert left["topics"] == []


def test_clients_may_not_write_to_the_internal_topic(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.ask(apis.FIND_COORDINATOR, 0, FindCoordinatorRequest(key=topic))
        assert wire.produce("__consumer_offsets", batch_of(b"forged"))["error_code"] == INVALID_TOPIC
