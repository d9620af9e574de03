"""The cluster's metadata on one broker: the latest image, and how to change it.

A thin shell around decisions: it takes the image, has a draft of the next one decided, commits what was touched if
nothing was committed since the image was read, makes the draft the image, and tells the subscribers. It makes one
change at a time. Any broker may change anything; see "The tree, and its clock" in `docs/internals/cluster.md`. Rules:

- The image has the version of the clock, and is what the tree held at that version: nothing was committed while its
  nodes were read. The store reads what other brokers commit node by node, as the clock tells.
- A decision may be made several times, each time on a newer image, until it is committed: another broker was faster,
  or the answer to a commit was lost. On an image that already has what it wants, a decision must change nothing.
- A commit whose outcome is unknown took place if a newer image has all of it.
- A thread does what takes long to decide, encode or read (topics of thousands of partitions). That is safe because it
  is pure, and no other change is made meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from penstock.background_loop import run_forever, shielded
from penstock.cluster.commit_counts import CommitCounts
from penstock.cluster.coordination.contract import Change, Coordination, Create, Delete, Node, Put, Unsubscribe
from penstock.cluster.folder import new_cluster_id
from penstock.cluster.image_reader import (
    Found,
    check_cluster,
    empty_image,
    is_of_image,
    make_roots,
    read,
    read_all,
    with_found,
)
from penstock.cluster.image_writer import commits
from penstock.cluster.metadata import MetadataImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.errors import ConflictError, CoordinationError
from penstock.logs import fields

log = logging.getLogger(__name__)

ATTEMPTS = 30
UNKNOWN_OUTCOMES = 2
"""After so many in one change it is given up."""

_RETRY_S = 1.0
_LARGE_PARTITIONS = 500
_LARGE_BYTES = 50_000
"""From here on the event loop is spared: topics of so many partitions, nodes of so many bytes."""
_LARGE_CLUSTER = 20_000
"""Of so many partitions: a decision may look at all of them."""

T = TypeVar("T")

Subscriber = Callable[[MetadataImage, MetadataImage], None]
Decide = Callable[[MetadataDraft], T]


class MetadataStore:
    """One broker's view of the cluster's metadata."""

    def __init__(self, coordination: Coordination, cluster_id: str | None) -> None:
        """`cluster_id`: the one that the tree must have; None takes the one it has, or makes one."""
        self._coordination = coordination
        self._cluster_id = cluster_id
        self._known_cluster_id = ""
        self.counts = CommitCounts()
        self._lock = asyncio.Lock()
        self._image: MetadataImage | None = None
        # The version at which each node of the image was read, by path.
        self._versions: dict[str, int] = {}
        self._subscribers: dict[object, Subscriber] = {}
        self._under_way: set[asyncio.Task[Any]] = set()
        self._news = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._unwatch: Unsubscribe = lambda: None

    @property
    def image(self) -> MetadataImage:
        """The latest image; only after `start`."""
        if self._image is None:
            raise RuntimeError("the metadata has not been read yet")
        return self._image

    async def start(self) -> MetadataImage:
        """Read the tree, making it first if it is new, and follow it from then on."""
        self._unwatch = self._coordination.watch("/", lambda paths: self._news.set())
        async with self._lock:
            await make_roots(self._coordination, self._cluster_id or new_cluster_id())
            self._known_cluster_id = await check_cluster(self._coordination, self._cluster_id)
            await self._refresh()
        self._following = asyncio.create_task(run_forever("metadata", self._follow), name="penstock-metadata")
        return self.image

    async def close(self) -> None:
        """Wait for changes whose callers have gone away; the coordination tree is closed by its owner."""
        self._unwatch()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        while self._under_way:
            await asyncio.wait(self._under_way)

    def subscribe(self, callback: Subscriber) -> Unsubscribe:
        """Call back with the old and the new image after each change, in order, on the event loop."""
        key = object()
        self._subscribers[key] = callback

        def unsubscribe() -> None:
            self._subscribers.pop(key, None)

        return unsubscribe

    async def change(self, decide: Decide[T], *, validate_only: bool = False, partitions: int = 0) -> T:
        """Decide on the latest image and commit it; what was decided. `partitions`: how many it is about, if many.

        A ConflictError means that something beside the image is not as the decision expects (a lease), or that the
        image kept changing; any other CoordinationError that the outcome is unknown.
        """
        # A commit cannot be called back, so a caller that is cancelled must not take away what follows from
        # it (the new image, the subscribers), nor let the next change begin before. Hence a task of our own.
        task = asyncio.create_task(self._change(decide, validate_only, partitions), name="penstock-metadata-change")
        self._under_way.add(task)
        task.add_done_callback(self._end)
        return await shielded(task)

    async def refresh(self) -> MetadataImage:
        """The image of now."""
        async with self._lock:
            await self._refresh()
        return self.image

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        # Retrieve the exception even if the caller has gone away, or asyncio would log it.
        if not task.cancelled():
            task.exception()

    async def _change(self, decide: Decide[T], validate_only: bool, partitions: int) -> T:
        async with self._lock:
            await self._refresh()
            unknown: list[tuple[MetadataDraft, T]] = []
            for _ in range(ATTEMPTS):
                base = self.image.version
                draft = MetadataDraft(self.image)
                is_long = partitions >= _LARGE_PARTITIONS or is_large(self.image)
                result = await spare_the_loop(partial(decide, draft), is_long=is_long)
                if validate_only or not draft.is_touched:
                    return result
                try:
                    await self._commit(draft)
                    return result
                except ConflictError as error:
                    await self._refresh()
                    if self.image.version == base:
                        # The clock has not moved: it is about something that is not in the image.
                        raise
                    log.info("metadata changed on another broker, deciding again", extra=fields(reason=str(error)))
                except CoordinationError:
                    unknown.append((draft, result))
                    if len(unknown) == UNKNOWN_OUTCOMES:
                        raise
                    await self._refresh()
                for attempt, its_result in unknown:
                    if self._has(attempt):
                        self._count(attempt)
                        return its_result
        raise ConflictError("other brokers kept changing the metadata while this change was decided")

    def _has(self, draft: MetadataDraft) -> bool:
        """Whether the image has all that was to be changed."""
        image = self.image
        return (
            all(image.topics.get(name) == draft.topics.get(name) for name in draft.touched_topics)
            and all(image.databases.get(name) == draft.databases.get(name) for name in draft.touched_databases)
            and all(image.acls.get(resource) == draft.acls.get(resource) for resource in draft.touched_acls)
            and all(image.quotas.get(entity) == draft.quotas.get(entity) for entity in draft.touched_quotas)
            and all(image.users.get(user) == draft.users.get(user) for user in draft.touched_users)
            and all(image.brokers.get(broker) == draft.brokers.get(broker) for broker in draft.touched_brokers)
            and all(MetadataDraft(image).settings(owner) == draft.settings(owner) for owner in draft.touched_settings)
            and all(
                image.settings_by_group.get(group_id, {}) == draft.group_settings(group_id)
                for group_id in draft.touched_groups
            )
            and (not draft.is_controller_touched or (image.controller, image.controller_epoch) == draft.controller)
        )

    async def _commit(self, draft: MetadataDraft) -> None:
        version = self.image.version
        touched = [draft.topics[name] for name in draft.touched_topics if name in draft.topics]
        is_long = sum(len(topic.partitions) for topic in touched) >= _LARGE_PARTITIONS
        for changes in await spare_the_loop(partial(commits, draft, self._versions), is_long=is_long):
            version = await self._coordination.commit(*changes, seen=version)
            for change in changes:
                self._note(change)
        self._count(draft)
        self._publish(draft.finish(version))

    def _count(self, draft: MetadataDraft) -> None:
        self.counts.note(draft.base.topics, draft.topics, draft.touched_topics)

    def _note(self, change: Change) -> None:
        match change:
            case Create():
                self._versions[change.path] = 0
            case Put():
                self._versions[change.path] = change.version + 1
            case Delete():
                self._versions.pop(change.path, None)

    async def _refresh(self) -> None:
        """Brings the image to the clock: reads what has changed, until nothing has while it was read."""
        image = self._image
        found: dict[str, Node | None] = {}
        version = -1 if image is None else image.version
        while True:
            clock, paths = await self._coordination.changed_since(version)
            if image is not None and clock == version:
                break
            if clock < version:
                # Topics that this tree does not know yet would be taken for deleted.
                raise CoordinationError(f"the coordination tree has gone back from version {version} to {clock}")
            if image is None or paths is None:
                # Read everything again; what is not found does not exist.
                await check_cluster(self._coordination, self._known_cluster_id)
                image = empty_image(self._known_cluster_id)
                found = dict(await read_all(self._coordination))
            else:
                found |= await read(self._coordination, filter(is_of_image, paths))
            version = clock
        if image is not self._image or found or version != image.version:
            await self._take(image, found, version)

    async def _take(self, image: MetadataImage, found: Found, version: int) -> None:
        size = sum(len(node.value) for node in found.values() if node is not None)
        made = await spare_the_loop(partial(with_found, image, found, version), is_long=size >= _LARGE_BYTES)
        if image is not self._image:
            self._versions.clear()
        for path, node in found.items():
            if node is None:
                self._versions.pop(path, None)
            else:
                self._versions[path] = node.version
        self._publish(made)

    async def _follow(self) -> None:
        await self._news.wait()
        self._news.clear()
        try:
            await self.refresh()
        except CoordinationError as error:
            log.warning("cannot read the metadata, retrying", extra=fields(reason=str(error)))
            self._news.set()
            await asyncio.sleep(_RETRY_S)
        except Exception:
            self._news.set()
            raise

    def _publish(self, image: MetadataImage) -> None:
        old, self._image = self._image, image
        if old is None:
            return
        for callback in list(self._subscribers.values()):
            try:
                callback(old, image)
            except Exception:
                # The change is committed: the others must hear of it, whatever one of them does.
                log.exception("a subscriber to the metadata failed", extra=fields(version=image.version))


def is_large(image: MetadataImage) -> bool:
    """Whether looking at all partitions takes so long that the event loop has to be spared."""
    return image.partition_count >= _LARGE_CLUSTER


async def spare_the_loop(work: Callable[[], T], *, is_long: bool) -> T:
    """Does long work in a thread."""
    return await asyncio.to_thread(work) if is_long else work()
