"""Dead letters: pages by id, and partial failure of finding, resending and purging."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.admin import AdminError, Cluster, DeadLetterId, DeadLetterSelection, DeadLetterState, NewTopic
from support.broker_process import BrokerProcess
from support.receiving import running, wait_until_committed

COUNT = 7


@pytest.fixture
def group(broker: BrokerProcess, cluster: Cluster, topic: str) -> Iterator[str]:
    """A group with dead letters in several partitions, named as its topic."""
    cluster.topics.create([NewTopic(name=topic, partitions=2)]).all()
    with penstock.Client(broker.kafka) as client:
        for number in range(COUNT):
            client.send_soon(topic, str(number), key=str(number))
        assert client.flush()
    rejecting = penstock.Client(broker.kafka)

    @rejecting.subscribe(topic, group=topic, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        message.reject("nobody wants it")

    with rejecting, running(rejecting):
        wait_until_committed(broker.kafka, topic, topic, 2)
    yield topic


def pages(cluster: Cluster, group: str, limit: int) -> list[list[DeadLetterId]]:
    found: list[list[DeadLetterId]] = []
    after: str | None = None
    while not found or after is not None:
        page = cluster.dead_letters.list(group, limit=limit, after=after)
        found.append([letter.id for letter in page.items])
        after = page.next
    return found


def test_letters_come_in_pages_by_id(cluster: Cluster, group: str) -> None:
    (whole,) = pages(cluster, group, COUNT)
    assert whole == sorted(set(whole)) and len(whole) == COUNT
    assert pages(cluster, group, 3) == [whole[:3], whole[3:6], whole[6:]]
    # The state records of letters that are no longer listed lie behind all letters.
    cluster.dead_letters.resend(group, DeadLetterSelection(ids=frozenset({whole[0], whole[4]}))).all()
    left = [id for id in whole if id not in (whole[0], whole[4])]
    assert pages(cluster, group, 1) == [[id] for id in left]
    with pytest.raises(AdminError, match="does not continue"):
        cluster.dead_letters.list(group, after="x")


def test_letters_that_do_not_wait_are_errors_beside_those_that_do(cluster: Cluster, group: str) -> None:
    first, second, *_ = (letter.id for letter in cluster.dead_letters.list(group).items)
    missing = DeadLetterId(0, 4711)
    resent = cluster.dead_letters.resend(group, DeadLetterSelection(ids=frozenset({first, missing})))
    assert set(resent.values) == {first} and resent.errors[missing].code == "RESOURCE_NOT_FOUND"
    found = cluster.dead_letters.find(group, [first, missing])
    assert set(found.errors) == {missing} and found[first].state is DeadLetterState.RESENT
    purged = cluster.dead_letters.purge(group, DeadLetterSelection(ids=frozenset({first, second})))
    assert set(purged.values) == {second} and set(purged.errors) == {first}
    assert len(cluster.dead_letters.list(group).items) == COUNT - 2


def test_a_group_without_dead_letters_is_an_error(cluster: Cluster, topic: str) -> None:
    with pytest.raises(AdminError) as caught:
        cluster.dead_letters.list(topic)
    assert caught.value.code == "UNKNOWN_TOPIC_OR_PARTITION"
    assert caught.value.message.startswith(f"group {topic} has no dead letters")
