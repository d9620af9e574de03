"""The values of the coordination tree's nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster import nodes
from penstock.cluster.metadata import (
    BrokerInfo,
    DatabaseGroupInfo,
    DatabaseServer,
    ListenerEndpoint,
    PartitionImage,
    TopicImage,
)
from penstock.config.address import Address
from penstock.errors import CoordinationError
from penstock.ids import BrokerId

broker_ids = st.integers(0, 2**31 - 1).map(BrokerId)
partitions = st.builds(
    PartitionImage,
    index=st.just(0),
    leader=broker_ids,
    leader_epoch=st.integers(0, 2**31 - 1),
    replicas=st.lists(broker_ids, min_size=1).map(tuple),
    in_sync=st.lists(broker_ids).map(tuple),
    adding=st.lists(broker_ids, max_size=2).map(tuple),
    removing=st.lists(broker_ids, max_size=2).map(tuple),
    database=st.sampled_from(("default", "orders")),
    database_to=st.sampled_from((None, "default", "billing")),
)
settings = st.dictionaries(st.text(), st.text())


@given(st.uuids(), st.lists(partitions, min_size=1), settings, st.booleans())
def test_a_topic_reads_back_as_it_was_written(
    id: UUID, parts: list[PartitionImage], overrides: dict[str, str], internal: bool
) -> None:
    numbered = tuple(replace(part, index=index) for index, part in enumerate(parts))
    topic = TopicImage("orders", id, numbered, overrides, internal)
    assert nodes.decode_topic("orders", nodes.encode_topic(topic)) == topic


@given(
    st.builds(
        BrokerInfo,
        broker_ids,
        st.text(),
        st.integers(0, 65535),
        st.none() | st.text(),
        st.booleans(),
        st.integers(0, 2**31),
        st.none() | st.integers(0, 2**62),
        st.lists(st.builds(ListenerEndpoint, st.text(), st.text(), st.integers(0, 65535)), max_size=3).map(tuple),
        st.none() | st.text(),
        st.booleans(),
        st.text(),
    )
)
def test_a_broker_reads_back_as_it_was_written(broker: BrokerInfo) -> None:
    assert nodes.decode_broker(broker.id, nodes.encode_broker(broker)) == broker


def test_a_registration_without_listener_names_is_found_at_its_one_address_through_any() -> None:
    node = b'{"alive":true,"epoch":5,"host":"old.example","port":9092,"rack":null}'
    broker = nodes.decode_broker(BrokerId(3), node)
    assert broker == BrokerInfo(BrokerId(3), "old.example", 9092, epoch=5)
    assert broker.endpoint("CLIENT") == Address("old.example", 9092)
    assert broker.inter_broker_endpoint == ListenerEndpoint("PLAINTEXT", "old.example", 9092)


def test_a_registration_is_found_at_the_listener_that_is_asked_for() -> None:
    endpoints = (ListenerEndpoint("CLIENT", "public", 9092), ListenerEndpoint("INTERNAL", "private", 9192))
    broker = BrokerInfo(BrokerId(3), "public", 9092, endpoints=endpoints, inter_broker_listener="INTERNAL")
    assert broker.endpoint("CLIENT") == Address("public", 9092)
    assert broker.endpoint("OTHER") is None
    assert broker.inter_broker_endpoint == ListenerEndpoint("INTERNAL", "private", 9192)


def test_older_brokers_can_read_the_registration_of_one_with_listeners() -> None:
    """They know the address of its first listener, and write nothing that a later version could not read."""
    endpoints = (ListenerEndpoint("CLIENT", "public", 9092), ListenerEndpoint("INTERNAL", "private", 9192))
    broker = BrokerInfo(BrokerId(3), "public", 9092, endpoints=endpoints, inter_broker_listener="INTERNAL")
    fields = json.loads(nodes.encode_broker(broker))
    assert (fields["host"], fields["port"], fields["rack"]) == ("public", 9092, None)


@given(settings)
def test_settings_read_back_as_they_were_written(values: dict[str, str]) -> None:
    assert nodes.decode_settings("/settings/default", nodes.encode_settings(values)) == values


def test_the_same_topic_is_always_the_same_readable_bytes() -> None:
    id = UUID("01234567-89ab-cdef-0123-456789abcdef")
    replicas = (BrokerId(1), BrokerId(2))
    topic = TopicImage(
        "orders",
        id,
        (PartitionImage(0, BrokerId(1), 5, replicas, replicas[:1]),),
        {"retention.ms": "1", "cleanup.policy": "delete"},
    )
    assert nodes.encode_topic(topic) == (
        b'{"id":"01234567-89ab-cdef-0123-456789abcdef","internal":false,'
        b'"overrides":{"cleanup.policy":"delete","retention.ms":"1"},'
        b'"partitions":[{"in_sync":[1],"leader":1,"leader_epoch":5,"replicas":[1,2]}]}'
    )


def test_a_partition_says_in_which_database_it_is_unless_that_is_the_default_one() -> None:
    partition = PartitionImage(0, BrokerId(1), 5, (BrokerId(1),), (BrokerId(1),))
    moving = replace(partition, index=1, database="orders", database_to="default")
    topic = TopicImage("orders", UUID(int=1), (partition, moving), {})
    assert nodes.encode_topic(topic).partition(b'"partitions":')[2] == (
        b'[{"in_sync":[1],"leader":1,"leader_epoch":5,"replicas":[1]},'
        b'{"database":"orders","database_to":"default","in_sync":[1],"leader":1,"leader_epoch":5,"replicas":[1]}]}'
    )


@given(
    st.lists(st.builds(DatabaseServer, st.text(), st.text()), min_size=1).map(tuple),
    st.integers(0, 2**31),
    st.booleans(),
    st.data(),
)
def test_a_database_group_reads_back_as_it_was_written(
    servers: tuple[DatabaseServer, ...], generation: int, is_draining: bool, data: st.DataObject
) -> None:
    primary = data.draw(st.integers(0, len(servers) - 1))
    group = DatabaseGroupInfo("orders", servers, primary, generation, is_draining)
    assert nodes.decode_database("orders", nodes.encode_database(group)) == group


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b'{"draining":false,"generation":0,"primary":0,"servers":[]}',
        b'{"draining":false,"generation":0,"primary":-1,"servers":[{"address":"sqlite:///a","secret":""}]}',
        b'{"draining":false,"generation":"0","primary":0,"servers":[{"address":"sqlite:///a","secret":""}]}',
        b'{"draining":false,"generation":0,"primary":0,"servers":[{"address":"sqlite:///a"}]}',
    ],
)
def test_a_database_group_that_does_not_parse_names_its_node(value: bytes) -> None:
    with pytest.raises(CoordinationError, match="/databases/orders"):
        nodes.decode_database("orders", value)


def test_the_secret_of_a_database_server_is_not_shown() -> None:
    group = DatabaseGroupInfo("orders", (DatabaseServer("mysql://user@host:3306/db", "sealed"),))
    assert "sealed" not in repr(group)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"id": "nonsense", "internal": false, "overrides": {}, "partitions": []}',
        b'{"id": 5, "internal": false, "overrides": {}, "partitions": []}',
        b'{"id": "01234567-89ab-cdef-0123-456789abcdef", "internal": false, "overrides": {"a": 1}, "partitions": []}',
        b'{"id": "01234567-89ab-cdef-0123-456789abcdef", "internal": false, "overrides": {}, '
        b'"partitions": [{"in_sync":[true],"leader":1,"leader_epoch":5,"replicas":[1]}]}',
    ],
)
def test_a_value_that_does_not_parse_names_its_node(value: bytes) -> None:
    with pytest.raises(CoordinationError, match="/topics/orders"):
        nodes.decode_topic("orders", value)


def test_settings_have_a_path_for_all_brokers_and_one_for_each() -> None:
    assert nodes.settings_path(None) == "/settings/default"
    assert nodes.broker_of_settings(nodes.settings_path(BrokerId(12))) == 12
    with pytest.raises(CoordinationError, match="/settings/other"):
        nodes.broker_of_settings("/settings/other")


def test_a_lease_names_the_folder_and_the_start_and_the_brokers_are_known_by_their_names() -> None:
    assert nodes.decode_lease("/leases/controller", nodes.encode_lease("folder", "start")) == ("folder", "start")
    assert nodes.brokers_with_lease(["broker-1", "broker-20", "controller", "broker-x"]) == {1, 20}
    assert nodes.lease_path(BrokerId(20)) == "/leases/broker-20"
    assert nodes.decode_controller(nodes.encode_controller(BrokerId(3), 9)) == (3, 9)
