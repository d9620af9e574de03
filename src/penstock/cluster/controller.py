"""The controller: the only writer of the cluster's metadata.

A thin shell around the decisions in `topics.py` and `settings.py`: take the image, decide every item of the
request on a draft of the next one, commit what was touched at the versions it was read at, then make the
draft the image and tell the subscribers. One change at a time. A conflict means that somebody else wrote to
the tree: read it again and decide again, a bounded number of times.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from penstock.cluster import nodes
from penstock.cluster.coordination import Change, Coordination, Create, Delete, Put, Unsubscribe
from penstock.cluster.draft import Draft
from penstock.cluster.group_settings import alter_group_settings
from penstock.cluster.loading import Versions, load, load_next_producer_id
from penstock.cluster.metadata import BrokerInfo, MetadataImage, TopicImage
from penstock.cluster.settings import (
    SettingsChange,
    alter_broker_settings,
    alter_topic_settings,
    topic_defaults,
)
from penstock.cluster.topics import (
    MorePartitions,
    NewTopic,
    TopicRules,
    add_partitions,
    create_topic,
    delete_topic,
)
from penstock.config.broker import Config, GroupSettings
from penstock.errors import ApiError, ConflictError
from penstock.ids import BrokerId, TopicId, new_topic_id
from penstock.logs import fields

log = logging.getLogger(__name__)

ATTEMPTS = 5

T = TypeVar("T")
K = TypeVar("K")
R = TypeVar("R")

Subscriber = Callable[[MetadataImage, MetadataImage], None]


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Who the controller is and what it goes by."""

    cluster_id: str
    broker_id: BrokerId
    rules: TopicRules = field(default_factory=TopicRules)
    # Defaults of topic settings from the broker's start, in topic names.
    topic_defaults: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    groups_with_settings: int = GroupSettings().groups_with_settings

    @classmethod
    def of(cls, config: Config, cluster_id: str) -> ControllerSettings:
        rules = TopicRules(
            default_partitions=config.broker.default_partitions,
            default_replication_factor=config.broker.default_replication_factor,
            partitions_per_topic=config.limits.partitions_per_topic,
            partitions=config.limits.partitions,
        )
        return cls(cluster_id, BrokerId(config.broker.id), rules, config.topic, config.groups.groups_with_settings)


