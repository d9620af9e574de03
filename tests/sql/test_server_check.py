"""Which servers can be a database group: found out with real connections, before the group is made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.config.database_address import DatabaseAddress
from penstock.sql.database import Connection, Database
from penstock.sql.errors import SchemaChanged
from penstock.storage.sql import schema, server_check
from penstock.storage.sql.server_check import GroupServers, ServerRefused, check_primary, check_servers
from support.ports import free_ports
from support.replicated import MariaDbPair
from support.stores import NewDatabase, PostgresProcess
from support.waiting import until

CLUSTER = "this cluster"


def servers(*urls: str, group: str = "orders", primary: int = 0, groups: tuple[str, ...] = ()) -> GroupServers:
    addresses = tuple(map(DatabaseAddress.parse, urls))
    return GroupServers(group, CLUSTER, addresses, primary, groups)


async def refused(checked: GroupServers, said: str) -> None:
    with pytest.raises(ServerRefused, match=said) as caught:
        await check_servers(checked)
    assert "penstock:penstock" not in str(caught.value)


async def prepared(url: str, cluster_id: str) -> None:
    """As the database of a broker's sql.url is."""
    database = await Database.open(DatabaseAddress.parse(url))
    await database.run_ddl(schema.migrate)
    await database.run(lambda connection: schema.set_cluster(connection, cluster_id))
    await database.close()


class TestOneServer:
    async def test_an_empty_database_gets_the_tables_of_the_cluster(self, address: DatabaseAddress) -> None:
        checked = GroupServers("orders", CLUSTER, (address,), 0, ())
        await check_servers(checked, validate_only=True)
        database = await Database.open(address)
        with pytest.raises(SchemaChanged):
            await database.run(schema.cluster_of)
        await check_servers(checked)
        await check_servers(checked)
        assert await database.run(schema.cluster_of) == CLUSTER
        await database.close()

    async def test_a_server_that_does_not_answer_or_denies_access_is_named(self, new_database: NewDatabase) -> None:
        port = free_ports(1)[0]
        await refused(servers(f"mysql://user:penstock:penstock@127.0.0.1:{port}/db"), f"127.0.0.1:{port}/db cannot")
        good = new_database("mariadb")
        await refused(servers(good.replace("penstock:penstock", "penstock:wrong")), "Access denied")
        await refused(servers(f"{good}x"), "Access denied|Unknown database")

    async def test_tables_of_another_cluster_are_refused(self, new_database: NewDatabase) -> None:
        url = new_database("sqlite")
        await prepared(url, "another")
        await refused(servers(url), "belongs to the cluster another, and not to this cluster")

    async def test_the_database_of_the_brokers_is_known_under_any_name(
        self, new_database: NewDatabase, tmp_path: Path
    ) -> None:
        url = new_database("sqlite")
        await prepared(url, CLUSTER)
        (tmp_path / "alias.db").symlink_to(DatabaseAddress.parse(url).database)
        await refused(servers(f"sqlite:///{tmp_path}/alias.db"), r"is the database of sql\.url")

    async def test_the_database_of_another_group_is_known_under_any_name(
        self, new_database: NewDatabase, tmp_path: Path
    ) -> None:
        url = new_database("sqlite")
        await check_servers(servers(url))
        (tmp_path / "alias.db").symlink_to(DatabaseAddress.parse(url).database)
        alias = servers(f"sqlite:///{tmp_path}/alias.db", group="billing", groups=("orders",))
        await refused(alias, "is the database of the group 'orders'")
        # Until that group is removed.
        await check_servers(replace(alias, groups=()))

    async def test_a_file_has_no_replicas(self, new_database: NewDatabase) -> None:
        await refused(servers(new_database("sqlite"), new_database("sqlite")), "a SQLite file has no replicas")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbPair]:
    pair = MariaDbPair(tmp_path_factory.mktemp("pair"))
    try:
        yield pair.start()
    finally:
        pair.kill()


class TestReplicas:
    async def test_a_primary_and_its_replica_are_taken(self, pair: MariaDbPair) -> None:
        primary, replica = pair.create_database("taken")
        await check_servers(servers(primary, replica))
        await check_servers(servers(replica, primary, primary=1))

    async def test_the_wrong_way_round_is_refused(self, pair: MariaDbPair) -> None:
        primary, replica = pair.create_database("swapped")
        await refused(servers(replica, primary), f":{pair.replica.port}/swapped takes no writes")

    async def test_a_replica_that_does_not_replicate_is_refused(
        self, pair: MariaDbPair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server_check, "_REPLICATION_MS", 1000)
        primary, replica = pair.create_database("apart")
        pair.stop_replication()
        try:
            await refused(
                servers(primary, replica), f":{pair.replica.port}/apart does not replicate from .*:{pair.primary.port}"
            )
        finally:
            pair.resume_replication()

    async def test_a_replica_that_takes_writes_is_refused(self, pair: MariaDbPair) -> None:
        primary, replica = pair.create_database("writable")
        pair.replica.administer("set global read_only = off")
        try:
            await refused(servers(primary, replica), "takes writes, and is to be a replica")
        finally:
            pair.replica.administer("set global read_only = on")

    async def test_a_user_that_may_write_to_a_read_only_replica_is_refused(self, pair: MariaDbPair) -> None:
        primary, replica = pair.create_database("mighty")
        mighty = re.sub("penstock:penstock", "admin:admin", replica)
        await refused(servers(primary, mighty), "takes writes, and is to be a replica")

    async def test_replicas_of_postgresql_are_told_apart_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server_check, "_REPLICATION_MS", 1000)
        primary, replica = PostgresProcess(), PostgresProcess()
        try:
            primary.start()
            replica.follow(primary)
            here = primary.create_database("orders")
            there = here.replace(f":{primary.port}/", f":{replica.port}/")
            until(lambda: bool(replica.administer("select 1 from pg_database where datname = 'orders'")), "it is there")
            await check_servers(servers(here, there))
            await refused(servers(there, here), f":{replica.port}/orders takes no writes")
            with pytest.raises(ServerRefused, match="takes no writes; make it writable first"):
                await check_primary(DatabaseAddress.parse(there))
            replica.administer("select pg_wal_replay_pause()")
            await refused(servers(here, there), "does not replicate from")
            replica.administer("select pg_wal_replay_resume()")
            replica.administer("select pg_promote()")
            await check_primary(DatabaseAddress.parse(there))
            await refused(servers(here, there), "does not replicate from")
        finally:
            replica.remove()
            primary.remove()

    async def test_nothing_is_left_on_a_replica_by_looking_whether_it_takes_writes(self, pair: MariaDbPair) -> None:
        primary, replica = pair.create_database("traceless")
        await check_servers(servers(primary, replica))

        def rows(connection: Connection) -> list[tuple[object, ...]]:
            return connection.execute("SELECT id, cluster_id FROM queue_cluster ORDER BY id")

        found = []
        for url in (primary, replica):
            database = await Database.open(DatabaseAddress.parse(url))
            found.append(await database.run(rows, is_read_only=True))
            await database.close()
        assert found[0] == found[1]
        assert [row[0] for row in found[0]] == [1, 2]
