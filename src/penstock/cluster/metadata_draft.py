"""The next metadata image while it is being decided.

A request may change many topics at once, and each item must see the ones before it (two new topics with the same name,
a limit reached half-way). A draft is that working copy: made from an image, changed item by item, and turned into the
next image once. It remembers what was touched, so that only that is committed, and what else of the coordination tree
belongs to the change (leases).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from penstock.cluster.coordination.contract import Change
from penstock.cluster.decisions import retired_partitions
from penstock.cluster.decisions.placement import Loads
from penstock.cluster.metadata import BrokerInfo, DatabaseGroupInfo, MetadataImage, PartitionImage, TopicImage
from penstock.config.draining import DRAINING
from penstock.config.retired import RETIRED_SETTING
from penstock.ids import BrokerId
from penstock.security.acls import AclEntry, ResourcePattern
from penstock.security.quota_entity import QuotaEntity
from penstock.security.quota_keys import QuotaLimits
from penstock.security.users import Credentials, UserCredentials


class MetadataDraft:
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
        self._databases = dict(image.databases)
        # Copied when one is changed: there may be thousands, and hardly a change is about them.
        self._acls: dict[ResourcePattern, tuple[AclEntry, ...]] | None = None
        self._acl_count: int | None = None
        self._quotas: dict[QuotaEntity, QuotaLimits] | None = None
        self._users = dict(image.users)
        self._login_secret = image.login_secret
        self._names_by_collision_key: dict[str, str] | None = None
        self._partition_count = image.partition_count
        self._controller = image.controller, image.controller_epoch
        self._loads: Loads | None = None
        # What differs from the image it was made from; insertion order is kept.
        self.touched_topics: dict[str, None] = {}
        self.touched_settings: dict[BrokerId | None, None] = {}
        self.touched_groups: dict[str, None] = {}
        self.touched_databases: dict[str, None] = {}
        self.touched_acls: dict[ResourcePattern, None] = {}
        self.touched_quotas: dict[QuotaEntity, None] = {}
        self.touched_users: dict[str, None] = {}
        self.touched_brokers: dict[BrokerId, None] = {}
        # Committed together with what was touched, in the commit that says of a broker that it comes or goes.
        self.beside: list[Change] = []
        # What must hold for the change to be made; if it is made in parts, for each of them.
        self.conditions: list[Change] = []

    @property
    def base(self) -> MetadataImage:
        """The image that it was made from."""
        return self._base

    @property
    def is_touched(self) -> bool:
        return bool(
            self.touched_topics
            or self.touched_settings
            or self.touched_groups
            or self.touched_databases
            or self.touched_acls
            or self.touched_quotas
            or self.touched_users
            or self.touched_brokers
            or self.is_controller_touched
        )

    @property
    def controller(self) -> tuple[BrokerId, int]:
        """The controller and its epoch."""
        return self._controller

    @property
    def is_controller_touched(self) -> bool:
        return self._controller != (self._base.controller, self._base.controller_epoch)

    @property
    def topics(self) -> Mapping[str, TopicImage]:
        return MappingProxyType(self._topics)

    @property
    def brokers(self) -> Mapping[BrokerId, BrokerInfo]:
        return MappingProxyType(self._brokers)

    @property
    def databases(self) -> Mapping[str, DatabaseGroupInfo]:
        """Database groups by name, without the default one."""
        return MappingProxyType(self._databases)

    @property
    def acls(self) -> Mapping[ResourcePattern, tuple[AclEntry, ...]]:
        return self._base.acls if self._acls is None else MappingProxyType(self._acls)

    @property
    def acl_count(self) -> int:
        """How many ACLs there are."""
        if self._acl_count is None:
            self._acl_count = sum(map(len, self.acls.values()))
        return self._acl_count

    @property
    def users(self) -> UserCredentials:
        """Users with passwords, by name."""
        return MappingProxyType(self._users)

    @property
    def alive(self) -> frozenset[BrokerId]:
        return frozenset(broker.id for broker in self._brokers.values() if broker.is_alive)

    @property
    def with_database_key(self) -> frozenset[BrokerId]:
        """The brokers that can read the passwords of database groups."""
        return frozenset(broker.id for broker in self._brokers.values() if broker.has_database_key)

    @property
    def takers(self) -> list[BrokerInfo]:
        """The brokers that get new replicas: alive and not being drained."""
        return [broker for broker in self._brokers.values() if broker.is_alive and not self.is_draining(broker.id)]

    def is_draining(self, broker: BrokerId) -> bool:
        """Whether the operator wants this broker to be empty."""
        return DRAINING.parse(self.settings(broker).get(DRAINING.name, DRAINING.default)) is True

    @property
    def loads(self) -> Loads:
        """How many replicas each broker stores; to be read, not changed: it follows the draft."""
        if self._loads is None:
            self._loads = Loads(self._brokers.values(), self._topics.values())
        return self._loads

    @property
    def partition_count(self) -> int:
        return self._partition_count

    def settings(self, broker: BrokerId | None) -> Mapping[str, str]:
        """The dynamic settings kept for one broker, or for all of them for None."""
        return self._settings.get(broker, {})

    @property
    def brokers_with_settings(self) -> Collection[BrokerId | None]:
        return self._settings.keys()

    def group_settings(self, group_id: str) -> Mapping[str, str]:
        return self._group_settings.get(group_id, {})

    @property
    def groups_with_settings(self) -> int:
        return len(self._group_settings)

    @property
    def quotas(self) -> Mapping[QuotaEntity, QuotaLimits]:
        return self._base.quotas if self._quotas is None else MappingProxyType(self._quotas)

    def topic_colliding_with(self, name: str) -> str | None:
        """A topic whose name differs from this one in nothing but '.' for '_'."""
        if "." not in name and "_" not in name:
            return None
        if self._names_by_collision_key is None:
            self._names_by_collision_key = {_collision_key(topic): topic for topic in self._topics}
        return self._names_by_collision_key.get(_collision_key(name))

    def put_topic(self, topic: TopicImage) -> None:
        if RETIRED_SETTING in topic.overrides:
            topic = retired_partitions.together(topic, self.alive, self.with_database_key)
        before = self._topics.get(topic.name)
        self._partition_count += len(topic.partitions) - (len(before.partitions) if before else 0)
        self._shift_loads(before, topic)
        self._topics[topic.name] = topic
        if self._names_by_collision_key is not None:
            self._names_by_collision_key[_collision_key(topic.name)] = topic.name
        self.touched_topics[topic.name] = None

    def put_partition(self, topic: str, *partitions: PartitionImage) -> None:
        """Partitions of a topic in the place of what they were; together, because each call copies the topic."""
        before = self._topics[topic]
        changed = list(before.partitions)
        for partition in partitions:
            changed[partition.index] = partition
        self.put_topic(replace(before, partitions=tuple(changed)))

    def remove_topic(self, name: str) -> None:
        before = self._topics.pop(name)
        self._partition_count -= len(before.partitions)
        self._shift_loads(before, None)
        self._names_by_collision_key = None
        self.touched_topics[name] = None

    def put_broker(self, broker: BrokerInfo) -> None:
        self._brokers[broker.id] = broker
        self._loads = None
        self.touched_brokers[broker.id] = None

    def remove_broker(self, broker: BrokerId) -> None:
        del self._brokers[broker]
        self.touched_brokers[broker] = None

    def put_database(self, group: DatabaseGroupInfo) -> None:
        self._databases[group.name] = group
        self.touched_databases[group.name] = None

    def remove_database(self, name: str) -> None:
        del self._databases[name]
        self.touched_databases[name] = None

    def put_acls(self, resource: ResourcePattern, entries: tuple[AclEntry, ...]) -> None:
        """All ACLs about this; none of them for no entries."""
        if self._acls is None:
            self._acls = dict(self._base.acls)
        before = self._acls.pop(resource, ())
        if self._acl_count is not None:
            self._acl_count += len(entries) - len(before)
        if entries:
            self._acls[resource] = entries
        self.touched_acls[resource] = None

    def put_user(self, name: str, credentials: Credentials) -> None:
        """A user without credentials is removed."""
        self._users.pop(name, None)
        if credentials:
            self._users[name] = MappingProxyType(dict(credentials))
        self.touched_users[name] = None

    def put_login_secret(self, secret: bytes) -> None:
        """Only read: it is made together with the tree."""
        self._login_secret = secret

    def put_controller(self, broker: BrokerId, epoch: int) -> None:
        self._controller = broker, epoch

    def put_settings(self, broker: BrokerId | None, settings: Mapping[str, str]) -> None:
        self._settings[broker] = MappingProxyType(dict(settings))
        self.touched_settings[broker] = None

    def remove_settings(self, broker: BrokerId) -> None:
        del self._settings[broker]
        self.touched_settings[broker] = None

    def put_group_settings(self, group_id: str, settings: Mapping[str, str]) -> None:
        self._group_settings.pop(group_id, None)
        if settings:
            self._group_settings[group_id] = MappingProxyType(dict(settings))
        self.touched_groups[group_id] = None

    def put_quota(self, entity: QuotaEntity, limits: QuotaLimits) -> None:
        """What an entity is limited to; nothing takes it away."""
        if self._quotas is None:
            self._quotas = dict(self._base.quotas)
        self._quotas.pop(entity, None)
        if limits:
            self._quotas[entity] = MappingProxyType(dict(limits))
        self.touched_quotas[entity] = None

    def _shift_loads(self, before: TopicImage | None, after: TopicImage | None) -> None:
        if self._loads is None:
            return
        for partition in before.partitions if before and not before.is_shared else ():
            self._loads.remove(partition.target)
        for partition in after.partitions if after and not after.is_shared else ():
            self._loads.add(partition.target)

    def finish(self, version: int | None = None) -> MetadataImage:
        """The next image; that of the next commit if no version is given."""
        return MetadataImage(
            version=self._base.version + 1 if version is None else version,
            cluster_id=self._base.cluster_id,
            brokers=MappingProxyType(self._brokers),
            controller=self._controller[0],
            controller_epoch=self._controller[1],
            topics=MappingProxyType(self._topics),
            topic_names_by_id=MappingProxyType({topic.id: topic.name for topic in self._topics.values()}),
            broker_settings=self._settings[None],
            settings_by_broker=MappingProxyType(
                {broker: settings for broker, settings in self._settings.items() if broker is not None}
            ),
            settings_by_group=MappingProxyType(self._group_settings),
            databases=MappingProxyType(self._databases),
            acls=self.acls,
            quotas=self.quotas,
            # The same mapping while it is the same: what is made from it is kept by it.
            users=MappingProxyType(self._users) if self.touched_users else self._base.users,
            login_secret=self._login_secret,
        )


def _collision_key(name: str) -> str:
    return name.replace(".", "_")
