"""What three brokers keep that one could not: everything acknowledged, whoever is killed, and the work on it."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.apis import Api
from penstock.protocol.messages.metadata import MetadataRequest
from support.apache_kafka import kafka_tool
from support.cluster import Cluster
from support.crew import SETTINGS as GROUP_SETTINGS
from support.crew import Crew
from support.programs import start
from support.pulse import Pulse
from support.waiting import PATIENCE_S, until
from support.wire import FETCH_BY_NAME, PRODUCE, Wire, batch_of, fetch_request, produce_request
from support.zookeeper import ZooKeeperProcess

LEASE_S = 2.0
SETTINGS = {
    **GROUP_SETTINGS,
    "cluster.lease_ms": int(LEASE_S * 1000),
    "cluster.lag_time_max_ms": 2_000,
    "transactions.state_partitions": 3,
    "topic.min.insync.replicas": 2,
    "log.stray_keep_ms": 0,
}
RACKS = ("north", "south", "west")
SENDERS = 32
PIPELINED = 500
"""Requests of one connection, many times what may wait for followers."""
VERIFIED = 1000
"""Messages of Kafka's own producer, which takes a second for them if nothing happens."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    process = ZooKeeperProcess(tmp_path_factory.mktemp("tree") / "zookeeper")
    try:
        yield process.start()
    finally:
        process.kill()


