"""CreateTopics, CreatePartitions and DeleteTopics: how long a request waits for what it has changed."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from penstock.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from support.broker_process import BrokerProcess
from support.waiting import PATIENCE_S
from support.wire import Wire, batch_of


def test_a_client_that_does_not_wait_gets_a_timeout_although_the_change_is_made(
    broker: BrokerProcess, topic: str
) -> None:
    made = CreatableTopic(name=topic, num_partitions=2, replication_factor=1)
    grown = CreatePartitionsTopic(name=topic, count=3)
    gone = DeleteTopicState(name=topic)
    with Wire(broker.address) as wire:
        answer = wire.ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest(topics=(made,), timeout_ms=0))
        assert [found["error_code"] for found in answer["topics"]] == [Code.REQUEST_TIMED_OUT]
        # A request that names the topic waits until it can be used.
        assert len(wire.metadata(topic)["partitions"]) == 2
        assert wire.produce(topic, batch_of(b"value"))["error_code"] == 0
        answer = wire.ask(apis.CREATE_PARTITIONS, 3, CreatePartitionsRequest(topics=(grown,), timeout_ms=0))
        assert [found["error_code"] for found in answer["results"]] == [Code.REQUEST_TIMED_OUT]
        assert len(wire.metadata(topic)["partitions"]) == 3
        answer = wire.ask(apis.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=(gone,), timeout_ms=0))
        assert [found["error_code"] for found in answer["responses"]] == [Code.REQUEST_TIMED_OUT]
        assert wire.metadata(topic)["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_librdkafka_takes_it_for_success_if_it_did_not_want_to_wait(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)], operation_timeout=0)[topic].result(PATIENCE_S)
    admin.create_partitions([NewPartitions(topic, 3)], operation_timeout=0)[topic].result(PATIENCE_S)
    assert len(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions) == 3
    admin.delete_topics([topic], operation_timeout=0)[topic].result(PATIENCE_S)
    assert topic not in admin.list_topics(timeout=PATIENCE_S).topics
