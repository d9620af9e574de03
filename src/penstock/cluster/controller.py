"""Changes of the cluster's metadata that somebody asks for: topics, settings, in-sync sets, producer ids.

The decisions are in `topics.py`, `settings.py` and `elections.py`, the way to commit them in `store.py`. Every result
of a batch stands for itself, as in Kafka. A decision may be made anew after it was committed, if the answer was lost
or only a part of it was made: what is already as the request wants it, because of the request, is a success.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from penstock.cluster import elections, nodes, wishes
from penstock.cluster.coordination import Coordination, Put, Unsubscribe
from penstock.cluster.draft import Draft
from penstock.cluster.group_settings import alter_group_settings
from penstock.cluster.loading import load_next_producer_id
from penstock.cluster.metadata import MetadataImage, TopicImage
from penstock.cluster.settings import (
    SettingsChange,
    allows_unclean_election,
    alter_broker_settings,
    alter_topic_settings,
    is_kept_in_memory,
    topic_defaults,
)
from penstock.cluster.store import ATTEMPTS, Decide, MetadataStore, Subscriber
from penstock.cluster.topics import (
    MorePartitions,
    NewTopic,
    TopicRules,
    add_partitions,
    check_size,
    create_topic,
    delete_topic,
)
from penstock.config.broker import Config, GroupSettings
from penstock.errors import ApiError, ConflictError
from penstock.ids import BrokerId, TopicId, TopicPartition, new_topic_id

T = TypeVar("T")
K = TypeVar("K")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Who the controller is and what it goes by."""

    # That of the data folder; None for one that belongs to no cluster yet.
    cluster_id: str | None
    broker_id: BrokerId
    rules: TopicRules = field(default_factory=TopicRules)
    # Defaults of topic settings from the broker's start, in topic names.
    topic_defaults: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    groups_with_settings: int = GroupSettings().groups_with_settings

    @classmethod
    def of(cls, config: Config, cluster_id: str | None) -> ControllerSettings:
        rules = TopicRules(
            default_partitions=config.broker.default_partitions,
            default_replication_factor=config.broker.default_replication_factor,
            partitions_per_topic=config.limits.partitions_per_topic,
            partitions=config.limits.partitions,
            views_per_topic=config.limits.views_per_topic,
        )
        return cls(cluster_id, BrokerId(config.broker.id), rules, config.topic, config.groups.groups_with_settings)


