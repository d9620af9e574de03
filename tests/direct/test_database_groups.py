"""Topics over several databases: one address is enough, and a database that is away is passed by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import direct
from penstock.brokerless.producer import new_producer_id
from penstock.brokerless.sql.store import SqlStore
from penstock.brokerless.store import SendBatch, Sequenced, StoreAwayError, StoreRefusedError
from penstock.cluster.metadata import DatabaseGroupInfo, DatabaseServer
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.config.database_address import DatabaseAddress
from penstock.ids import TopicPartition
from penstock.sdk.ports import Outgoing
from penstock.sql.passwords import PasswordKey, new_key
from support.stores import NewDatabase
from support.waiting import until

TOPIC = "orders"
ZERO, ONE = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(new_key())
    path.chmod(0o600)
    return path


@pytest.fixture
def urls(new_database: NewDatabase) -> tuple[str, str]:
    return new_database("sqlite"), new_database("sqlite")


@pytest.fixture
def store(urls: tuple[str, str], key_file: Path) -> Iterator[SqlStore]:
    made = SqlStore(urls[0], key_file=key_file)
    add_group(made, urls[1], PasswordKey.read(key_file))
    yield made
    made.close()


def add_group(store: SqlStore, url: str, key: PasswordKey) -> None:
    """As `penstock dbnode add` does it through a broker."""
    address = DatabaseAddress.parse(url)
    group = DatabaseGroupInfo("second", (DatabaseServer(address.public_text, key.encrypt(address.password)),))

    def decide(draft: MetadataDraft) -> None:
        draft.put_database(group)

    store.thread.call(store.thread.link.metadata.change(decide))


def send(store: SqlStore, tp: TopicPartition, value: bytes) -> None:
    store.append(SendBatch(tp, [Outgoing(TOPIC, value)], Sequenced(new_producer_id(), 0)))


def values(store: SqlStore, tp: TopicPartition) -> list[bytes | None]:
    return [message.value for message in store.read(tp, 0, 100).messages]


def test_partitions_are_spread_over_groups_and_read_from_there(store: SqlStore) -> None:
    store.topics.create(TOPIC, 2)
    databases = {each.database for each in store.thread.link.image.topics[TOPIC].partitions}
    assert databases == {"default", "second"}
    for tp in (ZERO, ONE):
        send(store, tp, b"to %d" % tp.partition)
        assert values(store, tp) == [b"to %d" % tp.partition]


def test_delayed_messages_of_another_group_are_delivered(store: SqlStore) -> None:
    store.topics.create(TOPIC, 2)
    for tp in (ZERO, ONE):
        delayed = Outgoing(TOPIC, b"later", headers=(("penstock-delay", b"300ms"),))
        store.append(SendBatch(tp, [delayed], Sequenced(new_producer_id(), 0)))
    for tp in (ZERO, ONE):
        until(lambda tp=tp: values(store, tp) == [b"later"], "it is delivered")


def test_a_transaction_over_two_groups_is_refused(store: SqlStore) -> None:
    store.topics.create(TOPIC, 2)
    batches = [SendBatch(tp, [Outgoing(TOPIC, b"x")], Sequenced(new_producer_id(), 0)) for tp in (ZERO, ONE)]
    with pytest.raises(StoreRefusedError, match="several database groups"):
        store.commit_transaction(batches, None, None)
    assert values(store, ZERO) == values(store, ONE) == []


def test_messages_without_a_key_pass_a_database_by_that_is_away(
    store: SqlStore, urls: tuple[str, str], key_file: Path
) -> None:
    store.topics.create(TOPIC, 2)
    store.prepare_topic(TOPIC)
    away = next(
        TopicPartition(TOPIC, each.index)
        for each in store.thread.link.image.topics[TOPIC].partitions
        if each.database == "second"
    )
    other = ONE if away == ZERO else ZERO
    file = Path(urls[1].removeprefix("sqlite:///"))
    folder = file.parent.rename(file.parent.with_name("elsewhere"))
    until(lambda: not store.is_writable(away), "the database is known to be away")
    with pytest.raises(StoreAwayError):
        send(store, away, b"x")
    with direct.Client(urls[0], key_file=key_file) as client:
        for number in range(20):
            client.send(TOPIC, b"%d" % number)
        assert len(values(store, other)) == 20
        folder.rename(file.parent)
        until(lambda: store.is_writable(away), "the database is back")
        assert values(store, away) == []


def test_a_client_without_the_key_uses_what_it_can(store: SqlStore, urls: tuple[str, str]) -> None:
    store.topics.create(TOPIC, 2)
    image = store.thread.link.image.topics[TOPIC]
    here, there = sorted((ZERO, ONE), key=lambda tp: image.partitions[tp.partition].database)
    plain = SqlStore(urls[0])
    try:
        send(plain, here, b"a")
        with pytest.raises(StoreAwayError, match="lacks the key"):
            send(plain, there, b"b")
        assert not plain.is_writable(there)
    finally:
        plain.close()
