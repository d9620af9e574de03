"""Groups as administrators see them: confluent-kafka's AdminClient, and kcat as a member."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from support.broker_process import BrokerProcess
from support.confluent import send
from support.programs import environment, required_program
from support.waiting import until


@pytest.fixture
def created(admin: AdminClient, topic: str) -> str:
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    return topic


def consumer_of(broker: BrokerProcess, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": group,
            "client.id": "watched",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )


@pytest.fixture
def member(broker: BrokerProcess, created: str) -> Iterator[Consumer]:
    """The only member of a group that is named as its topic, with everything assigned to it."""
    consumer = consumer_of(broker, created)
    consumer.subscribe([created])
    until(lambda: consumer.poll(0.05) or consumer.assignment(), "the member has its partitions")
    yield consumer
    consumer.close()


def committed(admin: AdminClient, group: str) -> dict[tuple[str, int], int]:
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
    return {(found.topic, found.partition): found.offset for found in answer.topic_partitions}


def code_of(error: pytest.ExceptionInfo[KafkaException]) -> int:
    code: int = error.value.args[0].code()
    return code


def test_a_group_with_a_member_is_listed_and_described(admin: AdminClient, created: str, member: Consumer) -> None:
    listed = {group.group_id: group for group in admin.list_consumer_groups().result().valid}
    assert listed[created].state is ConsumerGroupState.STABLE
    assert listed[created].is_simple_consumer_group is False
    described = admin.describe_consumer_groups([created])[created].result()
    assert described.state is ConsumerGroupState.STABLE
    assert described.partition_assignor == "range"
    (found,) = described.members
    assert (found.client_id, found.host) == ("watched", "/127.0.0.1")
    places = {(place.topic, place.partition) for place in found.assignment.topic_partitions}
    assert places == {(created, 0), (created, 1)}


def test_groups_are_listed_by_their_state(
    broker: BrokerProcess, admin: AdminClient, created: str, member: Consumer
) -> None:
    consumer_of(broker, f"{created}-simple").commit(offsets=[TopicPartition(created, 0, 1)], asynchronous=False)

    def listed(state: ConsumerGroupState) -> set[str]:
        found = admin.list_consumer_groups(states={state}).result().valid
        return {group.group_id for group in found if group.group_id.startswith(created)}

    assert listed(ConsumerGroupState.STABLE) == {created}
    assert listed(ConsumerGroupState.EMPTY) == {f"{created}-simple"}


def test_a_group_that_does_not_exist_is_described_as_dead(admin: AdminClient, topic: str) -> None:
    try:
        described = admin.describe_consumer_groups([topic])[topic].result()
    except KafkaException as error:
        assert error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND
    else:
        assert described.state is ConsumerGroupState.DEAD


def test_a_group_is_deleted_once_nobody_is_in_it(admin: AdminClient, created: str, member: Consumer) -> None:
    member.commit(offsets=[TopicPartition(created, 0, 3)], asynchronous=False)
    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups([created])[created].result()
    assert code_of(refused) == KafkaError.NON_EMPTY_GROUP
    member.unsubscribe()
    member.close()
    until(lambda: not admin.describe_consumer_groups([created])[created].result().members, "the member has left")
    admin.delete_consumer_groups([created])[created].result()
    assert committed(admin, created) == {}
    with pytest.raises(KafkaException) as missing:
        admin.delete_consumer_groups([created])[created].result()
    assert code_of(missing) == KafkaError.GROUP_ID_NOT_FOUND


def test_offsets_are_listed_and_altered(admin: AdminClient, created: str) -> None:
    for offset in (5, 2):
        places = [TopicPartition(created, 0, offset), TopicPartition(created, 1, offset + 1)]
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(created, places)])[created].result()
        assert committed(admin, created) == {(created, 0): offset, (created, 1): offset + 1}


def test_offsets_of_a_group_with_members_are_altered_by_nobody_else(
    admin: AdminClient, created: str, member: Consumer
) -> None:
    member.commit(offsets=[TopicPartition(created, 0, 3)], asynchronous=False)
    wanted = ConsumerGroupTopicPartitions(created, [TopicPartition(created, 0, 9)])
    with pytest.raises(KafkaException) as refused:
        answer = admin.alter_consumer_group_offsets([wanted])[created].result()
        raise KafkaException(answer.topic_partitions[0].error)
    assert code_of(refused) == KafkaError.UNKNOWN_MEMBER_ID
    assert committed(admin, created) == {(created, 0): 3}


def test_offsets_of_unknown_partitions_are_refused(broker: BrokerProcess, created: str) -> None:
    consumer = consumer_of(broker, created)
    with pytest.raises(KafkaException) as refused:
        consumer.commit(offsets=[TopicPartition(created, 7, 1)], asynchronous=False)
    assert code_of(refused) == KafkaError.UNKNOWN_TOPIC_OR_PART
    consumer.close()


def test_offsets_go_with_their_topic(broker: BrokerProcess, admin: AdminClient, created: str) -> None:
    places = [TopicPartition(created, 0, 5)]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(created, places)])[created].result()
    admin.delete_topics([created])[created].result()
    admin.create_topics([NewTopic(created, 2, 1)])[created].result()
    until(lambda: committed(admin, created) == {}, "the offsets are gone")


def test_kcat_reads_as_a_group_and_goes_on_where_it_was(broker: BrokerProcess, created: str) -> None:
    kcat = required_program("kcat")

    def read(count: int) -> list[bytes]:
        command = [kcat, "-b", broker.kafka, "-G", f"{created}-kcat", "-X", "auto.offset.reset=earliest", "-q"]
        done = subprocess.run(
            [*command, "-c", str(count), created], capture_output=True, timeout=60, env=environment(), check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    send(broker, created, [b"one", b"two", b"three"])
    assert read(3) == [b"one", b"two", b"three"]
    send(broker, created, [b"four"])
    assert read(1) == [b"four"]
