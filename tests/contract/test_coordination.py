"""What every coordination engine promises; each engine is a parameter of `tree`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from penstock.cluster.coordination import Coordination, Create, Delete, Node, Put
from penstock.cluster.embedded import EmbeddedCoordination
from penstock.errors import ConflictError, CoordinationError

Opener = Callable[[], Awaitable[Coordination]]


@pytest.fixture(params=["embedded"])
async def open_tree(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    """Opens another connection to one and the same tree; all are closed at the end."""
    opened: list[Coordination] = []

    async def open_embedded() -> Coordination:
        opened.append(await EmbeddedCoordination.open(tmp_path / "coordination.db"))
        return opened[-1]

    yield {"embedded": open_embedded}[request.param]
    for tree in opened:
        await tree.close()


@pytest.fixture
async def tree(open_tree: Opener) -> Coordination:
    return await open_tree()


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

    @pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/a\0"])
    async def test_a_malformed_path_is_refused(self, tree: Coordination, path: str) -> None:
        with pytest.raises(ValueError):
            await tree.get(path)
        with pytest.raises(ValueError):
            await tree.commit(Create(path, b""))

    async def test_the_root_exists_and_cannot_be_written(self, tree: Coordination) -> None:
        assert await tree.get("/") == Node(b"", 0)
        for change in (Create("/", b""), Put("/", b"", 0), Delete("/", 0)):
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
        ],
    )
    async def test_one_failing_change_undoes_all_of_them(
        self, tree: Coordination, change: Create | Put | Delete
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

    async def test_of_many_writers_at_one_version_exactly_one_wins(self, tree: Coordination) -> None:
        await tree.commit(Create("/a", b""))
        results = await asyncio.gather(
            *(tree.commit(Put("/a", str(writer).encode(), 0)) for writer in range(20)), return_exceptions=True
        )
        winners = [writer for writer, result in enumerate(results) if result is None]
        assert len(winners) == 1
        assert all(isinstance(result, ConflictError) for result in results if result is not None)
        assert await tree.get("/a") == Node(str(winners[0]).encode(), 1)

    async def test_an_empty_commit_does_nothing(self, tree: Coordination) -> None:
        await tree.commit()
        assert await tree.children("/") == []

    async def test_what_was_committed_is_there_after_opening_again(self, tree: Coordination, open_tree: Opener) -> None:
        await tree.commit(Create("/a", b""), Create("/a/b", b"kept"))
        await tree.close()
        again = await open_tree()
        assert await again.get("/a/b") == Node(b"kept", 0)


class TestWatch:
    async def test_a_watcher_hears_of_a_commit_before_the_committer_goes_on(self, tree: Coordination) -> None:
        heard: list[Sequence[str]] = []
        tree.watch("/", heard.append)
        await tree.commit(Create("/a", b""), Create("/b", b""))
        assert heard == [["/a", "/b"]]

    async def test_a_watcher_hears_only_of_its_part_of_the_tree(self, tree: Coordination) -> None:
        await tree.commit(Create("/a", b""), Create("/ab", b""))
        heard: list[Sequence[str]] = []
        tree.watch("/a", heard.append)
        await tree.commit(Put("/ab", b"1", 0))
        await tree.commit(Create("/a/b", b""), Put("/ab", b"2", 1))
        await tree.commit(Put("/a", b"1", 0))
        await tree.commit(Delete("/a/b", 0))
        assert heard == [["/a/b"], ["/a"], ["/a/b"]]

    async def test_a_failed_commit_is_not_heard_of(self, tree: Coordination) -> None:
        heard: list[Sequence[str]] = []
        tree.watch("/", heard.append)
        with pytest.raises(ConflictError):
            await tree.commit(Create("/a", b""), Create("/a", b""))
        assert heard == []

    async def test_after_unsubscribing_nothing_more_is_heard(self, tree: Coordination) -> None:
        heard: list[Sequence[str]] = []
        unsubscribe = tree.watch("/", heard.append)
        unsubscribe()
        unsubscribe()
        await tree.commit(Create("/a", b""))
        assert heard == []

    async def test_a_watcher_that_raises_does_not_keep_the_others_from_hearing(self, tree: Coordination) -> None:
        reported: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))

        def fail(paths: Sequence[str]) -> None:
            raise RuntimeError("watcher")

        heard: list[Sequence[str]] = []
        tree.watch("/", fail)
        tree.watch("/", heard.append)
        await tree.commit(Create("/a", b""))
        assert heard == [["/a"]]
        assert len(reported) == 1

    async def test_a_commit_whose_caller_is_cancelled_is_still_heard_of(self, tree: Coordination) -> None:
        heard = asyncio.Event()
        tree.watch("/a", lambda paths: heard.set())
        caller = asyncio.create_task(tree.commit(Create("/a", b"")))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await asyncio.wait_for(heard.wait(), 10)
        assert await tree.get("/a") == Node(b"", 0)


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
