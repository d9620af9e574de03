"""Topics and settings: every thing that is asked about has a value or an error of its own."""

from __future__ import annotations

import pytest

from penstock.admin import AdminError, Cluster, ConfigChange, ConfigResource, NewTopic
from support.broker_process import BrokerProcess
from support.confluent import send


def test_a_topic_that_does_not_exist_does_not_hide_one_that_does(cluster: Cluster, topic: str) -> None:
    created = cluster.topics.create([NewTopic(name=topic, partitions=3)])
    assert len(created[topic].partitions) == 3
    found = cluster.topics.describe([topic, f"{topic}x"])
    assert set(found.values) == {topic} and set(found.errors) == {f"{topic}x"}
    error = found.errors[f"{topic}x"]
    assert error.code == "UNKNOWN_TOPIC_OR_PARTITION"
    assert error.message == f"there is no topic {topic}x; did you mean {topic}?"
    with pytest.raises(AdminError, match="there is no topic"):
        found[f"{topic}x"]
    with pytest.raises(AdminError, match="there is no topic"):
        found.all()


def test_one_topic_is_created_and_one_exists_already(cluster: Cluster, topic: str) -> None:
    cluster.topics.create([NewTopic(name=topic)]).all()
    both = cluster.topics.create([NewTopic(name=topic), NewTopic(name=f"{topic}-2", partitions=2)])
    assert both.errors[topic].code == "TOPIC_ALREADY_EXISTS"
    assert len(both[f"{topic}-2"].partitions) == 2
    assert {topic, f"{topic}-2"} <= {each.name for each in cluster.topics.list()}


def test_what_the_client_library_refuses_itself_is_an_error_too(cluster: Cluster, topic: str) -> None:
    with pytest.raises(AdminError) as caught:
        cluster.topics.create([NewTopic(name=topic, partitions=-5)])
    assert caught.value.code == "INVALID_REQUEST"


def test_one_topic_is_deleted_and_one_does_not_exist(cluster: Cluster, topic: str) -> None:
    cluster.topics.create([NewTopic(name=topic)]).all()
    done = cluster.topics.delete([topic, f"{topic}-2"])
    assert set(done.values) == {topic}
    assert done.errors[f"{topic}-2"].code == "UNKNOWN_TOPIC_OR_PARTITION"
    assert topic in cluster.topics.describe([topic]).errors


def test_a_topic_with_views_says_why_it_is_not_deleted(cluster: Cluster, topic: str) -> None:
    view = NewTopic(name=f"{topic}-view", configs={"penstock.view.of": topic, "penstock.view.tags": "a"})
    cluster.topics.create([NewTopic(name=topic)]).all()
    cluster.topics.create([view]).all()
    error = cluster.topics.delete([topic]).errors[topic]
    assert (error.code, error.message) == ("POLICY_VIOLATION", "it has views; delete them first, or together with it")


def test_a_topic_that_is_created_again_has_another_id(cluster: Cluster, topic: str) -> None:
    cluster.topics.create([NewTopic(name=topic)]).all()
    asked = cluster.topics.identify([topic, f"{topic}-2"])
    assert asked.errors[f"{topic}-2"].code == "UNKNOWN_TOPIC_OR_PARTITION"
    cluster.topics.delete([topic]).all()
    cluster.topics.create([NewTopic(name=topic)]).all()
    assert cluster.topics.identify([topic])[topic].id != asked[topic].id


def test_partitions_come_in_pages_with_their_offsets(broker: BrokerProcess, cluster: Cluster, topic: str) -> None:
    cluster.topics.create([NewTopic(name=topic, partitions=5)]).all()
    send(broker, topic, [b"1", b"2", b"3"])
    first = cluster.topics.partitions(topic, limit=2)
    assert [(each.partition.index, each.start, each.end) for each in first.items] == [(0, 0, 3), (1, 0, 0)]
    second = cluster.topics.partitions(topic, limit=2, after=first.next)
    third = cluster.topics.partitions(topic, limit=2, after=second.next)
    assert [each.partition.index for page in (second, third) for each in page.items] == [2, 3, 4]
    assert third.next is None
    whole = cluster.topics.partitions(topic, limit=5)
    assert len(whole.items) == 5 and whole.next is None
    with pytest.raises(AdminError, match="does not continue"):
        cluster.topics.partitions(topic, after="x")


def test_a_topic_grows_and_does_not_shrink(cluster: Cluster, topic: str) -> None:
    cluster.topics.create([NewTopic(name=topic, partitions=2)]).all()
    cluster.topics.add_partitions({topic: 4}).all()
    assert len(cluster.topics.describe([topic])[topic].partitions) == 4
    assert cluster.topics.add_partitions({topic: 3}).errors[topic].code == "INVALID_PARTITIONS"


def test_settings_of_one_resource_are_read_although_another_does_not_exist(cluster: Cluster, topic: str) -> None:
    cluster.topics.create([NewTopic(name=topic, configs={"retention.ms": "1000"})]).all()
    mine, other, broker = ConfigResource.topic(topic), ConfigResource.topic(f"{topic}-2"), ConfigResource.broker(1)
    found = cluster.configs.describe([mine, other, broker])
    assert found[mine]["retention.ms"].value == "1000"
    assert found[mine]["retention.ms"].is_topic_override and found[mine]["segment.bytes"].is_default
    assert found[broker]["penstock.draining"].value == "false"
    assert found.errors[other].code == "UNKNOWN_TOPIC_OR_PARTITION"


def test_settings_of_one_topic_are_changed_although_those_of_another_are_refused(cluster: Cluster, topic: str) -> None:
    cluster.topics.create([NewTopic(name=topic), NewTopic(name=f"{topic}-2")]).all()
    mine, other = ConfigResource.topic(topic), ConfigResource.topic(f"{topic}-2")
    changes = {
        mine: [ConfigChange.set("retention.ms", "1000")],
        other: [ConfigChange.set("retention.ms", "a while")],
    }
    checked = cluster.configs.alter(changes, validate_only=True)
    assert set(checked.values) == {mine} and checked.errors[other].code == "INVALID_CONFIG"
    assert cluster.configs.describe([mine])[mine]["retention.ms"].is_default
    done = cluster.configs.alter(changes)
    assert set(done.values) == {mine} and "retention.ms" in done.errors[other].message
    assert cluster.configs.describe([mine])[mine]["retention.ms"].value == "1000"
    cluster.configs.alter({mine: [ConfigChange.delete("retention.ms")]}).all()
    assert cluster.configs.describe([mine])[mine]["retention.ms"].is_default


def test_retired_partitions_have_successors_and_groups_that_they_are_kept_for(
    broker: BrokerProcess, cluster: Cluster, topic: str
) -> None:
    cluster.topics.create([NewTopic(name=topic, partitions=3)]).all()
    with pytest.raises(AdminError) as refused:
        cluster.retirement.retire(topic, [0])
    assert refused.value.code == "INVALID_PARTITIONS" and "only the last" in refused.value.message
    assert set(cluster.retirement.retire(topic, [2], validate_only=True)) == {2}
    assert cluster.retirement.describe(topic).successors == {}
    successors = cluster.retirement.retire(topic, [2])
    assert set(successors) == {2} and successors[2] in (0, 1)
    assert cluster.retirement.describe(topic).successors == successors