class Controller:
    """Decides and commits; every result of a batch stands for itself, as in Kafka."""

    def __init__(self, coordination: Coordination, settings: ControllerSettings) -> None:
        self._coordination = coordination
        self._settings = settings
        self._lock = asyncio.Lock()
        self._image: MetadataImage | None = None
        self._versions: Versions = {}
        # Set when the tree may differ from what was last read: after a conflict or an unknown outcome.
        self._stale = True
        self._subscribers: dict[object, Subscriber] = {}
        self._under_way: set[asyncio.Task[Any]] = set()

    @property
    def image(self) -> MetadataImage:
        """The latest image; only after `start`."""
        if self._image is None:
            raise RuntimeError("the controller has not been started")
        return self._image

    async def start(self) -> MetadataImage:
        """Read the tree, making it first if it is new."""
        async with self._lock:
            await self._refresh()
        return self.image

    async def close(self) -> None:
        """Wait for changes whose callers have gone away; the coordination tree is closed by its owner."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def subscribe(self, callback: Subscriber) -> Unsubscribe:
        """Call back with the old and the new image after each change, in order, on the event loop."""
        key = object()
        self._subscribers[key] = callback

        def unsubscribe() -> None:
            self._subscribers.pop(key, None)

        return unsubscribe

    async def register_broker(self, broker: BrokerInfo) -> None:
        """Tell the cluster under which address a broker is reached."""

        def decide(draft: Draft) -> None:
            if draft.brokers.get(broker.id) != broker:
                draft.put_broker(broker)

        await self._change(decide)

    async def create_topics(
        self, requests: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Mapping[str, TopicImage | ApiError]:
        """The created topics by name; with `validate_only`, as they would have been."""

        def decide(draft: Draft) -> Mapping[str, TopicImage | ApiError]:
            defaults = self._topic_defaults(draft)

            def create(request: NewTopic) -> TopicImage:
                topic = create_topic(draft, request, new_topic_id(), self._settings.rules, defaults)
                draft.put_topic(topic)
                return topic

            return _each(((request.name, request) for request in requests), create)

        return await self._change(decide, validate_only)

    async def delete_topics(
        self, names: Sequence[str], *, ids: Mapping[str, TopicId] | None = None
    ) -> Mapping[str, ApiError | None]:
        """Deletes by name; a name that is also in `ids` only if that is still the topic's id."""

        def decide(draft: Draft) -> Mapping[str, ApiError | None]:
            def delete(name: str) -> None:
                draft.remove_topic(delete_topic(draft, name, ids.get(name) if ids else None).name)

            return _each(((name, name) for name in names), delete)

        return await self._change(decide)

    async def create_partitions(
        self, requests: Sequence[MorePartitions], *, validate_only: bool = False
    ) -> Mapping[str, ApiError | None]:
        def decide(draft: Draft) -> Mapping[str, ApiError | None]:
            return _each(
                ((request.topic, request) for request in requests),
                lambda request: draft.put_topic(add_partitions(draft, request, self._settings.rules)),
            )

        return await self._change(decide, validate_only)

    async def alter_topic_settings(
        self, changes: Mapping[str, SettingsChange], *, validate_only: bool = False
    ) -> Mapping[str, ApiError | None]:
        def decide(draft: Draft) -> Mapping[str, ApiError | None]:
            defaults = self._topic_defaults(draft)

            def alter(named: tuple[str, SettingsChange]) -> None:
                name, change = named
                topic = alter_topic_settings(draft, name, change, defaults)
                if topic != draft.topics[name]:
                    draft.put_topic(topic)

            return _each(((name, (name, change)) for name, change in changes.items()), alter)

        return await self._change(decide, validate_only)

    async def alter_broker_settings(
        self, changes: Mapping[BrokerId | None, SettingsChange], *, validate_only: bool = False
    ) -> Mapping[BrokerId | None, ApiError | None]:
        """Under None: the settings of every broker."""

        def decide(draft: Draft) -> Mapping[BrokerId | None, ApiError | None]:
            def alter(owned: tuple[BrokerId | None, SettingsChange]) -> None:
                broker, change = owned
                settings = alter_broker_settings(draft, broker, change, self._settings.topic_defaults)
                if settings != draft.settings(broker):
                    draft.put_settings(broker, settings)

            return _each(((broker, (broker, change)) for broker, change in changes.items()), alter)

        return await self._change(decide, validate_only)

    async def alter_group_settings(
        self, changes: Mapping[str, SettingsChange], *, validate_only: bool = False
    ) -> Mapping[str, ApiError | None]:
        def decide(draft: Draft) -> Mapping[str, ApiError | None]:
            def alter(named: tuple[str, SettingsChange]) -> None:
                group_id, change = named
                settings = alter_group_settings(draft, group_id, change, self._settings.groups_with_settings)
                if settings != draft.group_settings(group_id):
                    draft.put_group_settings(group_id, settings)

            return _each(((group_id, (group_id, change)) for group_id, change in changes.items()), alter)

        return await self._change(decide, validate_only)

    async def allocate_producer_ids(self, count: int) -> range:
        """A block of producer ids that nobody has been given and nobody else will be, whatever crashes."""
        if count < 1:
            raise ValueError("a block of producer ids has at least one")
        async with self._lock:
            for _ in range(ATTEMPTS):
                first, version = await load_next_producer_id(self._coordination)
                value = nodes.encode_next_producer_id(first + count)
                try:
                    await self._coordination.commit(Put(nodes.PRODUCER_IDS, value, version))
                except ConflictError:
                    continue
                return range(first, first + count)
        raise ConflictError(f"{nodes.PRODUCER_IDS} kept changing while producer ids were taken from it")

    def _topic_defaults(self, draft: Draft) -> Mapping[str, str]:
        dynamic = {**draft.settings(None), **draft.settings(self._settings.broker_id)}
        return topic_defaults(self._settings.topic_defaults, dynamic)

    async def _change(self, decide: Callable[[Draft], T], validate_only: bool = False) -> T:
        # A commit cannot be called back, so a caller that is cancelled must not take away what follows from
        # it (the new image, the subscribers), nor let the next change begin before. Hence a task of our own.
        task = asyncio.create_task(self._decide_and_commit(decide, validate_only), name="penstock-controller")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def _decide_and_commit(self, decide: Callable[[Draft], T], validate_only: bool) -> T:
        async with self._lock:
            for _ in range(ATTEMPTS):
                if self._stale:
                    await self._refresh()
                draft = Draft(self.image)
                result = decide(draft)
                changes = self._changes(draft)
                if validate_only or not changes:
                    return result
                try:
                    await self._commit(draft, changes)
                except ConflictError as error:
                    log.warning("metadata changed elsewhere, deciding again", extra=fields(reason=str(error)))
                    continue
                return result
        raise ConflictError("the metadata kept changing elsewhere while a change was decided")

    def _changes(self, draft: Draft) -> list[Change]:
        changes: list[Change] = []
        for name in draft.touched_topics:
            topic = draft.topics.get(name)
            self._add(changes, nodes.topic_path(name), None if topic is None else nodes.encode_topic(topic))
        for owner in draft.touched_settings:
            self._add(changes, nodes.settings_path(owner), nodes.encode_settings(draft.settings(owner)))
        for group_id in draft.touched_groups:
            settings = draft.group_settings(group_id)
            value = nodes.encode_settings(settings) if settings else None
            self._add(changes, nodes.group_settings_path(group_id), value)
        for broker in draft.touched_brokers:
            self._add(changes, nodes.broker_path(broker), nodes.encode_broker(draft.brokers[broker]))
        return changes

    def _add(self, changes: list[Change], path: str, value: bytes | None) -> None:
        version = self._versions.get(path)
        if value is None:
            if version is not None:
                changes.append(Delete(path, version))
        elif version is None:
            changes.append(Create(path, value))
        else:
            changes.append(Put(path, value, version))

    async def _commit(self, draft: Draft, changes: Sequence[Change]) -> None:
        self._stale = True
        await self._coordination.commit(*changes)
        for change in changes:
            match change:
                case Create():
                    self._versions[change.path] = 0
                case Put():
                    self._versions[change.path] = change.version + 1
                case Delete():
                    del self._versions[change.path]
        self._stale = False
        self._publish(draft.finish())

    async def _refresh(self) -> None:
        version = 1 if self._image is None else self._image.version + 1
        settings = self._settings
        image, versions = await load(self._coordination, settings.cluster_id, settings.broker_id, version)
        self._versions = versions
        self._stale = False
        self._publish(image)

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


def _each(items: Iterable[tuple[K, T]], decide: Callable[[T], R]) -> dict[K, R | ApiError]:
    """Decide item by item; one that is refused does not keep the others from going through."""
    results: dict[K, R | ApiError] = {}
    for key, item in items:
        try:
            results[key] = decide(item)
        except ApiError as error:
            results[key] = error
    return results
