"""What the jobs remove that clean a cluster, on a broker of their own: they look at every topic and every group."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from conftest import SHARED, running_broker
from penstock.admin import Cluster
from penstock.admin import TopicPartition as Place
from penstock.console.cleaning.message_history import Unread, deletable
from penstock.sdk.topic_names import dead_topic, retry_topic
from support.broker_process import BrokerProcess
from support.waiting import until

from .conftest import CLUSTER, RoleClient, RunningConsole, now_ms

DAY_MS = 24 * 3_600_000
HOME = f"/clusters/{CLUSTER}/topics"
OLD_DAYS = 100


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker"), SHARED) as process:
        yield process


@pytest.fixture
def admin(running: RunningConsole) -> RoleClient:
    return running.as_role("admin")


def create(admin: RoleClient, name: str, partitions: int = 1, **settings: str) -> str:
    kept = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in settings.items()}
    admin.post(HOME, {"name": name, "partitions": partitions, "settings": kept}, status=201)
    return name


def named(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:10]}"


def produce(broker: BrokerProcess, topic: str, count: int, *, days_old: int = 0, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(count):
        at_ms = now_ms() - days_old * DAY_MS
        producer.produce(topic, str(number), key=str(number), partition=partition, timestamp=at_ms)
    assert producer.flush(30) == 0


def commit(broker: BrokerProcess, group: str, *offsets: tuple[str, int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": group})
    consumer.commit(offsets=[TopicPartition(*each) for each in offsets], asynchronous=False)
    consumer.close()


@contextmanager
def member(broker: BrokerProcess, group: str, topic: str) -> Iterator[Consumer]:
    """A consumer that has its partitions and commits nothing by itself."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    try:
        until(lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()), "the member has its partitions")
        yield consumer
    finally:
        consumer.close()


def starts(broker: BrokerProcess, topic: str, partitions: int = 1) -> list[int]:
    found = Cluster(broker.kafka).offsets.earliest([Place(topic, index) for index in range(partitions)])
    return [found[Place(topic, index)] for index in range(partitions)]


def run(admin: RoleClient, job: str, **options: int) -> Any:
    body = {"every_ms": DAY_MS, "is_enabled": False, "options": options}
    assert admin.call("PUT", f"/jobs/{job}", json=body).status_code == 200
    done = admin.post(f"/jobs/{job}/run")
    assert done["problem"] == "", done
    return done


def test_jobs_that_change_a_cluster_run_only_when_an_admin_wants_it(admin: RoleClient) -> None:
    jobs = {job["name"]: job for job in admin.get("/jobs")}
    for name in ("message-history", "metadata", "idle-groups"):
        assert not jobs[name]["is_enabled"] and jobs[name]["next_ms"] is None
        assert jobs[name]["is_destructive"]
    assert not any(jobs[name]["is_destructive"] for name in ("audit", "samples", "sessions", "alert-history"))


def test_old_messages_go_and_what_is_unread_compacted_or_dead_stays(
    broker: BrokerProcess, running: RunningConsole, admin: RoleClient
) -> None:
    topic, group = create(admin, named("orders"), 2), named("billing")
    compacted = create(admin, named("prices"), cleanup_policy="compact")
    dead = create(admin, dead_topic(named("mailer")))
    produce(broker, topic, 10, days_old=OLD_DAYS)
    produce(broker, topic, 5)
    produce(broker, topic, 4, days_old=OLD_DAYS, partition=1)
    for other in (compacted, dead):
        produce(broker, other, 3, days_old=OLD_DAYS)
    commit(broker, group, (topic, 0, 15), (topic, 1, 2))
    running.until_round(
        lambda snapshot: (
            {topic, compacted, dead} <= snapshot.topics.keys()
            and snapshot.topics[topic].end_total == 19
            and all(row.start is not None for row in snapshot.partitions[topic])
        ),
        "the topics are known",
    )
    done = run(admin, "message-history", days=90, keep_unread=1)
    assert (done["removed"], done["what"]) == (12, [f"{topic}: 12 messages"])
    assert starts(broker, topic, 2) == [10, 2]
    assert run(admin, "message-history", days=90, keep_unread=1)["removed"] == 0
    assert run(admin, "message-history", days=90, keep_unread=0)["removed"] == 2
    assert starts(broker, topic, 2) == [10, 4]
    assert starts(broker, compacted) == [0] and starts(broker, dead) == [0]


