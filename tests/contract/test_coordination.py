"""What every coordination engine promises; each engine is a parameter of `tree`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock.clock import SystemClock
from penstock.cluster.coordination.contract import Check, Coordination, Create, Delete, Node, Put
from penstock.errors import ConflictError, CoordinationError
from support.tree import Opener


class TestNodes:
    async def test_a_path_never_created_holds_nothing(self, tree: Coordination) -> None:
        assert await tree.get("/nothing") is None

    async def test_a_created_node_starts_at_version_zero(self, tree: Coordination) -> None:
        await tree.commit(Create("/a", b"one"))
        assert await tree.get("/a") == Node(b"one", 0)

    async def test_each_put_raises_the_version_by_one(self, tree: Coordination) -> None:
        await tree.commit(Create("/a", b"one"))
        await tree.commit(Put("/a", b"two", 0))
        await tree.commit(Put("/a", b"three", 1))
        assert await tree.get("/a") == Node(b"three", 2)

    async def test_a_deleted_node_is_gone_and_can_be_created_anew_at_version_zero(self, tree: Coordination) -> None:
        await tree.commit(Create("/a", b"one"))
        await tree.commit(Put("/a", b"two", 0))
        await tree.commit(Delete("/a", 1))
        assert await tree.get("/a") is None
        await tree.commit(Create("/a", b"again"))
        assert await tree.get("/a") == Node(b"again", 0)

    async def test_values_are_any_bytes(self, tree: Coordination) -> None:
        value = bytes(range(256)) * 1000
        await tree.commit(Create("/a", value), Create("/empty", b""))
        assert await tree.get("/a") == Node(value, 0)
        assert await tree.get("/empty") == Node(b"", 0)

    async def test_children_are_the_sorted_names_one_level_down(self, tree: Coordination) -> None:
        await tree.commit(
            Create("/a", b""),
            Create("/a/c", b""),
            Create("/a/b", b""),
            Create("/a/b/x", b""),
            Create("/ab", b""),
        )
        assert await tree.children("/a") == ["b", "c"]
        assert await tree.children("/") == ["a", "ab"]
        assert await tree.children("/a/c") == []
        assert await tree.children("/nothing") == []

    @pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/a\0", "/a\n", "/a\ud800", "/a/.", "/.."])
    async def test_a_malformed_path_is_refused(self, tree: Coordination, path: str) -> None:
        with pytest.raises(ValueError):
            await tree.get(path)
        with pytest.raises(ValueError):
            await tree.commit(Create(path, b""))

    async def test_the_root_exists_and_cannot_be_written(self, tree: Coordination) -> None:
        assert await tree.get("/") == Node(b"", 0)
        for change in (Create("/", b""), Put("/", b"", 0), Delete("/", 0), Check("/", 0)):
            with pytest.raises(ValueError):
                await tree.commit(change)

    async def test_the_clock_is_not_seen_as_a_node_and_cannot_be_written(self, tree: Coordination) -> None:
        await tree.commit(Create("/a", b""))
        assert await tree.get("/clock") is None
        assert await tree.children("/") == ["a"]
        for change in (Put("/clock", b"", 1), Create("/clock/a", b"")):
            with pytest.raises(ValueError):
                await tree.commit(change)


class TestCommit:
    async def test_a_later_change_sees_the_earlier_ones(self, tree: Coordination) -> None:
        await tree.commit(Create("/a", b""), Create("/a/b", b"1"), Put("/a/b", b"2", 0), Put("/a/b", b"3", 1))
        assert await tree.get("/a/b") == Node(b"3", 2)

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(Create("/there", b""), id="created twice"),
            pytest.param(Create("/missing/child", b""), id="no parent"),
            pytest.param(Put("/missing", b"", 0), id="put without node"),
            pytest.param(Put("/there", b"", 1), id="put at a later version"),
            pytest.param(Put("/changed", b"", 0), id="put at an earlier version"),
            pytest.param(Delete("/missing", 0), id="delete without node"),
            pytest.param(Delete("/changed", 0), id="delete at an earlier version"),
            pytest.param(Delete("/parent", 0), id="delete with children"),
            pytest.param(Check("/missing", 0), id="check without node"),
            pytest.param(Check("/changed", 0), id="check at an earlier version"),
            pytest.param(Put("/there", b"", -1), id="put at a negative version"),
            pytest.param(Delete("/there", 2**40), id="delete at a huge version"),
            pytest.param(Create("/missing/child", b"", leased=True), id="lease without parent"),
        ],
    )
    async def test_one_failing_change_undoes_all_of_them(
        self, tree: Coordination, change: Create | Put | Delete | Check
    ) -> None:
        await tree.commit(
            Create("/there", b""),
            Create("/changed", b""),
            Create("/parent", b""),
            Create("/parent/child", b""),
            Create("/put", b"before"),
            Create("/deleted", b"before"),
        )
        await tree.commit(Put("/changed", b"c", 0))
        with pytest.raises(ConflictError):
            await tree.commit(Create("/new", b""), Put("/put", b"after", 0), Delete("/deleted", 0), change)
        assert await tree.children("/") == ["changed", "deleted", "parent", "put", "there"]
        assert await tree.get("/put") == Node(b"before", 0)
        assert await tree.get("/deleted") == Node(b"before", 0)
        assert await tree.get("/changed") == Node(b"c", 1)
        assert await tree.clock() == 2

    async def test_a_check_changes_nothing_and_is_not_heard_of(self, tree: Coordination) -> None:
        await tree.commit(Create("/a", b"1"), Create("/b", b""))
        heard: list[Sequence[str]] = []
        tree.watch("/", heard.append)
        await tree.commit(Check("/a", 0), Put("/b", b"2", 0), Check("/b", 1))
        assert await tree.get("/a") == Node(b"1", 0)
        assert heard == [["/b"]]

    async def test_of_many_writers_at_one_version_exactly_one_wins(self, tree: Coordination) -> None:
        await tree.commit(Create("/a", b""))
        results = await asyncio.gather(
            *(tree.commit(Put("/a", str(writer).encode(), 0)) for writer in range(20)), return_exceptions=True
        )
        winners = [writer for writer, result in enumerate(results) if result == 2]
        assert len(winners) == 1
        assert [type(result) for result in results].count(ConflictError) == 19
        assert await tree.get("/a") == Node(str(winners[0]).encode(), 1)

    async def test_an_empty_commit_does_nothing(self, tree: Coordination) -> None:
        assert await tree.commit() == 0
        assert await tree.children("/") == []

    async def test_what_was_committed_is_there_after_opening_again(self, tree: Coordination, open_tree: Opener) -> None:
        await tree.commit(Create("/a", b""), Create("/a/b", b"kept"))
        await tree.close()
        again = await open_tree()
        assert await again.get("/a/b") == Node(b"kept", 0)


class TestClock:
    async def test_every_commit_moves_the_clock_by_one_and_gives_it_back(self, tree: Coordination) -> None:
        assert await tree.clock() == 0
        assert await tree.commit(Create("/a", b""), Create("/b", b"")) == 1
        assert await tree.commit(Put("/a", b"", 0)) == 2
        assert await tree.commit(Check("/a", 1)) == 3
        assert await tree.clock() == 3

    async def test_a_commit_on_the_latest_clock_goes_through(self, tree: Coordination) -> None:
        assert await tree.commit(Create("/a", b""), seen=0) == 1
        assert await tree.commit(Create("/b", b""), seen=1) == 2
        assert await tree.commit(seen=2) == 2

    async def test_a_commit_on_an_older_clock_conflicts_whatever_was_changed(self, tree: Coordination) -> None:
        seen = await tree.commit(Create("/a", b""))
        await tree.commit(Create("/b", b""))
        with pytest.raises(ConflictError):
            await tree.commit(Put("/a", b"late", 0), seen=seen)
        with pytest.raises(ConflictError):
            await tree.commit(seen=seen)
        with pytest.raises(ConflictError):
            await tree.commit(Put("/a", b"from the future", 0), seen=seen + 2)
        assert await tree.get("/a") == Node(b"", 0)
        assert await tree.clock() == seen + 1

    async def test_of_many_commits_on_one_clock_exactly_one_wins(self, tree: Coordination) -> None:
        results = await asyncio.gather(
            *(tree.commit(Create(f"/{writer}", b""), seen=0) for writer in range(10)), return_exceptions=True
        )
        assert sorted(map(str, map(type, results))).count(str(ConflictError)) == 9
        assert len(await tree.children("/")) == 1

    async def test_it_says_what_has_changed_since(self, tree: Coordination) -> None:
        await tree.commit(Create("/a", b""))
        await tree.commit(Create("/b", b""), Check("/a", 0))
        await tree.commit(Put("/a", b"", 0), Put("/b", b"", 0))
        assert await tree.changed_since(0) == (3, ["/a", "/b"])
        assert await tree.changed_since(1) == (3, ["/b", "/a"])
        assert await tree.changed_since(3) == (3, [])

    async def test_of_a_clock_that_is_still_to_come_it_cannot_say_anything(self, tree: Coordination) -> None:
        assert await tree.changed_since(1) == (0, None)

    async def test_what_is_long_ago_is_forgotten(self, tree: Coordination) -> None:
        await tree.commit(Create("/a", b""), Create("/b", b""))
        for version in range(110):
            await tree.commit(Put("/a", b"", version))
        assert await tree.changed_since(1) == (111, None)
        assert await tree.changed_since(20) == (111, ["/a"])

    async def test_a_commit_of_very_many_paths_is_told_as_anything(self, tree: Coordination) -> None:
        names = [f"/{'x' * 90}{number}" for number in range(800)]
        await tree.commit(*(Create(name, b"") for name in names))
        assert await tree.changed_since(0) == (1, None)
        await tree.commit(Put(names[0], b"", 0))
        assert await tree.changed_since(1) == (2, [names[0]])

    async def test_it_goes_on_after_opening_again(self, tree: Coordination, open_tree: Opener) -> None:
        await tree.commit(Create("/a", b""))
        await tree.close()
        again = await open_tree()
        assert await again.clock() == 1
        assert await again.commit(Put("/a", b"", 0), seen=1) == 2
        assert await again.changed_since(0) == (2, ["/a"])


class TestLeases:
    async def test_a_leased_node_is_a_node_as_long_as_its_connection_is_open(
        self, tree: Coordination, open_tree: Opener
    ) -> None:
        await tree.commit(Create("/leases", b""), Create("/leases/1", b"mine", leased=True))
        assert await tree.children("/leases") == ["1"]
        await tree.commit(Put("/leases/1", b"still mine", 0), Check("/leases/1", 1))
        assert await tree.get("/leases/1") == Node(b"still mine", 1)
        await tree.close()
        again = await open_tree()
        assert await again.get("/leases/1") is None
        assert await again.children("/leases") == []
        await again.commit(Create("/leases/1", b"another's", leased=True))
        assert await again.get("/leases/1") == Node(b"another's", 0)

    async def test_a_lease_that_is_there_cannot_be_taken(self, tree: Coordination) -> None:
        await tree.commit(Create("/lease", b"", leased=True))
        for leased in (True, False):
            with pytest.raises(ConflictError):
                await tree.commit(Create("/lease", b"", leased=leased))

    async def test_a_lease_is_given_back_by_deleting_it(self, tree: Coordination) -> None:
        await tree.commit(Create("/lease", b"", leased=True))
        await tree.commit(Delete("/lease", 0))
        assert await tree.get("/lease") is None
        await tree.commit(Create("/lease", b"for good"))

    async def test_a_lease_has_no_children(self, tree: Coordination) -> None:
        await tree.commit(Create("/lease", b"", leased=True))
        with pytest.raises(ConflictError):
            await tree.commit(Create("/lease/child", b""))

    async def test_a_lease_of_a_failed_commit_is_not_taken(self, tree: Coordination) -> None:
        with pytest.raises(ConflictError):
            await tree.commit(Create("/lease", b"", leased=True), Check("/missing", 0))
        assert await tree.children("/") == []

    async def test_it_is_held_for_some_time_to_come(self, tree: Coordination) -> None:
        before_ms = SystemClock().monotonic_ms()
        await tree.commit(Create("/lease", b"", leased=True))
        assert tree.lease_until_ms() > before_ms


class TestClose:
    async def test_closing_twice_is_allowed(self, tree: Coordination) -> None:
        await tree.close()
        await tree.close()

    async def test_a_closed_tree_refuses_everything(self, tree: Coordination) -> None:
        await tree.close()
        with pytest.raises(CoordinationError):
            await tree.get("/a")
        with pytest.raises(CoordinationError):
            await tree.commit(Create("/a", b""))

    async def test_a_commit_under_way_is_finished_before_the_tree_closes(
        self, tree: Coordination, open_tree: Opener
    ) -> None:
        committing = asyncio.create_task(tree.commit(Create("/a", b"")))
        await asyncio.sleep(0)
        await tree.close()
        await committing
        again = await open_tree()
        assert await again.get("/a") == Node(b"", 0)
