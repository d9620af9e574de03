"""The views of the cluster, as the metadata has them: by name, what each looks at and what it lets through."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from penstock.cluster.metadata import MetadataImage, TopicImage
from penstock.config.view import VIEW_TAGS_SETTING, parse_tags
from penstock.replication.partition import Partition
from penstock.views.search import Effort, Search
from penstock.views.tag_matcher import Matcher

_THREADS = 2
"""More would only wait for each other: most of the work is the interpreter's."""


@dataclass(frozen=True, slots=True)
class View:
    """One view."""

    name: str
    base: str
    matcher: Matcher


class Catalogue:
    """Views by name, and the threads that look into batches for them."""

    def __init__(self, image: MetadataImage) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "views")
        self._topics: dict[str, TopicImage] = {}
        self._views: dict[str, View] = {}
        self.effort = Effort()
        self._take(image)

    def __len__(self) -> int:
        return len(self._views)

    async def close(self) -> None:
        self._pool.shutdown()

    def change(self, old: MetadataImage, new: MetadataImage) -> None:
        """Takes a new image."""
        self._take(new)

    def find(self, topic: str) -> View | None:
        """The view of this name; None for every other topic."""
        return self._views.get(topic)

    def base_of(self, topic: str) -> str:
        """The topic whose log is read: that of the view's base, or its own."""
        view = self._views.get(topic)
        return topic if view is None else view.base

    def of_base(self, topic: str) -> Iterator[View]:
        """The views that look at a topic."""
        return (view for view in self._views.values() if view.base == topic)

    def search(self, view: View, partition: Partition, offset: int, *, committed_only: bool) -> Search:
        return Search(partition, view.matcher, offset, self._pool, self.effort, committed_only=committed_only)

    def _take(self, image: MetadataImage) -> None:
        found: dict[str, View] = {}
        for name, topic in image.topics.items():
            base = topic.view_of
            if base is None:
                continue
            if self._topics.get(name) is topic:
                found[name] = self._views[name]
            else:
                found[name] = View(name, base, Matcher(parse_tags(topic.overrides[VIEW_TAGS_SETTING])))
            self._topics[name] = topic
        self._views = found
        self._topics = {name: self._topics[name] for name in found}