@pytest.fixture(scope="module")
def running(tree: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("replicated")
    with Cluster(folder, f"{tree.address}/replicated", settings=SETTINGS, racks=RACKS, gates=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """Whole before the test and after it; what a test has hurt, it heals."""
    running.heal()
    yield running
    for number, broker in running.brokers.items():
        assert "Traceback" not in broker.log, f"broker {number}:\n{broker.log_tail}"


def create(cluster: Cluster, topic: str, partitions: int = 3, replicas: int = -1) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result()


def values_of(cluster: Cluster, topic: str, count: int, **more: str) -> list[bytes]:
    """The first so many values of partition 0, for a reader of what is committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.kafka,
            "group.id": "never joined",
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            # Else closing it waits for a coordinator, of a group that it is no member of.
            "enable.auto.commit": False,
            "log_level": 0,
            **more,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []

    def has_all() -> bool:
        found.extend(message.value() or b"" for message in consumer.consume(100, 0.1) if message.error() is None)
        return len(found) >= count

    try:
        until(has_all, f"{count} values in {topic}")
    finally:
        consumer.close()
    return found


def values_up_to(cluster: Cluster, topic: str, last: bytes) -> list[bytes]:
    """All values of partition 0 up to this one."""
    found: list[bytes] = []
    while last not in found:
        found = values_of(cluster, topic, len(found) + 1)
    return found


def outcome(cluster: Cluster, topic: str, value: bytes, **settings: object) -> int:
    """What a producer is told of a message to partition 0."""
    producer = Producer({"bootstrap.servers": cluster.kafka, "log_level": 0, **settings})
    told: list[int] = []

    def report(error: KafkaError | None, message: Message) -> None:
        told.append(0 if error is None else error.code())

    producer.produce(topic, value, partition=0, on_delivery=report)
    assert producer.flush(PATIENCE_S) == 0
    return told[0]


def assert_all_is_there(pulse: Pulse) -> None:
    tally = pulse.finish()
    assert pulse.failed == []
    assert tally.is_good and tally.acknowledged > 0, tally


def test_nothing_acknowledged_is_lost_with_a_leader_and_then_with_the_controller(cluster: Cluster) -> None:
    create(cluster, "killed")
    with Pulse(cluster.kafka, "killed", 3) as pulse:
        pulse.wait_for_more()
        leader = cluster.leader("killed")
        cluster.kill(leader)
        pulse.wait_for_more()
        controller = cluster.controller()
        cluster.kill(controller)
        cluster.start_again(leader)
        pulse.wait_for_more()
        cluster.start_again(controller)
        cluster.wait_until_whole()
        pulse.wait_for_more()
        assert_all_is_there(pulse)


def test_a_broker_that_stops_in_order_hands_over_and_leads_again_when_it_is_preferred(cluster: Cluster) -> None:
    create(cluster, "stopped")
    with Pulse(cluster.kafka, "stopped", 3) as pulse:
        pulse.wait_for_more()
        number = cluster.leader("stopped")
        before = {each: len(broker.log) for each, broker in cluster.brokers.items()}
        cluster.stop(number)
        pulse.wait_for_more()
        assert elect(cluster, "stopped") == Code.PREFERRED_LEADER_NOT_AVAILABLE
        cluster.start_again(number)
        cluster.wait_until_whole()
        # The controller sees to that as well, and may have been faster.
        assert elect(cluster, "stopped") in (Code.NONE, Code.ELECTION_NOT_NEEDED)
        until(lambda: cluster.leader("stopped") == number, "the preferred one leads")
        pulse.wait_for_more()
        assert_all_is_there(pulse)
    found_dead = re.compile(rf"brokers have lost their leases.*\b{number}\b")
    assert not any(found_dead.search(said) for said in said_since(cluster, before)), "by the end of its lease"


@pytest.mark.parametrize("turn", range(3))
def test_a_leader_that_stops_does_not_say_that_a_batch_is_missing_which_its_successor_has(
    cluster: Cluster, turn: int
) -> None:
    """A producer that is told NOT_LEADER may use the sequence numbers of the batch for other records.

    In most turns, not in all, the successor has batches that waited for followers when the leader stopped.
    """
    topic = f"handed-over-{turn}"
    create(cluster, topic, 1)
    number = cluster.leader(topic)
    address = cluster.brokers[number].address
    answers: dict[bytes, int] = {}

    def send(sender: int) -> None:
        """One batch after the other, each once, until the leader leads no more."""
        with contextlib.suppress(OSError, EOFError), Wire(address) as wire:
            for each in count():
                value = b"%d-%d" % (sender, each)
                answers[value] = code = wire.produce(topic, batch_of(value))["error_code"]
                if code != 0:
                    return

    with ThreadPoolExecutor(SENDERS) as pool:
        sending = [pool.submit(send, sender) for sender in range(SENDERS)]
        until(lambda: len(answers) > 10 * SENDERS, "the senders are at work")
        cluster.stop(number)
        for each in sending:
            each.result()
    assert set(answers.values()) <= {
        Code.NONE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
    assert outcome(cluster, topic, b"last") == 0
    found = Counter(values_up_to(cluster, topic, b"last"))
    assert [value for value, code in answers.items() if code == Code.NOT_LEADER_OR_FOLLOWER and value in found] == []
    assert [value for value, code in answers.items() if code == 0 and found[value] != 1] == []


def test_batches_that_wait_for_followers_together_are_each_there_once_after_their_leader_was_killed(
    cluster: Cluster,
) -> None:
    create(cluster, "overlapping", 1)
    leader = cluster.leader("overlapping")
    followers = [number for number in cluster.numbers if number != leader]
    with Wire(cluster.brokers[leader].address) as wire:
        producer = wire.producer_id()
        batches = [
            batch_of(b"%d" % number, producer_id=producer, producer_epoch=0, base_sequence=number)
            for number in range(5)
        ]
        for number in followers:
            cluster.pause(number)
        for batch in batches:
            wire.send(apis.PRODUCE, PRODUCE, produce_request("overlapping", batch))
        cluster.kill(leader)
    for number in followers:
        cluster.resume(number)
    until(lambda: cluster.leader("overlapping") in followers, "a follower leads")
    with Wire(cluster.brokers[cluster.leader("overlapping")].address) as wire:
        # What the old leader had sent to a follower is there already: it is answered like what is new.
        sent = [wire.send(apis.PRODUCE, PRODUCE, produce_request("overlapping", batch)) for batch in batches]
        answers = [wire.receive(apis.PRODUCE, PRODUCE, each)["responses"][0] for each in sent]
    assert [answer["partition_responses"][0]["error_code"] for answer in answers] == [0] * len(batches)
    assert outcome(cluster, "overlapping", b"last") == 0
    assert values_up_to(cluster, "overlapping", b"last") == [b"0", b"1", b"2", b"3", b"4", b"last"]


def test_one_connection_gets_its_answers_in_order_whatever_it_sent_while_followers_stood_still(
    cluster: Cluster,
) -> None:
    create(cluster, "pipelined", 1)
    leader = cluster.leader("pipelined")
    followers = [number for number in cluster.numbers if number != leader]
    everything = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    reading = fetch_request([("pipelined", 0, 0)], partition_max_bytes=1)
    sent: queue.Queue[tuple[Api, int, int, bytes]] = queue.Queue()

    def send(wire: Wire) -> None:
        for number in range(PIPELINED):
            value = b"%d" % number
            kind, version, acks = apis.PRODUCE, PRODUCE, -1
            request: Any = None
            match number % 25:
                case 3 | 17:
                    acks = 0
                case 5 | 11:
                    acks = 1
                case 23:
                    kind, version, request = apis.METADATA, 12, everything
                case 24:
                    kind, version, request = apis.FETCH, FETCH_BY_NAME, reading
            request = request or produce_request("pipelined", batch_of(value), acks=acks)
            asked = wire.send(kind, version, request)
            if acks:
                sent.put((kind, version, asked, value))
        sent.put((apis.PRODUCE, PRODUCE, 0, b""))

    stored: dict[int, bytes] = {}
    with Wire(cluster.brokers[leader].address) as wire, ThreadPoolExecutor(1) as pool:
        for number in followers:
            cluster.pause(number)
        sending = pool.submit(send, wire)
        until(lambda: sent.qsize() > 0, "the first request is sent")
        with cluster.wire(leader) as other:
            assert other.metadata("pipelined")["error_code"] == 0
        for number in followers:
            cluster.resume(number)
        while (each := sent.get(timeout=PATIENCE_S))[2]:
            kind, version, asked, value = each
            answer = wire.receive(kind, version, asked)
            if kind is apis.PRODUCE:
                ((result,),) = (response["partition_responses"] for response in answer["responses"])
                # A machine that is busy for long may have the followers out of sync.
                if result["error_code"] == 0:
                    assert result["base_offset"] > max(stored, default=-1)
                    stored[result["base_offset"]] = value
        sending.result()
    assert outcome(cluster, "pipelined", b"last") == 0
    found = values_up_to(cluster, "pipelined", b"last")
    assert len(set(found)) == len(found)
    assert {offset: found[offset] for offset in stored} == stored


def test_kafkas_own_producer_loses_and_repeats_nothing_when_its_leader_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    create(cluster, "verifiable", 1)
    settings, said = tmp_path / "producer.properties", tmp_path / "said"
    settings.write_text(
        "enable.idempotence=true\nretries=1000000\nmax.in.flight.requests.per.connection=5\n"
        "linger.ms=0\nbatch.size=100\nreconnect.backoff.max.ms=100\nretry.backoff.max.ms=100\n"
    )
    command = [*kafka_tool("org.apache.kafka.tools.VerifiableProducer"), "--bootstrap-server", cluster.kafka]
    command += ["--topic", "verifiable", "--max-messages", str(VERIFIED), "--throughput", str(VERIFIED)]
    command += ["--acks", "-1", "--command-config", str(settings)]
    with said.open("wb") as output:
        process = start(command, stdout=output, stderr=output)
        try:
            until(lambda: said.read_bytes().count(b"producer_send_success") > VERIFIED // 10, "the producer is at work")
            leader = cluster.leader("verifiable")
            followers = [number for number in cluster.numbers if number != leader]
            for number in followers:
                cluster.pause(number)
            # What the leader has been sent by now waits for followers.
            cluster.kill(leader)
            for number in followers:
                cluster.resume(number)
            assert process.wait(4 * PATIENCE_S) == 0, said.read_text()[-2000:]
        finally:
            process.kill()
            process.wait()
    lines = [json.loads(line) for line in said.read_text().splitlines() if line.startswith("{")]
    told = {each["offset"]: each["value"].encode() for each in lines if each["name"] == "producer_send_success"}
    assert len(told) == VERIFIED
    assert outcome(cluster, "verifiable", b"last") == 0
    found = values_up_to(cluster, "verifiable", b"last")
    assert found == [*(b"%d" % number for number in range(VERIFIED)), b"last"]
    assert {offset: found[offset] for offset in told} == told


def elect(cluster: Cluster, topic: str) -> int:
    """Asks for the preferred leader of partition 0."""
    admin, at = AdminClient({"bootstrap.servers": cluster.kafka, "log_level": 0}), TopicPartition(topic, 0)
    error = admin.elect_leaders(ElectionType.PREFERRED, [at]).result()[at]
    return 0 if error is None else error.code()


def transactional(cluster: Cluster, name: str, timeout_ms: int = 60_000) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": cluster.kafka,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    producer.init_transactions(PATIENCE_S)
    return producer


def test_groups_and_transactions_go_on_when_their_coordinator_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    create(cluster, "payments", 1)
    number = cluster.coordinator_of_transactions("going on")
    names, topics = (f"left alone {each}" for each in count()), (f"watched-{each}" for each in count())
    name = next(each for each in names if cluster.coordinator_of_transactions(each) == number)
    topic = next(each for each in topics if cluster.coordinator_of_group(f"group-of-{each}") == number)
    with Crew(cluster, topic, tmp_path, partitions=4) as crew:
        crew.produce()
        for member in ("ann", "bob"):
            crew.start(member)
        crew.wait_for_more()
        until(crew.committed, "something is committed")
        committed = crew.committed()
        going_on, left_alone = transactional(cluster, "going on"), transactional(cluster, name, 3_000)
        for producer, value in ((going_on, b"kept"), (left_alone, b"never seen")):
            producer.begin_transaction()
            producer.produce("payments", value, partition=0)
            assert producer.flush(PATIENCE_S) == 0
        cluster.kill(number)
        going_on.commit_transaction(PATIENCE_S)
        assert cluster.coordinator_of_transactions("going on") != number
        going_on.begin_transaction()
        going_on.produce("payments", b"kept too", partition=0)
        going_on.commit_transaction(PATIENCE_S)
        # What comes last is visible only once the successor has ended what was left alone.
        assert values_of(cluster, "payments", 2) == [b"kept", b"kept too"]
        crew.wait_for_more(200, 2 * PATIENCE_S)
        assert cluster.coordinator_of_group(crew.group) != number
        assert all(crew.committed()[partition] >= offset for partition, offset in committed.items())
        cluster.start_again(number)
        crew.finish(2 * PATIENCE_S)


def test_a_follower_that_is_cut_off_is_in_sync_again_when_it_has_caught_up(cluster: Cluster) -> None:
    create(cluster, "away", 1)
    leader = cluster.leader("away")
    follower, other = (number for number in cluster.numbers if number != leader)
    with Pulse(cluster.kafka, "away", 1) as pulse:
        pulse.wait_for_more()
        cluster.cut_off_from_brokers(follower)
        cluster.wait_until([leader, other], "away")
        assert cluster.view().brokers == set(cluster.numbers), "it is alive, and only behind"
        pulse.wait_for_more()
        cluster.repair()
        cluster.wait_until(cluster.numbers, "away")
        assert_all_is_there(pulse)


def test_what_only_a_dead_leader_had_is_cut_from_its_log_when_it_comes_back(cluster: Cluster) -> None:
    create(cluster, "parted", 1)
    leader = cluster.leader("parted")
    followers = [number for number in cluster.numbers if number != leader]
    assert outcome(cluster, "parted", b"shared") == 0
    with Wire(cluster.brokers[leader].address) as wire:
        # Killed, not paused: an answer to a fetch could lie in a buffer of theirs.
        for number in followers:
            cluster.kill(number)
        assert wire.produce("parted", batch_of(b"lost"), acks=1)["error_code"] == 0
    cluster.kill(leader)
    cluster.start_again(*followers)
    assert cluster.leader("parted") in followers
    assert outcome(cluster, "parted", b"instead") == 0
    cluster.start_again(leader)
    cluster.wait_until_whole()
    # It is the preferred leader, so it gets its office back, and readers see its log.
    until(lambda: cluster.leader("parted") == leader, "the old leader leads again")
    assert values_of(cluster, "parted", 2)[:2] == [b"shared", b"instead"]
    assert "log cut log=parted-0" in cluster.brokers[leader].log


def test_one_replica_that_is_left_refuses_what_two_should_have_and_nobody_else_leads(cluster: Cluster) -> None:
    create(cluster, "few", 1)
    leader = cluster.leader("few")
    others = [number for number in cluster.numbers if number != leader]
    for number in others:
        cluster.stop(number)
    cluster.wait_until([leader], "few")
    assert outcome(cluster, "few", b"refused", acks="all", retries=0) == Code.NOT_ENOUGH_REPLICAS
    assert outcome(cluster, "few", b"one is enough", acks=1) == 0
    cluster.stop(leader)
    cluster.start_again(*others)
    # They have not got all of it, and the topic does not allow an unclean election.
    until(lambda: cluster.view().places["few", 0].leader == -1, "nobody leads")
    assert elect(cluster, "few") == Code.PREFERRED_LEADER_NOT_AVAILABLE
    assert outcome(cluster, "few", b"too early", acks=1, **{"message.timeout.ms": 500}) == KafkaError._MSG_TIMED_OUT
    cluster.start_again(leader)
    cluster.wait_until_whole()
    assert outcome(cluster, "few", b"all", acks="all") == 0
    assert values_of(cluster, "few", 2) == [b"one is enough", b"all"]


def test_a_broker_learns_what_was_created_and_deleted_while_it_was_away(cluster: Cluster) -> None:
    create(cluster, "doomed", 3)
    cluster.wait_until_whole()
    assert outcome(cluster, "doomed", b"makes the files of its log", acks="all") == 0
    number = next(number for number in cluster.numbers if number != cluster.controller())
    logs = cluster.brokers[number].data / "logs"
    until(lambda: list(logs.glob("doomed-?")), "the broker has a log of it")
    cluster.stop(number)
    admin = AdminClient({"bootstrap.servers": cluster.kafka, "log_level": 0})
    admin.delete_topics(["doomed"])["doomed"].result()
    create(cluster, "young", 3, replicas=2)
    with pytest.raises(KafkaException) as refused:
        create(cluster, "wide", 1, replicas=3)
    assert refused.value.args[0].code() == Code.INVALID_REPLICATION_FACTOR
    cluster.start_again(number)
    cluster.wait_until_whole()
    seen = {topic for topic, _ in cluster.view(number).places}
    assert "young" in seen and "doomed" not in seen
    until(lambda: not list(logs.glob("doomed-*")), "what is left of the topic is gone")


def test_without_zookeeper_nothing_is_changed_but_all_is_served(cluster: Cluster, tree: ZooKeeperProcess) -> None:
    create(cluster, "steady")
    cluster.wait_until_whole()
    admin = AdminClient({"bootstrap.servers": cluster.kafka, "log_level": 0})
    with Pulse(cluster.kafka, "steady", 3) as pulse:
        pulse.wait_for_more()
        before = {number: len(broker.log) for number, broker in cluster.brokers.items()}
        tree.pause()
        try:
            paused = time.monotonic()
            leaders = {at: place.leader for at, place in cluster.view().places.items()}
            asked = admin.create_topics([NewTopic("early", 1)])["early"]
            while time.monotonic() < paused + 1.25 * LEASE_S or not have_lost_zookeeper(cluster, before):
                pulse.wait_for_more()
            assert values_of(cluster, "steady", 10)
            with pytest.raises(KafkaException) as refused:
                asked.result()
            assert {at: place.leader for at, place in cluster.view().places.items()} == leaders
        finally:
            tree.resume()
        assert refused.value.args[0].code() == Code.UNKNOWN_SERVER_ERROR
        assert "ZooKeeper" in refused.value.args[0].str()
        until(lambda: have_zookeeper_again(cluster, before), "all brokers have their leases")
        # Brokers that have found ZooKeeper again may be told only then that their sessions are over.
        until(lambda: is_created(cluster, "late"), "there are brokers for three replicas")
        assert "early" not in {topic for topic, _ in cluster.view().places}
        pulse.wait_for_more()
        assert_all_is_there(pulse)


def is_created(cluster: Cluster, topic: str) -> bool:
    """Makes a topic; false if there are too few brokers in that moment."""
    try:
        create(cluster, topic)
    except KafkaException as error:
        assert error.args[0].code() == Code.INVALID_REPLICATION_FACTOR
        return False
    return True


def said_since(cluster: Cluster, before: Mapping[int, int]) -> list[str]:
    return [broker.log[before[number] :] for number, broker in cluster.brokers.items()]


def have_lost_zookeeper(cluster: Cluster, before: Mapping[int, int]) -> bool:
    return all("lost the connection to ZooKeeper" in said for said in said_since(cluster, before))


def have_zookeeper_again(cluster: Cluster, before: Mapping[int, int]) -> bool:
    """ZooKeeper, when it wakes up, ends sessions or not; who has lost his has to become a member again."""
    return all(
        ("joined the cluster" in after if lost else "connected to ZooKeeper" in said)
        for said in said_since(cluster, before)
        for _, lost, after in [said.rpartition("lost the ZooKeeper session")]
    )


def test_a_consumer_is_sent_to_the_replica_in_its_rack(cluster: Cluster) -> None:
    create(cluster, "near", 1)
    leader = cluster.leader("near")
    follower = next(number for number in cluster.numbers if number != leader)
    assert outcome(cluster, "near", b"one") == 0
    with Wire(cluster.brokers[leader].address) as wire:
        asked = fetch_request([("near", 0, 0)]) | {"rack_id": RACKS[follower - 1]}
        ((sent,),) = (found["partitions"] for found in wire.ask(apis.FETCH, FETCH_BY_NAME, asked)["responses"])
        assert sent["preferred_read_replica"] == follower
        asked |= {"rack_id": RACKS[leader - 1]}
        ((kept,),) = (found["partitions"] for found in wire.ask(apis.FETCH, FETCH_BY_NAME, asked)["responses"])
        assert kept["preferred_read_replica"] == -1 and kept["records"]
    before = cluster.brokers[follower].metrics()
    assert values_of(cluster, "near", 1, **{"client.rack": RACKS[follower - 1]}) == [b"one"]
    served = {
        key: value - before.get(key, 0.0)
        for key, value in cluster.brokers[follower].metrics().items()
        if "Fetch" in str(key) and "total" in key[0]
    }
    assert any(served.values()), served


def test_a_leader_that_was_stopped_for_longer_than_its_lease_wakes_up_as_a_follower(cluster: Cluster) -> None:
    create(cluster, "asleep")
    with Pulse(cluster.kafka, "asleep", 3) as pulse:
        pulse.wait_for_more()
        number = cluster.leader("asleep")
        with Wire(cluster.brokers[number].address) as wire:
            cluster.pause(number)
            # The first that it reads when it wakes up, before it hears from anybody that another leads.
            early = wire.send(apis.PRODUCE, PRODUCE, produce_request("asleep", batch_of(b"0"), acks=1))
            until(lambda: cluster.leader("asleep") != number, "another leads")
            pulse.wait_for_more()
            cluster.resume(number)
            answer = wire.receive(apis.PRODUCE, PRODUCE, early)
        ((refused,),) = (found["partition_responses"] for found in answer["responses"])
        assert refused["error_code"] == Code.NOT_LEADER_OR_FOLLOWER
        cluster.wait_until_whole()
        pulse.wait_for_more()
        assert_all_is_there(pulse)