def test_messages_of_a_member_that_has_committed_nothing_stay(
    broker: BrokerProcess, running: RunningConsole, admin: RoleClient
) -> None:
    topic, group = create(admin, named("orders")), named("billing")
    produce(broker, topic, 3, days_old=OLD_DAYS)
    running.until_round(
        lambda snapshot: topic in snapshot.topics and snapshot.topics[topic].messages == 3, "the messages are known"
    )
    with member(broker, group, topic):
        run(admin, "message-history", days=90, keep_unread=1)
        assert starts(broker, topic) == [0]
    run(admin, "message-history", days=90, keep_unread=1)
    assert starts(broker, topic) == [3]


def test_what_is_not_archived_yet_stays(broker: BrokerProcess, admin: RoleClient) -> None:
    topic = create(admin, named("orders"), 2)
    for partition in range(2):
        produce(broker, topic, 6, days_old=OLD_DAYS, partition=partition)
    places = [Place(topic, index) for index in range(2)]
    before_ms = now_ms() - 90 * DAY_MS
    all_read = Unread({}, frozenset())
    found = deletable(Cluster(broker.kafka), places, before_ms, all_read, {places[0]: 4, places[1]: 0})
    assert {at: (held.start, held.end) for at, held in found.items()} == {places[0]: (0, 4)}


def test_offsets_that_no_member_works_on_are_forgotten(
    broker: BrokerProcess, running: RunningConsole, admin: RoleClient
) -> None:
    read, left, group = create(admin, named("read")), create(admin, named("left")), named("billing")
    produce(broker, read, 1)
    with member(broker, group, read) as consumer:
        consumer.commit(offsets=[TopicPartition(read, 0, 1), TopicPartition(left, 0, 0)], asynchronous=False)
        running.until_round(
            lambda snapshot: group in snapshot.groups and snapshot.groups[group].state == "STABLE", "the group runs"
        )
        assert run(admin, "metadata", days=30)["removed"] == 0
        done = run(admin, "metadata", days=0)
        assert done["what"] == [f"offsets of {group} in {left}"]
        assert list(Cluster(broker.kafka).groups.committed([group])[group]) == [Place(read, 0)]


def test_empty_retry_and_dead_letter_topics_go_with_their_group(
    broker: BrokerProcess, running: RunningConsole, admin: RoleClient
) -> None:
    gone, full, alive = named("gone"), named("full"), named("alive")
    empty = [create(admin, retry_topic(gone, "orders")), create(admin, dead_topic(gone))]
    kept = [create(admin, dead_topic(full)), create(admin, dead_topic(alive)), create(admin, retry_topic(alive, "a"))]
    produce(broker, dead_topic(full), 1)
    commit(broker, alive, (create(admin, named("orders")), 0, 0))
    running.until_round(
        lambda snapshot: (
            alive in snapshot.groups
            and all(snapshot.topics[each].messages == 0 for each in empty if each in snapshot.topics)
            and snapshot.topics[dead_topic(full)].messages == 1
        ),
        "the topics are known",
    )
    assert run(admin, "metadata", days=30)["removed"] == 0
    done = run(admin, "metadata", days=0)
    assert sorted(done["what"]) == sorted(f"topic {name}" for name in empty)
    left = {topic.name for topic in Cluster(broker.kafka).topics.list()}
    assert left.isdisjoint(empty) and left.issuperset(kept)


def test_schemas_of_topics_that_are_gone_and_ended_silences_are_removed(
    broker: BrokerProcess, running: RunningConsole, admin: RoleClient
) -> None:
    kept, gone = create(admin, named("kept")), create(admin, named("gone"))
    schema = {"side": "value", "format": "avro", "text": json.dumps("string"), "is_framed": False}
    for topic in (kept, gone):
        admin.post(f"{HOME}/{topic}/schemas", schema, status=201)
    lasting = admin.post("/alerts/silences", {"until_ms": now_ms() + DAY_MS}, status=201)
    # Adding one removes those that have ended.
    admin.post("/alerts/silences", {"until_ms": now_ms() - 1}, status=201)
    Cluster(broker.kafka).topics.delete([gone]).all()
    running.until_round(lambda snapshot: kept in snapshot.topics and gone not in snapshot.topics, "the topic is gone")
    done = run(admin, "metadata", days=0)
    assert done["removed"] == 2 and f"schema of {gone}" in done["what"]
    assert len(admin.get(f"{HOME}/{kept}/schemas")) == 1
    assert [each["id"] for each in admin.get("/alerts/silences")] == [lasting["id"]]
