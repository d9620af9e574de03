"""The next metadata image while it is being decided.

A request may change many topics at once, and each item must see the ones before it (two new topics with the
same name, a limit reached half-way). A draft is that working copy: made from an image, changed item by item,
turned into the next image once. It also remembers what was touched, so that only that is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from penstock.cluster.metadata import BrokerInfo, MetadataImage, TopicImage
from penstock.ids import BrokerId


class Draft:
    """A working copy of an image."""

    def __init__(self, image: MetadataImage) -> None:
        self._base = image
        self._topics = dict(image.topics)
        self._brokers = dict(image.brokers)
        # Under None: what holds for every broker.
        self._settings: dict[BrokerId | None, Mapping[str, str]] = {None: image.broker_settings}
        for broker, settings in image.settings_by_broker.items():
            self._settings[broker] = settings
        self._group_settings = dict(image.settings_by_group)
        self._names_by_collision_key: dict[str, str] | None = None
        self._partition_count = image.partition_count
        # What differs from the image it was made from; insertion order is kept.
        self.touched_topics: dict[str, None] = {}
        self.touched_settings: dict[BrokerId | None, None] = {}
        self.touched_groups: dict[str, None] = {}
        self.touched_brokers: dict[BrokerId, None] = {}

    @property
    def topics(self) -> Mapping[str, TopicImage]:
        return MappingProxyType(self._topics)

    @property
    def brokers(self) -> Mapping[BrokerId, BrokerInfo]:
        return MappingProxyType(self._brokers)

    @property
    def alive(self) -> frozenset[BrokerId]:
        return frozenset(broker.id for broker in self._brokers.values() if broker.is_alive)

    @property
    def partition_count(self) -> int:
        return self._partition_count

    def settings(self, broker: BrokerId | None) -> Mapping[str, str]:
        """The dynamic settings kept for one broker, or for all of them for None."""
        return self._settings.get(broker, {})

    def group_settings(self, group_id: str) -> Mapping[str, str]:
        return self._group_settings.get(group_id, {})

    @property
    def groups_with_settings(self) -> int:
        return len(self._group_settings)

    def topic_colliding_with(self, name: str) -> str | None:
        """A topic whose name differs from this one in nothing but '.' for '_'."""
        if "." not in name and "_" not in name:
            return None
        if self._names_by_collision_key is None:
            self._names_by_collision_key = {_collision_key(topic): topic for topic in self._topics}
        return self._names_by_collision_key.get(_collision_key(name))

    def put_topic(self, topic: TopicImage) -> None:
        before = self._topics.get(topic.name)
        self._partition_count += len(topic.partitions) - (len(before.partitions) if before else 0)
        self._topics[topic.name] = topic
        if self._names_by_collision_key is not None:
            self._names_by_collision_key[_collision_key(topic.name)] = topic.name
        self.touched_topics[topic.name] = None

    def remove_topic(self, name: str) -> None:
        self._partition_count -= len(self._topics.pop(name).partitions)
        self._names_by_collision_key = None
        self.touched_topics[name] = None

    def put_broker(self, broker: BrokerInfo) -> None:
        self._brokers[broker.id] = broker
        self.touched_brokers[broker.id] = None

    def put_settings(self, broker: BrokerId | None, settings: Mapping[str, str]) -> None:
        self._settings[broker] = MappingProxyType(dict(settings))
        self.touched_settings[broker] = None

    def put_group_settings(self, group_id: str, settings: Mapping[str, str]) -> None:
        self._group_settings.pop(group_id, None)
        if settings:
            self._group_settings[group_id] = MappingProxyType(dict(settings))
        self.touched_groups[group_id] = None

    def finish(self) -> MetadataImage:
        """The next image."""
        return MetadataImage(
            version=self._base.version + 1,
            cluster_id=self._base.cluster_id,
            brokers=MappingProxyType(self._brokers),
            controller=self._base.controller,
            topics=MappingProxyType(self._topics),
            topic_names_by_id=MappingProxyType({topic.id: topic.name for topic in self._topics.values()}),
            broker_settings=self._settings[None],
            settings_by_broker=MappingProxyType(
                {broker: settings for broker, settings in self._settings.items() if broker is not None}
            ),
            settings_by_group=MappingProxyType(self._group_settings),
        )


def _collision_key(name: str) -> str:
    return name.replace(".", "_")
