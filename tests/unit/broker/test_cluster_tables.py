"""Topics and databases as rows."""

from __future__ import annotations

import uuid
from types import MappingProxyType

from penstock.broker.background.cluster_tables import node_rows, topic_row
from penstock.cluster.metadata import (
    DatabaseGroupInfo,
    DatabaseServer,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from penstock.config.database_address import DatabaseAddress
from penstock.ids import BrokerId
from penstock.sql.server_status import ServerStatus

ME = BrokerId(1)
BASE_ID, VIEW_ID = uuid.UUID(int=1), uuid.UUID(int=2)


def test_a_view_has_the_partitions_of_its_topic() -> None:
    partitions = tuple(PartitionImage(index, ME, 0, (ME,), (ME,)) for index in range(3))
    base = TopicImage("orders", BASE_ID, partitions, MappingProxyType({"penstock.storage": "sql", "a": "b"}))
    view = TopicImage("paid", VIEW_ID, (), MappingProxyType({"penstock.view.of": "orders"}))
    topics = {"orders": base, "paid": view}
    image = MetadataImage(1, "cluster", {}, ME, topics, {BASE_ID: "orders", VIEW_ID: "paid"})
    settings = '{"a": "b", "penstock.storage": "sql"}'
    assert topic_row(image, base, "sql", 5) == (str(BASE_ID), "orders", 3, "sql", None, 0, settings, 5)
    settings = '{"penstock.view.of": "orders"}'
    assert topic_row(image, view, "sql", 5) == (str(VIEW_ID), "paid", 3, "sql", "orders", 0, settings, 5)


def test_every_server_of_every_group_is_a_row_without_a_password() -> None:
    default = DatabaseAddress.parse("mysql://penstock:secret@db/penstock")
    servers = (
        DatabaseServer("postgresql://u@one:5433/queue", "encrypted"),
        DatabaseServer("postgresql://u@two/queue", "encrypted"),
    )
    groups = {
        "a": DatabaseGroupInfo("a", servers, primary=1, generation=2),
        "b": DatabaseGroupInfo("b", servers[:1], is_draining=True),
        "c": DatabaseGroupInfo("c", servers[1:]),
    }
    well, unwell = ServerStatus(True, takes_writes=True), ServerStatus(False, problem="no answer")
    seen = {
        "default": [well],
        # A replica that takes writes is set up wrongly, and a primary that takes none too.
        "a": [well, ServerStatus(True, takes_writes=False)],
        "b": [unwell],
    }
    assert node_rows(default, groups, lambda group: seen.get(group, ())) == [
        ("default", 0, "primary", "mysql", "db", 3306, "penstock", "penstock", "up", 0),
        ("a", 0, "replica", "postgresql", "one", 5433, "queue", "u", "writable", 0),
        ("a", 1, "primary", "postgresql", "two", 5432, "queue", "u", "read-only", 0),
        ("b", 0, "primary", "postgresql", "one", 5433, "queue", "u", "down", 1),
        # This broker has no key to the passwords of this one.
        ("c", 0, "primary", "postgresql", "two", 5432, "queue", "u", "unknown", 0),
    ]
