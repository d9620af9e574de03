"""What is particular to ZooKeeper: several connections, sizes, and a ZooKeeper that goes away and comes back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest

from penstock.clock import SystemClock
from penstock.cluster.coordination.contract import (
    MAX_COMMIT_BYTES,
    Create,
    Node,
    Put,
    commit_bytes,
)
from penstock.cluster.coordination.zookeeper import MAX_CHROOT_BYTES, ZooKeeperCoordination
from penstock.errors import ConflictError, CoordinationError
from support.ports import free_ports
from support.zookeeper import TICK_MS, Ensemble, ZooKeeperProcess

from .conftest import SESSION_MS, Connect, check_renewals, eventually
from .random_commits import judge_random_commits

COMMITS = 15


class TestTwoConnections:
    async def test_each_hears_of_the_commits_of_both_in_one_order(
        self, zookeeper: ZooKeeperProcess, connect: Connect
    ) -> None:
        one, other = await connect(zookeeper.address), await connect(zookeeper.address)
        heard: list[list[str]] = [[], []]
        one.watch("/", heard[0].extend)
        other.watch("/", heard[1].extend)
        await asyncio.gather(*((one, other)[number % 2].commit(Create(f"/{number}", b"")) for number in range(40)))
        await eventually(lambda: len(heard[0]) == len(heard[1]) == 40, "both have heard of everything")
        assert heard[0] == heard[1]

    async def test_of_two_commits_on_one_clock_one_conflicts(
        self, zookeeper: ZooKeeperProcess, connect: Connect
    ) -> None:
        one, other = await connect(zookeeper.address), await connect(zookeeper.address)
        for round_number in range(10):
            results = await asyncio.gather(
                one.commit(Create(f"/one-{round_number}", b""), seen=round_number),
                other.commit(Create(f"/other-{round_number}", b""), seen=round_number),
                return_exceptions=True,
            )
            assert sorted(type(result).__name__ for result in results) == ["ConflictError", "int"]
        assert await one.clock() == await other.clock() == 10

    async def test_a_lease_is_seen_by_others_and_gone_when_its_connection_closes(
        self, zookeeper: ZooKeeperProcess, connect: Connect
    ) -> None:
        one, other = await connect(zookeeper.address), await connect(zookeeper.address)
        told: list[Sequence[str]] = []
        other.watch_children("/leases", told.append)
        clock = await one.commit(Create("/leases", b""), Create("/leases/1", b"", leased=True))
        await eventually(lambda: told[-1:] == [["1"]], "the lease is told of")
        await one.close()
        await eventually(lambda: told[-1:] == [[]], "the lease is told to be gone")
        assert await other.clock() == clock

    async def test_one_who_cannot_be_told_what_has_changed_is_told_to_read_everything(
        self, zookeeper: ZooKeeperProcess, connect: Connect
    ) -> None:
        one, other = await connect(zookeeper.address), await connect(zookeeper.address)
        heard: list[Sequence[str]] = []
        other.watch("/some/part", heard.append)
        await one.commit(*(Create(f"/{'x' * 90}{number}", b"") for number in range(800)))
        await eventually(lambda: heard, "the other has heard")
        assert heard == [["/some/part"]]


@pytest.mark.parametrize("seed", range(3))
async def test_the_tree_is_what_the_commits_make_in_the_order_of_the_clock(
    zookeeper: ZooKeeperProcess, connect: Connect, seed: int
) -> None:
    trees = [await connect(zookeeper.address) for _ in range(3)]
    await judge_random_commits(trees, seed, COMMITS)


class TestSizes:
    async def test_a_value_that_is_too_large_is_refused_by_name(
        self, zookeeper: ZooKeeperProcess, connect: Connect
    ) -> None:
        tree = await connect(zookeeper.address)
        with pytest.raises(CoordinationError, match="the value of /a is too large") as caught:
            await tree.commit(Create("/a", bytes(MAX_COMMIT_BYTES)))
        assert not isinstance(caught.value, ConflictError)
        assert await tree.clock() == 0

    async def test_a_commit_that_is_too_large_is_refused(self, zookeeper: ZooKeeperProcess, connect: Connect) -> None:
        tree = await connect(zookeeper.address)
        with pytest.raises(CoordinationError, match="a commit of 3 changes is too large"):
            await tree.commit(*(Create(f"/{number}", bytes(400_000)) for number in range(3)))
        assert await tree.clock() == 0

    @pytest.mark.parametrize("value_bytes", [0, 10_000, MAX_COMMIT_BYTES - 200])
    async def test_the_largest_commit_goes_through(self, zookeeper: ZooKeeperProcess, value_bytes: int) -> None:
        chroot = f"/{value_bytes}".ljust(MAX_CHROOT_BYTES, "x")
        one = commit_bytes([Create("/00000", bytes(value_bytes))])
        tree = await ZooKeeperCoordination.open(zookeeper.address, chroot, 10_000, SystemClock())
        commit = [Create(f"/{number:05}", bytes(value_bytes)) for number in range(MAX_COMMIT_BYTES // one)]
        assert await tree.commit(*commit) == 1
        assert len(await tree.children("/")) == len(commit)
        await tree.close()


class TestSession:
    async def test_no_zookeeper_at_the_start_is_said_with_what_was_tried(self, chroot: str) -> None:
        nobody = f"127.0.0.1:{free_ports(1)[0]}"
        with pytest.raises(CoordinationError, match=f"no ZooKeeper answers at {nobody}, tried for 300 ms"):
            await ZooKeeperCoordination.open(nobody, chroot, SESSION_MS, SystemClock(), patience_ms=300)

    async def test_a_chroot_is_needed(self, zookeeper: ZooKeeperProcess) -> None:
        for chroot in ("/", "", "no/slash", "/" + "x" * MAX_CHROOT_BYTES):
            with pytest.raises(ValueError):
                await ZooKeeperCoordination.open(zookeeper.address, chroot, SESSION_MS, SystemClock())

    async def test_the_lease_lasts_as_long_as_the_server_grants_not_as_long_as_asked(
        self, zookeeper: ZooKeeperProcess, connect: Connect
    ) -> None:
        before_ms = SystemClock().monotonic_ms()
        short, long = await connect(zookeeper.address, 10), await connect(zookeeper.address, 3_600_000)
        after_ms = SystemClock().monotonic_ms()
        await eventually(lambda: short.lease_until_ms() >= before_ms + 0.75 * 2 * TICK_MS, "two ticks are the least")
        assert before_ms < long.lease_until_ms() <= after_ms + 0.75 * 20 * TICK_MS

    async def test_a_renewal_counts_only_for_who_has_read_what_was_committed_before(
        self, zookeeper: ZooKeeperProcess, connect: Connect
    ) -> None:
        tree, other = await connect(zookeeper.address, SESSION_MS), await connect(zookeeper.address)
        await check_renewals(tree, other)

    async def test_a_closed_connection_holds_no_lease(self, zookeeper: ZooKeeperProcess, connect: Connect) -> None:
        tree = await connect(zookeeper.address)
        assert tree.lease_until_ms() > SystemClock().monotonic_ms()
        await tree.close()
        assert tree.lease_until_ms() == -math.inf

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    async def test_a_connection_whose_thread_has_ended_is_made_anew(
        self, zookeeper: ZooKeeperProcess, connect: Connect
    ) -> None:
        tree = await connect(zookeeper.address, SESSION_MS)
        lost: list[bool] = []
        tree.on_session_lost(lambda: lost.append(True))
        # Nothing that kazoo could send: its thread does not survive that.
        client = tree._session._client
        client._queue.append((object(), None))
        client._connection._write_sock.send(b"\0")
        await eventually(lambda: lost, "the session is lost")
        assert await eventually(lambda: tree.commit(Create("/a", b"")), "the connection is there again") == 1


class TestZooKeeperGoesAway:
    async def test_a_restart_is_survived_with_watches_and_leases(
        self, own_zookeeper: ZooKeeperProcess, connect: Connect
    ) -> None:
        one, other = await connect(own_zookeeper.address), await connect(own_zookeeper.address)
        heard: list[str] = []
        told: list[Sequence[str]] = []
        lost: list[bool] = []
        other.watch("/", heard.extend)
        other.watch_children("/", told.append)
        other.on_session_lost(lambda: lost.append(True))
        await one.commit(Create("/a", b""), Create("/lease", b"", leased=True))
        own_zookeeper.kill()
        own_zookeeper.start()
        await eventually(lambda: one.clock(), "the connection is there again")
        assert await one.commit(Create("/b", b"")) == 2
        await eventually(lambda: heard == ["/a", "/lease", "/b"], "the commits are heard of")
        await eventually(lambda: told[-1:] == [["a", "b", "lease"]], "the children are told")
        assert not lost

    async def test_the_lease_is_not_relied_on_when_nobody_answers_and_a_commit_says_that_its_outcome_is_unknown(
        self, own_zookeeper: ZooKeeperProcess, connect: Connect
    ) -> None:
        tree = await connect(own_zookeeper.address, SESSION_MS)
        await tree.commit(Create("/lease", b"", leased=True))
        own_zookeeper.pause()
        committing = asyncio.create_task(tree.commit(Create("/a", b"")))
        await eventually(lambda: tree.lease_until_ms() < SystemClock().monotonic_ms(), "the lease time passes")
        with pytest.raises(CoordinationError, match="unknown"):
            await committing
        with pytest.raises(CoordinationError, match="nothing was sent"):
            await tree.commit(Create("/b", b""))
        own_zookeeper.resume()
        await eventually(lambda: tree.lease_until_ms() > SystemClock().monotonic_ms(), "the lease time is renewed")
        # Once or not at all, and the second one not at all.
        assert (await tree.clock(), await tree.get("/a")) in [(1, None), (2, Node(b"", 0))]
        assert await tree.get("/b") is None

    async def test_closing_does_not_wait_for_a_zookeeper_that_does_not_answer(
        self, own_zookeeper: ZooKeeperProcess, connect: Connect
    ) -> None:
        tree = await connect(own_zookeeper.address)
        own_zookeeper.pause()
        committing = asyncio.create_task(tree.commit(Create("/a", b"")))
        await tree.close()
        # A request's own time would be ten seconds; that nobody answers is not waited for.
        assert not committing.done() or committing.exception() is not None
        with pytest.raises(CoordinationError):
            await committing

    async def test_a_broker_that_stops_does_not_wait_for_the_connection(
        self, own_zookeeper: ZooKeeperProcess, connect: Connect
    ) -> None:
        tree = await connect(own_zookeeper.address)
        own_zookeeper.kill()
        with pytest.raises(CoordinationError):
            await tree.commit(Create("/a", b""))
        waiting = asyncio.create_task(tree.get("/a"))
        await asyncio.sleep(0.1)
        tree.stop_waiting()
        with pytest.raises(CoordinationError, match="nothing was sent"):
            await tree.get("/a")
        assert not waiting.done()
        waiting.cancel()


class TestEnsemble:
    async def test_the_tree_goes_on_when_the_leader_dies(self, ensemble: Ensemble, connect: Connect) -> None:
        trees = [await connect(ensemble.servers) for _ in range(3)]
        heard: list[list[str]] = [[] for _ in trees]
        lost: list[bool] = []
        for tree, paths in zip(trees, heard, strict=True):
            tree.watch("/", paths.extend)
            tree.on_session_lost(lambda: lost.append(True))
        await trees[0].commit(Create("/before", b""), Create("/lease", b"", leased=True))
        ensemble.leader().kill()
        await eventually(lambda: trees[1].commit(Create("/after", b"")), "a commit goes through again")
        await eventually(
            lambda: all(paths == ["/before", "/lease", "/after"] for paths in heard), "all have heard of all commits"
        )
        assert not lost
        for tree in trees:
            assert await eventually(lambda tree=tree: tree.children("/"), "it can be read") == [
                "after",
                "before",
                "lease",
            ]

    async def test_without_a_majority_commits_fail_and_come_back_with_it(
        self, ensemble: Ensemble, connect: Connect
    ) -> None:
        tree = await connect(ensemble.servers, SESSION_MS)
        await tree.commit(Create("/a", b""))
        for member in ensemble.members[:2]:
            member.kill()
        with pytest.raises(CoordinationError) as caught:
            await tree.commit(Put("/a", b"lost", 0))
        assert not isinstance(caught.value, ConflictError)
        await eventually(lambda: tree.lease_until_ms() < SystemClock().monotonic_ms(), "the lease time passes")
        for member in ensemble.members[:2]:
            member.launch()
        clock = await eventually(lambda: tree.clock(), "it can be read again")
        node = await tree.get("/a")
        assert node is not None and node.version == clock - 1
        assert await tree.commit(Put("/a", b"back", node.version), seen=clock) == clock + 1

    async def test_a_server_without_its_leader_answers_reads_but_renews_no_lease(
        self, ensemble: Ensemble, connect: Connect
    ) -> None:
        alone = next(member for member in ensemble.members if member.mode() == "follower")
        others = [member for member in ensemble.members if member is not alone]
        tree = await connect(alone.address, SESSION_MS)
        # No keep-alive is under way: a read waits for the writes of its session.
        await eventually(lambda: tree.lease_until_ms(0) > SystemClock().monotonic_ms(), "the session is renewed")
        for member in others:
            member.pause()
        paused_ms = SystemClock().monotonic_ms()
        assert await tree.get("/") is not None
        assert await tree.clock() == 0
        await eventually(lambda: SystemClock().monotonic_ms() > paused_ms + SESSION_MS, "a session's time has passed")
        assert tree.lease_until_ms() < paused_ms + SESSION_MS
        for member in others:
            member.resume()
        await eventually(lambda: tree.lease_until_ms() > SystemClock().monotonic_ms(), "the lease time is renewed")
