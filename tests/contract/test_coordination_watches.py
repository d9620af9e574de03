"""What every coordination engine promises to those who watch a tree."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock.cluster.coordination.contract import Coordination, Create, Delete, Node, Put
from penstock.errors import ConflictError
from support.waiting import PATIENCE_S


class TestWatchChildren:
    async def test_the_names_are_told_at_first_and_after_each_change(self, tree: Coordination) -> None:
        await tree.commit(Create("/a", b""), Create("/a/b", b""))
        told: asyncio.Queue[Sequence[str]] = asyncio.Queue()
        tree.watch_children("/a", told.put_nowait)
        assert await next_of(told) == ["b"]
        await tree.commit(Create("/a/c", b"", leased=True), Create("/d", b""))
        assert await next_of(told) == ["b", "c"]
        await tree.commit(Delete("/a/b", 0))
        assert await next_of(told) == ["c"]

    async def test_a_node_that_is_made_later_has_no_children_before(self, tree: Coordination) -> None:
        told: asyncio.Queue[Sequence[str]] = asyncio.Queue()
        tree.watch_children("/a", told.put_nowait)
        assert await next_of(told) == []
        await tree.commit(Create("/a", b""), Create("/a/b", b""))
        assert await next_of(told) == ["b"]

    async def test_after_unsubscribing_nothing_more_is_told(self, tree: Coordination) -> None:
        told: asyncio.Queue[Sequence[str]] = asyncio.Queue()
        others: asyncio.Queue[Sequence[str]] = asyncio.Queue()
        unsubscribe = tree.watch_children("/", told.put_nowait)
        assert await next_of(told) == []
        unsubscribe()
        unsubscribe()
        tree.watch_children("/", others.put_nowait)
        assert await next_of(others) == []
        await tree.commit(Create("/a", b""))
        assert await next_of(others) == ["a"]
        assert told.empty()


async def next_of(told: asyncio.Queue[Sequence[str]]) -> Sequence[str]:
    return await asyncio.wait_for(told.get(), PATIENCE_S)


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
