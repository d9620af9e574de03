"""Commits at random, and what the tree has to be after them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from penstock.cluster.coordination.contract import Change, Coordination, Create, Delete, Node, Put
from penstock.errors import ConflictError

from .conftest import eventually


def changed(tree: dict[str, Node], commit: Sequence[Change]) -> None:
    """What a commit does, in the simplest way that can be written down."""
    for change in commit:
        match change:
            case Create():
                tree[change.path] = Node(change.value, 0)
            case Put():
                tree[change.path] = Node(change.value, change.version + 1)
            case Delete():
                del tree[change.path]


async def commit_at_random(tree: Coordination, seed: int, commits: int) -> dict[int, Sequence[Change]]:
    """Commits of one or two changes on what was read just before; those that went through, by their clock."""
    chance = random.Random(seed)
    done: dict[int, Sequence[Change]] = {}
    while len(done) < commits:
        seen = await tree.clock() if chance.random() < 0.5 else None
        commit: list[Change] = []
        for path in chance.sample(["/a", "/b", "/c"], chance.choice([1, 2])):
            node, value = await tree.get(path), f"{seed}-{len(done)}".encode()
            if node is None:
                commit.append(Create(path, value, leased=chance.random() < 0.5))
            else:
                commit.append(Delete(path, node.version) if chance.random() < 0.3 else Put(path, value, node.version))
        try:
            done[await tree.commit(*commit, seen=seen)] = commit
        except ConflictError:
            continue
    return done


async def judge_random_commits(trees: Sequence[Coordination], seed: int, commits: int) -> None:
    """Commits through all trees at once, twice each: the tree is what the commits make in the order of the clock."""
    heard: list[Sequence[str]] = []
    trees[0].watch("/", heard.append)
    done = await asyncio.gather(
        *(commit_at_random(tree, 1000 * seed + number, commits) for number, tree in enumerate([*trees, *trees]))
    )
    by_clock = {clock: commit for each in done for clock, commit in each.items()}
    assert sorted(by_clock) == list(range(1, 2 * len(trees) * commits + 1))
    expected: dict[str, Node] = {}
    for clock in sorted(by_clock):
        changed(expected, by_clock[clock])
    found = {f"/{name}": await trees[1].get(f"/{name}") for name in await trees[1].children("/")}
    assert found == expected
    await eventually(lambda: len(heard) == len(by_clock), "the watcher has heard of every commit")
    assert heard == [[change.path for change in by_clock[clock]] for clock in sorted(by_clock)]