class Controller:
    """Decides what is asked for, on the latest image, and commits it."""

    def __init__(self, coordination: Coordination, settings: ControllerSettings) -> None:
        self._coordination = coordination
        self._settings = settings
        self._store = MetadataStore(coordination, settings.cluster_id)

    @property
    def image(self) -> MetadataImage:
        """The latest image; only after `start`."""
        return self._store.image

    async def start(self) -> MetadataImage:
        """Read the tree, making it first if it is new, and follow it from then on."""
        return await self._store.start()

    async def close(self) -> None:
        """Wait for changes whose callers have gone away; the coordination tree is closed by its owner."""
        await self._store.close()

    def subscribe(self, callback: Subscriber) -> Unsubscribe:
        """Call back with the old and the new image after each change, in order, on the event loop."""
        return self._store.subscribe(callback)

    async def change(self, decide: Decide[T], *, validate_only: bool = False) -> T:
        """Decide something on the latest image and commit it; see `MetadataStore.change`."""
        return await self._store.change(decide, validate_only=validate_only)

    async def refresh(self) -> MetadataImage:
        """The image of now, whether its watch has told of it or not."""
        return await self._store.refresh()

    def is_unclean(self, draft: Draft) -> elections.IsUnclean:
        """Which topics would rather lose records than wait for who has them."""
        defaults = self._topic_defaults(draft)
        return lambda topic: allows_unclean_election(topic, defaults)

    def keeps(self, draft: Draft) -> Callable[[TopicImage], bool]:
        """Which topics' records outlive the process of a broker."""
        defaults = self._topic_defaults(draft)
        return lambda topic: not is_kept_in_memory(topic, defaults)

    async def create_topics(
        self, requests: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Mapping[str, TopicImage | ApiError]:
        """The created topics by name; with `validate_only`, as they would have been."""

        ids = {request.name: new_topic_id() for request in requests}

        def decide(draft: Draft) -> Mapping[str, TopicImage | ApiError]:
            defaults = self._topic_defaults(draft)

            def create(request: NewTopic) -> TopicImage:
                id = ids[request.name]
                existing = draft.topics.get(request.name)
                if existing is not None and existing.id == id and request.name not in draft.touched_topics:
                    return existing
                topic = create_topic(draft, request, id, self._settings.rules, defaults)
                draft.put_topic(topic)
                return topic

            return _each(((request.name, request) for request in requests), create)

        return await self.change(decide, validate_only=validate_only)

    async def delete_topics(
        self, names: Sequence[str], *, ids: Mapping[str, TopicId] | None = None
    ) -> Mapping[str, ApiError | None]:
        """Deletes by name; a name that is also in `ids` only if that is still the topic's id."""

        deleted: dict[str, TopicId] = {}

        def decide(draft: Draft) -> Mapping[str, ApiError | None]:
            def delete(name: str) -> None:
                current = draft.topics.get(name)
                if name in deleted and (current is None or current.id != deleted[name]):
                    return
                topic = delete_topic(draft, name, ids.get(name) if ids else None)
                deleted[name] = topic.id
                draft.remove_topic(name)

            # Views first: then a topic can go together with those that look at it.
            known = draft.topics
            ordered = sorted(names, key=lambda name: name not in known or known[name].view_of is None)
            return _each(((name, name) for name in ordered), delete)

        return await self.change(decide)

    async def create_partitions(
        self, requests: Sequence[MorePartitions], *, validate_only: bool = False
    ) -> Mapping[str, ApiError | None]:
        grown: dict[str, TopicId] = {}

        def decide(draft: Draft) -> Mapping[str, ApiError | None]:
            def grow(request: MorePartitions) -> None:
                current = draft.topics.get(request.topic)
                if (
                    current is not None
                    and grown.get(request.topic) == current.id
                    and len(current.partitions) == request.count
                    and request.topic not in draft.touched_topics
                ):
                    return
                topic = add_partitions(draft, request, self._settings.rules)
                grown[request.topic] = topic.id
                draft.put_topic(topic)

            return _each(((request.topic, request) for request in requests), grow)

        return await self.change(decide, validate_only=validate_only)

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

        return await self.change(decide, validate_only=validate_only)

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

        return await self.change(decide, validate_only=validate_only)

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

        return await self.change(decide, validate_only=validate_only)

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition] | None, *, is_unclean: bool
    ) -> Mapping[TopicPartition, ApiError | None]:
        """Preferred replicas lead, or anybody where nobody does; of all partitions (None) those that change."""

        def decide(draft: Draft) -> Mapping[TopicPartition, ApiError | None]:
            wanted = partitions
            if wanted is None:
                wanted = [
                    TopicPartition(topic.name, partition.index)
                    for topic in draft.topics.values()
                    for partition in topic.partitions
                ]

            def elect(at: TopicPartition) -> None:
                draft.put_partition(at.topic, wishes.elected(draft, at, is_unclean=is_unclean))

            results = _each(((at, at) for at in wanted), elect)
            return results if partitions is not None else wishes.without_unneeded(results)

        return await self.change(decide)

    async def reassign_partitions(
        self, targets: Mapping[TopicPartition, tuple[BrokerId, ...] | None], *, may_change_factor: bool = True
    ) -> Mapping[TopicPartition, ApiError | None]:
        """Begins to move partitions to these replicas; None gives up the move that is under way."""

        def decide(draft: Draft) -> Mapping[TopicPartition, ApiError | None]:
            before_all = dict(draft.topics)

            def move(at: TopicPartition) -> None:
                before = wishes.partition_at(draft, at)
                after = wishes.moved(draft, before, targets[at], may_change_factor=may_change_factor)
                if after != before:
                    draft.put_partition(at.topic, after)

            results = _each(((at, at) for at in targets), move)
            for name in list(draft.touched_topics):
                try:
                    check_size(draft.topics[name])
                except ApiError as error:
                    draft.put_topic(before_all[name])
                    results |= {at: results[at] or error for at in targets if at.topic == name}
            return results

        return await self.change(decide)

    async def put_in_sync(self, changes: Mapping[TopicPartition, tuple[int, Iterable[BrokerId]]]) -> None:
        """What this broker, as a leader, has found out: for each partition its epoch and the new in-sync set."""

        def decide(draft: Draft) -> None:
            alive = draft.alive
            for (name, index), (epoch, in_sync) in changes.items():
                topic = draft.topics.get(name)
                if topic is None or index >= len(topic.partitions):
                    continue
                before = topic.partitions[index]
                after = elections.with_in_sync(before, self._settings.broker_id, epoch, in_sync, alive)
                if after != before:
                    draft.put_partition(name, after)

        await self.change(decide)

    async def allocate_producer_ids(self, count: int) -> range:
        """A block of producer ids that nobody has been given and nobody else will be, whatever crashes."""
        if count < 1:
            raise ValueError("a block of producer ids has at least one")
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


def _each(items: Iterable[tuple[K, T]], decide: Callable[[T], R]) -> dict[K, R | ApiError]:
    """Decide item by item; one that is refused does not keep the others from going through."""
    results: dict[K, R | ApiError] = {}
    for key, item in items:
        try:
            results[key] = decide(item)
        except ApiError as error:
            results[key] = error
    return results
