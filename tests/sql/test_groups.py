"""A group of servers: who is alive, where reads go, and that changes reach the primary alone."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from itertools import groupby

import pytest

from penstock.config.database_address import DatabaseAddress
from penstock.sql.database import Connection, Database
from penstock.sql.errors import DatabaseError, GroupAway, ReadOnly, Unreachable
from penstock.sql.group import HEARTBEAT_TABLE, DatabaseGroup, GroupServer
from penstock.sql.groups import DatabaseGroups, GroupAddresses
from support.replicated import MariaDbPair
from support.waiting import until

from .conftest import create_table, query

OPEN_LIMIT_MS = 20_000


@pytest.fixture
async def group(replicated: MariaDbPair) -> AsyncIterator[DatabaseGroup]:
    """Of both servers, with an empty table `things`."""
    addresses = [DatabaseAddress.parse(url) for url in replicated.create_database(f"test_{uuid.uuid4().hex[:12]}")]
    made = [GroupServer(Database.unconnected(each, connections=4, timeout_ms=OPEN_LIMIT_MS)) for each in addresses]
    group = DatabaseGroup("a", made)
    await group.define(create_table, 0)
    await group.define(_create_heartbeat, 0)
    await asyncio.to_thread(replicated.until_equal)
    group.start()
    yield group
    await group.close()


def _create_heartbeat(connection: Connection) -> None:
    number = connection.dialect.big_integer
    for statement in connection.dialect.create_table(
        HEARTBEAT_TABLE, [("id", number), ("written_ms", number)], primary_key=["id"]
    ):
        connection.change(statement)


def insertion(number: int) -> Callable[[Connection], None]:
    return lambda connection: connection.insert("things", ["id"], [(number,)])


async def eventually(is_so: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, is_so, "what the test waits for has happened")


async def read_one(group: DatabaseGroup) -> str:
    def from_primary(connection: Connection) -> str:
        connection.execute("SELECT 1")
        return "primary"

    def from_replica(connection: Connection) -> str:
        connection.execute("SELECT 1")
        return "replica"

    return await group.read_anywhere(from_primary, from_replica)


async def test_servers_say_who_takes_writes_and_how_far_they_are_behind(
    group: DatabaseGroup, replicated: MariaDbPair
) -> None:
    primary, (replica,) = group.primary, group.replicas
    await eventually(lambda: primary.was_asked and replica.was_asked)
    assert (primary.takes_writes, replica.takes_writes, group.takes_writes) == (True, False, True)
    assert group.lag_ms(replica) is None
    await primary.write_heartbeat(1_000_000)
    await eventually(lambda: replica.heartbeat_ms == 1_000_000)
    lag_ms = group.lag_ms(replica)
    assert lag_ms is not None and lag_ms > 1_000_000
    await asyncio.to_thread(replicated.stop_applying)
    await primary.write_heartbeat(2_000_000)
    await eventually(lambda: primary.heartbeat_ms == 2_000_000)
    await replica.ask(has_replicas=True)
    assert replica.heartbeat_ms == 1_000_000
    await asyncio.to_thread(replicated.go_on_applying)
    await eventually(lambda: replica.heartbeat_ms == 2_000_000)


async def test_an_answer_to_a_question_from_before_a_change_does_not_count_after_it(group: DatabaseGroup) -> None:
    server = GroupServer(Database.unconnected(group.primary.address, connections=1, timeout_ms=OPEN_LIMIT_MS))
    question = asyncio.create_task(server.ask(has_replicas=False))
    await asyncio.sleep(0)
    server.ask_after_change()
    await question
    assert (server.was_asked, server.is_known_since_change) == (True, False)
    await server.ask(has_replicas=False)
    assert server.is_known_since_change
    await server.close()


async def test_a_server_that_failed_once_is_not_known_and_one_that_is_down_is(
    group: DatabaseGroup, replicated: MariaDbPair
) -> None:
    await eventually(lambda: all(server.is_known_since_change for server in group.servers))
    server = GroupServer(Database.unconnected(group.primary.address, connections=1, timeout_ms=OPEN_LIMIT_MS))
    await asyncio.to_thread(replicated.primary.kill)
    await server.ask(has_replicas=False)
    assert (server.is_down, server.is_known_since_change) == (False, False)
    await server.ask(has_replicas=False)
    assert (server.is_down, server.is_known_since_change) == (True, True)
    await server.close()
    await asyncio.to_thread(replicated.primary.start)


async def test_reads_go_to_the_replica_at_once_when_the_primary_is_killed(
    group: DatabaseGroup, replicated: MariaDbPair
) -> None:
    assert await read_one(group) == "primary"
    await asyncio.to_thread(replicated.primary.kill)
    assert await read_one(group) == "replica"
    await eventually(lambda: group.primary.is_down)
    assert await read_one(group) == "replica"
    with pytest.raises(GroupAway):
        await group.change(insertion(1), 0)
    with pytest.raises(GroupAway):
        await group.read(query("SELECT 1"))
    await asyncio.to_thread(replicated.primary.start)
    await eventually(lambda: group.takes_writes)
    assert await read_one(group) == "primary"
    await group.change(insertion(1), 0)


async def test_a_frozen_primary_is_noticed_and_lets_go_of_who_waits_for_it(
    group: DatabaseGroup, replicated: MariaDbPair
) -> None:
    await group.change(insertion(1), 0)
    await asyncio.to_thread(replicated.primary.pause)
    try:
        # Its time limit is far longer than it takes to notice.
        waiting = asyncio.create_task(group.change(insertion(2), 0))
        assert await read_one(group) == "replica"
        await eventually(lambda: group.primary.is_down)
        with pytest.raises(Unreachable, match="down"):
            await waiting
        with pytest.raises(GroupAway):
            await group.change(insertion(3), 0)
        assert await read_one(group) == "replica"
    finally:
        replicated.primary.resume()
    await eventually(lambda: group.takes_writes)
    found = await group.read(query("SELECT id FROM things ORDER BY id"))
    assert found in ([(1,)], [(1,), (2,)])


async def test_a_primary_that_takes_no_writes_is_known_and_still_read(
    group: DatabaseGroup, replicated: MariaDbPair
) -> None:
    changes: list[bool] = []
    group.on_change(lambda changed: changes.append(changed.takes_writes))
    await eventually(lambda: group.primary.was_asked)
    replicated.primary.administer("set global read_only = on")
    try:
        with pytest.raises(DatabaseError) as caught:
            await group.change(insertion(1), 0)
        assert isinstance(caught.value, ReadOnly | GroupAway)
        await eventually(lambda: not group.takes_writes)
        with pytest.raises(GroupAway, match="takes no writes"):
            await group.change(insertion(1), 0)
        assert await read_one(group) == "primary"
    finally:
        replicated.primary.administer("set global read_only = off")
    await eventually(lambda: group.takes_writes)
    # What else has changed is told too.
    assert [takes_writes for takes_writes, _ in groupby(changes)] == [False, True]


async def test_who_knew_another_primary_changes_nothing(
    replicated: MariaDbPair, tmp_path_factory: pytest.TempPathFactory
) -> None:
    default = await Database.open(
        DatabaseAddress.parse(f"sqlite:///{tmp_path_factory.mktemp('default') / 'd.db'}"), connections=2
    )
    groups = DatabaseGroups(default)
    groups.start()
    addresses = tuple(DatabaseAddress.parse(url) for url in replicated.create_database("follows"))
    try:
        with pytest.raises(GroupAway):
            groups["a"]
        groups.follow({"a": GroupAddresses(addresses)})
        group = groups["a"]
        await group.define(create_table, 0)
        await asyncio.to_thread(replicated.until_equal)
        former, replica = group.servers
        groups.follow({"a": GroupAddresses(addresses, 1, 1)})
        assert groups["a"] is group and group.primary is replica and group.servers == (former, replica)
        with pytest.raises(GroupAway, match="another server is the primary"):
            await group.change(insertion(1), 0)
        await eventually(lambda: not group.takes_writes)
        assert groups.without_writes() == {"a"}
        assert await group.read(query("SELECT COUNT(*) FROM things")) == [(0,)]
        # A server less, and the group is gone in the end.
        groups.follow({"a": GroupAddresses(addresses[1:], 0, 1)})
        assert list(group.servers) == [replica]
        groups.follow({})
        with pytest.raises(GroupAway):
            groups["a"]
        assert await groups.default.read(query("SELECT 1")) == [(1,)]
    finally:
        await groups.close()


async def test_semi_synchronous_replication_that_has_turned_itself_off_is_seen(
    group: DatabaseGroup, replicated: MariaDbPair
) -> None:
    await asyncio.to_thread(replicated.be_semi_synchronous, 100)
    await group.change(insertion(1), 0)
    await group.primary.ask(has_replicas=True)
    assert not group.primary.has_lost_semi_sync
    replicated.replica.administer("stop slave io_thread")
    await group.change(insertion(2), 0)
    await eventually(lambda: group.primary.has_lost_semi_sync)


async def test_the_only_server_of_the_only_group_is_tried_although_it_is_down(replicated: MariaDbPair) -> None:
    url, other = replicated.create_database(f"test_{uuid.uuid4().hex[:12]}")
    groups = DatabaseGroups(await Database.open(DatabaseAddress.parse(url), connections=2, timeout_ms=OPEN_LIMIT_MS))
    groups.start()
    try:
        replicated.primary.kill()
        await eventually(lambda: groups.default.primary.is_down)
        assert groups.without_writes() == frozenset()
        with pytest.raises(Unreachable) as caught:
            await groups.default.change(query("SELECT 1"), 0)
        assert not isinstance(caught.value, GroupAway), "it was tried"
        groups.follow({"a": GroupAddresses((DatabaseAddress.parse(other),))})
        assert groups.without_writes() == {"default"}
        with pytest.raises(GroupAway):
            await groups.default.change(query("SELECT 1"), 0)
    finally:
        await groups.close()
