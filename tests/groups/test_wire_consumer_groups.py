"""Consumer groups on the wire: what is told, refused and shown, in every version."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from penstock.protocol import apis
from penstock.protocol.messages.api_versions import ApiVersionsRequest
from penstock.protocol.messages.consumer_group_describe import (
    CLASSIC_MEMBER,
    CONSUMER_MEMBER,
    ConsumerGroupDescribeRequest,
)
from penstock.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from penstock.protocol.messages.consumer_protocol import (
    ASSIGNMENT,
    PROTOCOL_TYPE,
    SUBSCRIPTION,
    ConsumerProtocolSubscription,
)
from penstock.protocol.messages.delete_groups import DeleteGroupsRequest
from penstock.protocol.messages.describe_groups import DescribeGroupsRequest
from penstock.protocol.messages.find_coordinator import FindCoordinatorRequest
from penstock.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.protocol.messages.list_groups import ListGroupsRequest
from penstock.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from penstock.protocol.messages.sync_group import SyncGroupRequest
from support.broker_process import BrokerProcess
from support.wire import Wire

NONE, UNKNOWN_MEMBER_ID, INVALID_REQUEST, NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND = 0, 25, 42, 68, 69
FENCED_MEMBER_EPOCH, UNSUPPORTED_ASSIGNOR, STALE_MEMBER_EPOCH, INVALID_REGULAR_EXPRESSION = 110, 112, 113, 128
LEAVE = -1


@pytest.fixture
def wire(broker: BrokerProcess) -> Any:
    with Wire(broker.address) as wire:
        wire.ask(apis.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="g", key_type=0))
        yield wire


def beat(wire: Wire, version: int = 1, **said: Any) -> dict[str, Any]:
    return wire.ask(apis.CONSUMER_GROUP_HEARTBEAT, version, ConsumerGroupHeartbeatRequest(**said))


def enter(wire: Wire, group: str, topic: str, member_id: str = "m1", **said: Any) -> dict[str, Any]:
    answer = beat(
        wire,
        group_id=group,
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=(topic,),
        topic_partitions=(),
        **said,
    )
    assert answer["error_code"] == NONE, answer
    return answer


def given(answer: dict[str, Any]) -> dict[UUID, list[int]]:
    return {found["topic_id"]: list(found["partitions"]) for found in answer["assignment"]["topic_partitions"]}


def described(wire: Wire, group: str, version: int = 1) -> dict[str, Any]:
    answer = wire.ask(apis.CONSUMER_GROUP_DESCRIBE, version, ConsumerGroupDescribeRequest(group_ids=(group,)))
    found: dict[str, Any] = answer["groups"][0]
    return found


def listed(wire: Wire, group: str, **filters: Any) -> list[dict[str, Any]]:
    answer = wire.ask(apis.LIST_GROUPS, 5, ListGroupsRequest(**filters))
    return [found for found in answer["groups"] if found["group_id"] == group]


@pytest.mark.parametrize(("version", "lowest"), [(3, 1), (4, 0)])
def test_clients_are_told_that_both_newer_protocols_are_on(wire: Wire, version: int, lowest: int) -> None:
    asked = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = wire.ask(apis.API_VERSIONS, version, asked)
    supported = {found["name"]: (found["min_version"], found["max_version"]) for found in answer["supported_features"]}
    finalized = {found["name"]: found["max_version_level"] for found in answer["finalized_features"]}
    assert supported == {"group.version": (lowest, 1), "transaction.version": (lowest, 2)}
    assert finalized == {"group.version": 1, "transaction.version": 2}
    assert answer["finalized_features_epoch"] >= 0


def test_a_member_is_told_its_assignment_its_epoch_and_how_often_to_be_heard(wire: Wire, topic: str) -> None:
    topic_id = wire.create_topic(topic, 3)
    answer = enter(wire, topic, topic)
    assert (answer["member_id"], answer["member_epoch"], answer["heartbeat_interval_ms"]) == ("m1", 1, 5000)
    assert given(answer) == {topic_id: [0, 1, 2]}
    quiet = beat(wire, group_id=topic, member_id="m1", member_epoch=1)
    assert quiet["assignment"] is None
    left = beat(wire, group_id=topic, member_id="m1", member_epoch=LEAVE)
    assert (left["error_code"], left["member_epoch"]) == (NONE, LEAVE)


def test_an_old_client_is_given_its_id(wire: Wire, topic: str) -> None:
    wire.create_topic(topic)
    said = {"group_id": topic, "member_id": "", "member_epoch": 0, "rebalance_timeout_ms": 1000}
    said |= {"subscribed_topic_names": (topic,), "topic_partitions": ()}
    assert beat(wire, 1, **said)["error_code"] == INVALID_REQUEST
    answer = beat(wire, 0, **said)
    assert answer["error_code"] == NONE
    assert answer["member_id"]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"group_id": ""}, INVALID_REQUEST),
        ({"member_epoch": -5}, INVALID_REQUEST),
        ({"member_epoch": 7}, FENCED_MEMBER_EPOCH),
        ({"member_id": "nobody"}, UNKNOWN_MEMBER_ID),
        ({"server_assignor": "fair"}, UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "(a"}, INVALID_REGULAR_EXPRESSION),
    ],
)
def test_what_a_member_may_not_say_is_refused_with_a_reason(
    wire: Wire, topic: str, said: dict[str, Any], code: int
) -> None:
    wire.create_topic(topic)
    enter(wire, topic, topic)
    told: dict[str, Any] = {"group_id": topic, "member_id": "m1", "member_epoch": 1} | said
    answer = beat(wire, **told)
    assert answer["error_code"] == code
    assert answer["error_message"]


def test_a_group_is_described_with_what_its_members_have_and_shall_have(wire: Wire, topic: str) -> None:
    topic_id = wire.create_topic(topic, 2)
    enter(wire, topic, topic, rack_id="r1")
    enter(wire, topic, topic, "m2")
    group = described(wire, topic)
    assert (group["error_code"], group["group_state"], group["assignor_name"]) == (NONE, "Reconciling", "uniform")
    assert (group["group_epoch"], group["assignment_epoch"]) == (2, 2)
    first, second = group["members"]
    assert (first["member_id"], first["rack_id"], first["member_epoch"]) == ("m1", "r1", 1)
    assert first["member_type"] == CONSUMER_MEMBER
    assert first["assignment"]["topic_partitions"][0]["topic_name"] == topic
    assert [list(found["partitions"]) for found in first["assignment"]["topic_partitions"]] == [[0, 1]]
    assert [list(found["partitions"]) for found in first["target_assignment"]["topic_partitions"]] == [[0]]
    assert second["assignment"]["topic_partitions"] == []
    owned = (TopicPartitions(topic_id=topic_id, partitions=(0,)),)
    beat(wire, group_id=topic, member_id="m1", member_epoch=1)
    beat(wire, group_id=topic, member_id="m1", member_epoch=1, topic_partitions=owned)
    beat(wire, group_id=topic, member_id="m2", member_epoch=2)
    assert described(wire, topic, 0)["group_state"] == "Stable"


def test_a_group_is_listed_by_its_type_and_state(wire: Wire, topic: str) -> None:
    wire.create_topic(topic, 2)
    enter(wire, topic, topic)
    (found,) = listed(wire, topic)
    assert (found["group_type"], found["group_state"], found["protocol_type"]) == ("consumer", "Stable", "consumer")
    assert listed(wire, topic, types_filter=("Consumer",))
    assert not listed(wire, topic, types_filter=("Classic",))
    assert not listed(wire, topic, states_filter=("Empty",))
    enter(wire, topic, topic, "m2")
    assert listed(wire, topic, states_filter=("reconciling",))


def test_the_question_for_a_group_of_the_other_kind_is_refused(wire: Wire, topic: str) -> None:
    wire.create_topic(topic)
    enter(wire, topic, topic)
    old = wire.ask(apis.DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=(topic,)))["groups"][0]
    assert (old["error_code"], old["group_state"]) == (GROUP_ID_NOT_FOUND, "Dead")
    assert described(wire, f"{topic}-not")["error_code"] == GROUP_ID_NOT_FOUND


def test_offsets_are_committed_and_looked_up_with_the_epoch_of_the_member(wire: Wire, topic: str) -> None:
    wire.create_topic(topic)
    enter(wire, topic, topic)

    def commit(member_id: str, epoch: int) -> int:
        place = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
        asked = OffsetCommitRequest(
            group_id=topic,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=(OffsetCommitRequestTopic(name=topic, partitions=(place,)),),
        )
        answer = wire.ask(apis.OFFSET_COMMIT, 9, asked)
        code: int = answer["topics"][0]["partitions"][0]["error_code"]
        return code

    def look_up(member_id: str | None, epoch: int) -> int:
        asked = OffsetFetchRequestGroup(group_id=topic, member_id=member_id, member_epoch=epoch, topics=None)
        answer = wire.ask(apis.OFFSET_FETCH, 9, OffsetFetchRequest(groups=(asked,)))
        code: int = answer["groups"][0]["error_code"]
        return code

    assert [commit("m1", 1), commit("m1", 0), commit("m2", 1)] == [NONE, STALE_MEMBER_EPOCH, UNKNOWN_MEMBER_ID]
    assert [look_up("m1", 1), look_up("m1", 4), look_up("m2", 1)] == [NONE, STALE_MEMBER_EPOCH, UNKNOWN_MEMBER_ID]
    assert look_up(None, -1) == NONE
    wire_delete = wire.ask(apis.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=(topic,)))
    assert wire_delete["results"][0]["error_code"] == NON_EMPTY_GROUP


def test_a_classic_member_of_a_consumer_group_is_answered_at_once_in_its_own_format(wire: Wire, topic: str) -> None:
    topic_id = wire.create_topic(topic, 2)
    enter(wire, topic, topic)
    subscription = SUBSCRIPTION.encode(ConsumerProtocolSubscription(topics=(topic,)), 1)

    def join(member_id: str) -> dict[str, Any]:
        asked = JoinGroupRequest(
            group_id=topic,
            session_timeout_ms=6000,
            rebalance_timeout_ms=60_000,
            member_id=member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=(JoinGroupRequestProtocol(name="range", metadata=subscription),),
        )
        return wire.ask(apis.JOIN_GROUP, 3, asked)

    me = join("")
    assert (me["error_code"], me["protocol_name"], me["leader"], me["members"]) == (NONE, "range", "", [])
    assert [member["member_type"] for member in described(wire, topic)["members"]] == [CONSUMER_MEMBER, CLASSIC_MEMBER]
    owned = (TopicPartitions(topic_id=topic_id, partitions=(0,)),)
    beat(wire, group_id=topic, member_id="m1", member_epoch=1)
    beat(wire, group_id=topic, member_id="m1", member_epoch=1, topic_partitions=owned)
    again = join(me["member_id"])
    asked = SyncGroupRequest(
        group_id=topic, generation_id=again["generation_id"], member_id=me["member_id"], assignments=()
    )
    synced = wire.ask(apis.SYNC_GROUP, 3, asked)
    assert synced["error_code"] == NONE
    assert synced["assignment"][:2] == b"\x00\x01"
    (assigned,) = ASSIGNMENT.decode(synced["assignment"]).assigned_partitions
    assert (assigned.topic, assigned.partitions) == (topic, (1,))
