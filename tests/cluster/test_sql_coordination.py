"""What is particular to a tree in a database: several connections, leases by its clock, and one that goes away."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import support
from penstock.clock import SystemClock
from penstock.cluster.coordination.contract import Create, Node, Put
from penstock.cluster.coordination.sql import SqlCoordination
from penstock.cluster.coordination.sql_tree import SqlTree
from penstock.config.database_address import DatabaseAddress
from penstock.errors import ConflictError, CoordinationError
from penstock.sql.database import Connection, Database
from support.lost_commits import Lost, LostCommits
from support.ports import free_ports
from support.programs import dying_with_us, environment
from support.shifted_clock import ShiftedClocks
from support.stores import DATABASES, SERVERS, DatabaseServer, MariaDbProcess, NewDatabase

from .conftest import SESSION_MS, check_renewals, eventually
from .random_commits import judge_random_commits

LONG_SESSION_MS = 20_000
COMMITS = 8

ConnectSql = Callable[..., Coroutine[Any, Any, SqlCoordination]]
ON_SERVERS = pytest.mark.parametrize("address", SERVERS, indirect=True)


@pytest.fixture(params=DATABASES)
def address(request: pytest.FixtureRequest, new_database: NewDatabase) -> DatabaseAddress:
    return DatabaseAddress.parse(new_database(request.param))


@pytest.fixture
async def connect_sql(new_database: NewDatabase) -> AsyncIterator[ConnectSql]:
    """Opens connections to a tree; all are closed at the end."""
    opened: list[SqlCoordination] = []

    async def open_one(
        address: DatabaseAddress, session_ms: int = LONG_SESSION_MS, namespace: str = "tests"
    ) -> SqlCoordination:
        opened.append(await SqlCoordination.open(address, namespace, session_ms, SystemClock(), 30_000))
        return opened[-1]

    yield open_one
    for tree in opened:
        await tree.close()


@pytest.fixture
async def database(address: DatabaseAddress) -> AsyncIterator[Database]:
    """Beside the tree, to look into its tables."""
    opened = await Database.open(address, connections=2)
    yield opened
    await opened.close()


@pytest.fixture
def own_address(own_server: DatabaseServer) -> DatabaseAddress:
    return DatabaseAddress.parse(own_server.create_database(f"own_{os.urandom(6).hex()}"))


class TestTwoConnections:
    async def test_each_hears_of_the_commits_of_both_in_one_order(
        self, address: DatabaseAddress, connect_sql: ConnectSql
    ) -> None:
        one, other = await connect_sql(address), await connect_sql(address)
        heard: list[list[str]] = [[], []]
        one.watch("/", heard[0].extend)
        other.watch("/", heard[1].extend)
        await asyncio.gather(*((one, other)[number % 2].commit(Create(f"/{number}", b"")) for number in range(40)))
        await eventually(lambda: len(heard[0]) == len(heard[1]) == 40, "both have heard of everything")
        assert heard[0] == heard[1]

    async def test_of_two_commits_on_one_clock_one_conflicts(
        self, address: DatabaseAddress, connect_sql: ConnectSql
    ) -> None:
        one, other = await connect_sql(address), await connect_sql(address)
        for round_number in range(5):
            results = await asyncio.gather(
                one.commit(Create(f"/one-{round_number}", b""), seen=round_number),
                other.commit(Create(f"/other-{round_number}", b""), seen=round_number),
                return_exceptions=True,
            )
            assert sorted(type(result).__name__ for result in results) == ["ConflictError", "int"]
        assert await one.clock() == await other.clock() == 5

    async def test_a_lease_is_seen_by_others_and_gone_when_its_connection_closes(
        self, address: DatabaseAddress, connect_sql: ConnectSql
    ) -> None:
        one, other = await connect_sql(address), await connect_sql(address)
        told: list[Sequence[str]] = []
        other.watch_children("/leases", told.append)
        clock = await one.commit(Create("/leases", b""), Create("/leases/1", b"", leased=True))
        await eventually(lambda: told[-1:] == [["1"]], "the lease is told of")
        await one.close()
        await eventually(lambda: told[-1:] == [[]], "the lease is told to be gone")
        assert await other.clock() == clock

    async def test_one_who_cannot_be_told_what_has_changed_is_told_to_read_everything(
        self, address: DatabaseAddress, connect_sql: ConnectSql
    ) -> None:
        one, other = await connect_sql(address), await connect_sql(address)
        heard: list[Sequence[str]] = []
        other.watch("/some/part", heard.append)
        await one.commit(*(Create(f"/{'x' * 90}{number}", b"") for number in range(800)))
        await eventually(lambda: heard, "the other has heard")
        assert heard == [["/some/part"]]

    async def test_trees_of_other_namespaces_are_other_trees(
        self, address: DatabaseAddress, connect_sql: ConnectSql
    ) -> None:
        one, other = await connect_sql(address), await connect_sql(address, namespace="tests/2")
        heard: list[Sequence[str]] = []
        other.watch("/", heard.append)
        await one.commit(Create("/a", b"one"))
        await one.commit(Put("/a", b"two", 0), Create("/lease", b"", leased=True))
        assert await other.commit(Create("/a", b"other")) == 1
        assert await one.get("/a") == Node(b"two", 1)
        assert await other.get("/a") == Node(b"other", 0)
        assert await other.children("/") == ["a"]
        assert heard == [["/a"]]

    async def test_paths_that_are_alike_are_different_paths(
        self, address: DatabaseAddress, connect_sql: ConnectSql
    ) -> None:
        tree = await connect_sql(address)
        names = ["a", "A", "ä", "a ", "%", "_", "\\", "'", '"', "?", "x" * 2_000, "x" * 2_001, "汉字😀"]
        await tree.commit(*(Create(f"/{name}", name.encode()) for name in names))
        assert await tree.children("/") == sorted(names)
        for name in names:
            assert await tree.get(f"/{name}") == Node(name.encode(), 0)

    async def test_a_large_commit_goes_through(self, address: DatabaseAddress, connect_sql: ConnectSql) -> None:
        tree = await connect_sql(address)
        names = [f"{number:05}" for number in range(3_000)]
        await tree.commit(Create("/many", b""), *(Create(f"/many/{name}", bytes(100)) for name in names))
        assert await tree.children("/many") == names


@pytest.mark.parametrize("seed", range(2))
async def test_the_tree_is_what_the_commits_make_in_the_order_of_the_clock(
    address: DatabaseAddress, connect_sql: ConnectSql, seed: int
) -> None:
    trees = [await connect_sql(address) for _ in range(3)]
    await judge_random_commits(trees, seed, COMMITS)


class TestSession:
    @pytest.mark.parametrize("scheme", ["mysql", "postgresql"])
    async def test_no_database_at_the_start_is_said(self, scheme: str) -> None:
        nobody = DatabaseAddress.parse(f"{scheme}://penstock:secret@127.0.0.1:{free_ports(1)[0]}/tree")
        with pytest.raises(CoordinationError, match=str(nobody.port)) as caught:
            await SqlCoordination.open(nobody, "tests", SESSION_MS, SystemClock(), patience_ms=300)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize("namespace", ["", "a b", "a\n", "x" * 91, "ä"])
    async def test_a_namespace_is_needed(self, tmp_path: Path, namespace: str) -> None:
        with pytest.raises(ValueError):
            await SqlCoordination.open(
                DatabaseAddress.parse(f"sqlite:///{tmp_path}/tree.db"), namespace, SESSION_MS, SystemClock()
            )

    async def test_the_lease_is_counted_from_before_it_was_renewed_and_three_quarters_of_its_time(
        self, address: DatabaseAddress, connect_sql: ConnectSql
    ) -> None:
        before_ms = SystemClock().monotonic_ms()
        tree = await connect_sql(address)
        after_ms = SystemClock().monotonic_ms()
        assert before_ms + 0.75 * LONG_SESSION_MS <= tree.lease_until_ms() <= after_ms + 0.75 * LONG_SESSION_MS
        await tree.close()
        assert tree.lease_until_ms() == -math.inf

    async def test_a_renewal_counts_only_for_who_has_read_what_was_committed_before(
        self, address: DatabaseAddress, connect_sql: ConnectSql
    ) -> None:
        tree, other = await connect_sql(address, SESSION_MS), await connect_sql(address)
        await check_renewals(tree, other)

    async def test_it_is_renewed(self, address: DatabaseAddress, connect_sql: ConnectSql) -> None:
        tree = await connect_sql(address, SESSION_MS)
        first_ms = tree.lease_until_ms()
        await eventually(lambda: tree.lease_until_ms() > first_ms, "the lease is renewed")

    async def test_a_lost_session_takes_its_leases_and_is_followed_by_another(
        self, address: DatabaseAddress, connect_sql: ConnectSql, database: Database
    ) -> None:
        tree, other = await connect_sql(address), await connect_sql(address)
        lost: list[bool] = []
        told: list[Sequence[str]] = []
        tree.on_session_lost(lambda: lost.append(tree.lease_until_ms() == -math.inf))
        other.watch_children("/", told.append)
        clock = await tree.commit(Create("/kept", b""), Create("/lease", b"", leased=True))
        await eventually(lambda: told[-1:] == [["kept", "lease"]], "the lease is told of")
        session = tree._session.id

        def end(connection: Connection) -> int:
            return connection.change("UPDATE penstock_session SET ends_us = 0 WHERE id = ?", session)

        await database.run(end)
        await eventually(lambda: told[-1:] == [["kept"]], "the lease is told to be gone")
        # The tree learns of it when it renews, or when it wants another lease.
        with pytest.raises(CoordinationError, match="the session has ended; nothing was changed"):
            await tree.commit(Create("/lease", b"again", leased=True))
        await eventually(lambda: lost, "the loss is told")
        assert lost == [True]
        assert await eventually(
            lambda: tree.commit(Create("/lease", b"again", leased=True)), "there is another session"
        )
        assert await other.clock() == clock + 1
        assert tree.lease_until_ms() > SystemClock().monotonic_ms()

    async def test_a_session_whose_time_is_over_is_ended_by_the_next_commit(
        self, address: DatabaseAddress, connect_sql: ConnectSql, database: Database
    ) -> None:
        tree, other = await connect_sql(address), await connect_sql(address)
        await tree.commit(Create("/lease", b"first", leased=True))
        for each in (tree, other):
            assert each._polling is not None
            each._polling.cancel()
        session = tree._session.id
        await database.run(
            lambda connection: connection.change("UPDATE penstock_session SET ends_us = 0 WHERE id = ?", session)
        )
        # A poller has found it, and before it does more there is a commit.
        other._expired = (session,)
        assert await other.commit(Create("/lease", b"second", leased=True)) == 2
        assert await other.get("/lease") == Node(b"second", 0)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        pytest.param("DELETE FROM penstock_clock", "the clock of the coordination tree tests is missing", id="no row"),
        pytest.param("DROP TABLE penstock_clock", "penstock_clock", id="no table"),
    ],
)
async def test_a_tree_that_was_deleted_says_so_and_can_be_closed(
    address: DatabaseAddress, connect_sql: ConnectSql, database: Database, statement: str, said: str
) -> None:
    tree = await connect_sql(address)
    await database.run_ddl(lambda connection: connection.execute(statement))
    with pytest.raises(CoordinationError, match=said):
        await tree.commit(Create("/a", b""))
    with pytest.raises(CoordinationError, match=said):
        await tree.clock()
    await tree.close()


class Child:
    """Another process with a lease."""

    def __init__(self, address: DatabaseAddress, session_ms: int) -> None:
        text = str(address).replace(f"//{address.user}@", f"//{address.user}:{address.password}@")
        program = Path(support.__file__).with_name("sql_lease_child.py")
        self._process = subprocess.Popen(
            dying_with_us([sys.executable, str(program), text, str(session_ms)]),
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    async def said(self) -> str:
        """The next line."""
        assert self._process.stdout is not None
        return (await asyncio.to_thread(self._process.stdout.readline)).strip()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Killing twice is allowed."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def new_child(address: DatabaseAddress) -> Iterator[Callable[[int], Child]]:
    children: list[Child] = []

    def start(session_ms: int) -> Child:
        children.append(Child(address, session_ms))
        return children[-1]

    yield start
    for child in children:
        child.close()


class TestProcesses:
    async def test_the_lease_of_a_killed_process_ends_after_its_time_and_not_before(
        self,
        address: DatabaseAddress,
        connect_sql: ConnectSql,
        database: Database,
        new_child: Callable[[int], Child],
    ) -> None:
        tree = await connect_sql(address)
        seen_after_the_kill = False

        def times(connection: Connection) -> tuple[int, list[tuple[int]]]:
            now = connection.execute(f"SELECT {connection.dialect.now_us}")[0][0]
            return now, connection.execute("SELECT ends_us FROM penstock_session WHERE id <> ?", tree._session.id)

        child = new_child(SESSION_MS)
        assert await child.said() == "leased"
        child.kill()
        killed_us, [(ends_us,)] = await database.run(times)
        assert ends_us > killed_us
        while await tree.get("/lease") is not None:
            seen_after_the_kill = True
            await asyncio.sleep(0.02)
        assert seen_after_the_kill
        now_us, left = await database.run(times)
        assert now_us > ends_us
        assert left == []
        await tree.commit(Create("/lease", b"", leased=True))

    async def test_a_process_that_was_stopped_beyond_its_lease_knows_that_it_is_over(
        self, address: DatabaseAddress, connect_sql: ConnectSql, new_child: Callable[[int], Child]
    ) -> None:
        tree = await connect_sql(address)
        child = new_child(SESSION_MS)
        assert await child.said() == "leased"
        child.signal(signal.SIGSTOP)

        async def take() -> bool:
            try:
                await tree.commit(Create("/lease", b"taken", leased=True))
            except ConflictError:
                return False
            return True

        await eventually(take, "the lease is over and another one's")
        child.signal(signal.SIGCONT)
        # It never takes itself for the owner again: that it does not hold is what it says first.
        assert [await child.said() for _ in range(3)] in (
            ["not held", "lost", "ConflictError"],
            # Its session was found to be lost before it looked at the time.
            ["lost", "ConflictError", ""],
        )
        assert await tree.get("/lease") == Node(b"taken", 0)
        assert await tree.get("/stale") is None


class TestClockOfTheDatabase:
    async def test_nobody_loses_a_session_because_it_was_set_ahead(
        self, tmp_path: Path, connect_sql: ConnectSql
    ) -> None:
        clocks = ShiftedClocks(tmp_path)
        server = MariaDbProcess(tmp_path / "mariadb", clocks.environment("mariadb"))
        try:
            address = DatabaseAddress.parse(server.start().create_database("ahead"))
            trees = [await connect_sql(address, SESSION_MS) for _ in range(2)]
            lost: list[bool] = []
            for number, tree in enumerate(trees):
                tree.on_session_lost(lambda: lost.append(True))
                await tree.commit(Create(f"/{number}", b"", leased=True))
            clocks.set("mariadb", 3_600_000)
            until_ms = SystemClock().monotonic_ms() + 1.5 * SESSION_MS
            await eventually(lambda: SystemClock().monotonic_ms() > until_ms, "a session's time has passed")
            assert not lost
            assert await trees[0].children("/") == ["0", "1"]
            # Those who are gone lose theirs all the same.
            keeping = trees[1]._session._keeping
            assert keeping is not None
            keeping.cancel()

            async def is_alone() -> bool:
                return await trees[0].children("/") == ["0"]

            await eventually(is_alone, "the lease of one that renews no more has ended")
        finally:
            for tree in trees:
                await tree.close()
            server.kill()

    async def test_who_is_gone_is_missed_in_time_although_it_was_set_back(
        self, address: DatabaseAddress, connect_sql: ConnectSql, database: Database
    ) -> None:
        trees = [await connect_sql(address, SESSION_MS) for _ in range(2)]
        lost: list[bool] = []
        trees[0].on_session_lost(lambda: lost.append(True))
        for number, tree in enumerate(trees):
            await tree.commit(Create(f"/{number}", b"", leased=True))
        keeping = trees[1]._session._keeping
        assert keeping is not None
        keeping.cancel()
        # What was renewed by a clock that was an hour ahead.
        sql = "UPDATE penstock_session SET ends_us = ends_us + 3600000000"
        await database.run(lambda connection: connection.change(sql))

        async def is_alone() -> bool:
            return await trees[0].children("/") == ["0"]

        await eventually(is_alone, "the lease of one that renews no more has ended")
        assert not lost

    async def test_a_session_of_a_broker_that_does_not_say_its_length_is_left_as_it_is(
        self, address: DatabaseAddress, connect_sql: ConnectSql, database: Database
    ) -> None:
        """One of the version before, which may still run."""
        await connect_sql(address)
        tree = SqlTree("tests")

        def begin(connection: Connection) -> None:
            ends_us = f"{connection.dialect.now_us} + 3600000000"
            connection.change(f"INSERT INTO penstock_session (id, namespace, ends_us) VALUES ('a', 'tests', {ends_us})")

        await database.run(begin)
        assert not (await database.run(lambda connection: tree.look(connection, 0), is_read_only=True)).has_overlong
        assert await database.run(tree.shorten_sessions) == 0


class TestDatabaseGoesAway:
    async def test_a_restart_is_survived_with_watches_and_leases(
        self, own_server: DatabaseServer, own_address: DatabaseAddress, connect_sql: ConnectSql
    ) -> None:
        one, other = await connect_sql(own_address), await connect_sql(own_address)
        heard: list[str] = []
        told: list[Sequence[str]] = []
        lost: list[bool] = []
        other.watch("/", heard.extend)
        other.watch_children("/", told.append)
        for tree in (one, other):
            tree.on_session_lost(lambda: lost.append(True))
        await one.commit(Create("/a", b""), Create("/lease", b"", leased=True))
        own_server.kill()
        own_server.start()
        assert await eventually(lambda: one.commit(Create("/b", b"")), "the database is there again") == 2
        await eventually(lambda: heard == ["/a", "/lease", "/b"], "the commits are heard of")
        await eventually(lambda: told[-1:] == [["a", "b", "lease"]], "the children are told")
        assert not lost

    async def test_nobody_loses_a_session_because_the_database_was_away(
        self, own_server: DatabaseServer, own_address: DatabaseAddress, connect_sql: ConnectSql
    ) -> None:
        trees = [await connect_sql(own_address, SESSION_MS) for _ in range(2)]
        lost: list[bool] = []
        for number, tree in enumerate(trees):
            tree.on_session_lost(lambda: lost.append(True))
            await tree.commit(Create(f"/{number}", b"", leased=True))
        own_server.pause()
        until_ms = SystemClock().monotonic_ms() + 1.5 * SESSION_MS
        await eventually(lambda: SystemClock().monotonic_ms() > until_ms, "a session's time has passed")
        assert all(tree.lease_until_ms() < SystemClock().monotonic_ms() for tree in trees)
        own_server.resume()
        await eventually(
            lambda: all(tree.lease_until_ms() > SystemClock().monotonic_ms() for tree in trees),
            "the lease time is renewed",
        )
        until_ms = SystemClock().monotonic_ms() + 1.5 * SESSION_MS
        await eventually(lambda: SystemClock().monotonic_ms() > until_ms, "another session's time has passed")
        assert not lost
        assert await trees[0].children("/") == ["0", "1"]

    async def test_a_commit_into_a_frozen_database_fails_and_changes_the_tree_once_or_not_at_all(
        self, own_server: DatabaseServer, own_address: DatabaseAddress, connect_sql: ConnectSql
    ) -> None:
        tree = await connect_sql(own_address, SESSION_MS)
        own_server.pause()
        with pytest.raises(CoordinationError) as caught:
            await tree.commit(Create("/a", b""))
        assert not isinstance(caught.value, ConflictError)
        own_server.resume()
        clock = await eventually(lambda: tree.commit(Create("/b", b"")), "a commit goes through again")
        assert (clock, await tree.get("/a")) in [(1, None), (2, Node(b"", 0))]

    async def test_closing_does_not_wait_for_a_database_that_does_not_answer(
        self, own_server: DatabaseServer, own_address: DatabaseAddress, connect_sql: ConnectSql
    ) -> None:
        tree = await connect_sql(own_address, 600_000)
        own_server.pause()
        committing = asyncio.create_task(tree.commit(Create("/a", b"")))
        await asyncio.sleep(0)
        # A commit's own time would be ten minutes.
        await tree.close()
        with pytest.raises(CoordinationError):
            await committing
        own_server.resume()

    async def test_a_broker_that_stops_does_not_wait_for_the_database(
        self, own_server: DatabaseServer, own_address: DatabaseAddress, connect_sql: ConnectSql
    ) -> None:
        tree = await connect_sql(own_address, 600_000)
        own_server.kill()
        waiting = asyncio.create_task(tree.get("/a"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        tree.stop_waiting()
        with pytest.raises(CoordinationError, match="nothing was changed"):
            await tree.commit(Create("/a", b""))
        with pytest.raises(CoordinationError, match="nothing was changed"):
            await waiting
        own_server.start()
        assert await tree.get("/a") is None

    @ON_SERVERS
    @pytest.mark.parametrize(("lost", "expected"), [(Lost.COMMIT, None), (Lost.ANSWER, Node(b"", 0))])
    async def test_a_commit_without_an_answer_has_an_unknown_outcome_and_is_not_made_again(
        self, address: DatabaseAddress, connect_sql: ConnectSql, lost: Lost, expected: Node | None
    ) -> None:
        network = LostCommits(address)
        tree = await connect_sql(await network.start())
        heard: list[Sequence[str]] = []
        tree.watch("/", heard.append)
        network.lose(lost, b"/in-doubt")
        with pytest.raises(CoordinationError, match="the outcome of a commit is unknown"):
            await tree.commit(Create("/in-doubt", b""))
        assert await tree.get("/in-doubt") == expected
        assert await tree.clock() == (0 if expected is None else 1)
        await tree.commit(Create("/next", b""))
        await eventually(lambda: heard[-1:] == [["/next"]], "the next commit is heard of")
        assert heard == ([] if expected is None else [["/in-doubt"]]) + [["/next"]]
        await tree.close()
        await network.close()
