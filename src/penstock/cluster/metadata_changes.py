"""Changes of the cluster's metadata on request: topics, settings, database groups, in-sync sets, producer ids.

Any broker may make them; what the elected controller does by itself is in `controller/`. The functions in `decisions/`
decide, `metadata_store.py` commits. Every item of a batch has its own result, as in Kafka. A decision may be made again
after it was committed, if the answer was lost or only a part of it was made: what already is as the request wants it,
because of the request, is a success.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from penstock.cluster import nodes
from penstock.cluster.commit_counts import CommitCounts
from penstock.cluster.coordination.contract import Change, Coordination, Delete, Put, Unsubscribe
from penstock.cluster.decisions import access, database_groups, elections, operator_requests
from penstock.cluster.decisions.database_groups import GroupChange
from penstock.cluster.decisions.group_settings import alter_group_settings
from penstock.cluster.decisions.quotas import QuotaChange, alter_quota
from penstock.cluster.decisions.settings import (
    SettingsChange,
    allows_unclean_election,
    alter_broker_settings,
    alter_topic_settings,
    is_kept_in_memory,
    topic_defaults,
)
from penstock.cluster.decisions.topics import (
    MorePartitions,
    TopicCreation,
    TopicRules,
    add_partitions,
    check_size,
    create_topic,
    delete_topic,
)
from penstock.cluster.decisions.users import UserChange, alter_user
from penstock.cluster.image_reader import load_next_producer_id
from penstock.cluster.metadata import MetadataImage, PartitionImage, TopicImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.cluster.metadata_store import ATTEMPTS, Decide, MetadataStore, Subscriber
from penstock.config.broker import Config, GroupSettings, Limits
from penstock.config.quotas import QuotaSettings
from penstock.errors import ApiError, ConflictError
from penstock.ids import BrokerId, TopicId, TopicPartition, new_topic_id
from penstock.security.acls import Acl, AclFilter
from penstock.security.quota_entity import QuotaEntity

T = TypeVar("T")
K = TypeVar("K")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class MetadataSettings:
    """Of which broker and cluster these are the metadata, and the rules for changes."""

    # That of the data folder; None for one that belongs to no cluster yet.
    cluster_id: str | None
    broker_id: BrokerId
    rules: TopicRules = field(default_factory=TopicRules)
    # Defaults of topic settings from the broker's start, in topic names.
    topic_defaults: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    groups_with_settings: int = GroupSettings().groups_with_settings
    acls: int = Limits().acls
    entities_with_quotas: int = QuotaSettings().entities
    users: int = Limits().users

    @classmethod
    def of(cls, config: Config, cluster_id: str | None) -> MetadataSettings:
        rules = TopicRules(
            default_partitions=config.broker.default_partitions,
            default_replication_factor=config.broker.default_replication_factor,
            partitions_per_topic=config.limits.partitions_per_topic,
            partitions=config.limits.partitions,
            views_per_topic=config.limits.views_per_topic,
        )
        return cls(
            cluster_id,
            BrokerId(config.broker.id),
            rules,
            config.topic,
            config.groups.groups_with_settings,
            config.limits.acls,
            config.quotas.entities,
            config.limits.users,
        )


class MetadataChanges:
    """Decides requested changes on the latest image, and commits them."""

    def __init__(self, coordination: Coordination, settings: MetadataSettings) -> None:
        self._coordination = coordination
        self._settings = settings
        self._store = MetadataStore(coordination, settings.cluster_id)

    @property
    def image(self) -> MetadataImage:
        """The latest image; only after `start`."""
        return self._store.image

    @property
    def counts(self) -> CommitCounts:
        """What this broker has committed."""
        return self._store.counts

    async def start(self) -> MetadataImage:
        """Read the tree, making it first if it is new, and follow it from then on."""
        return await self._store.start()

    async def close(self) -> None:
        """Wait for changes whose callers have gone away; the coordination tree is closed by its owner."""
        await self._store.close()

    def subscribe(self, callback: Subscriber) -> Unsubscribe:
        """Call back with the old and the new image after each change, in order, on the event loop."""
        return self._store.subscribe(callback)

    async def change(self, decide: Decide[T], *, validate_only: bool = False, partitions: int = 0) -> T:
        """Decide something on the latest image and commit it; see `MetadataStore.change`."""
        return await self._store.change(decide, validate_only=validate_only, partitions=partitions)

    async def refresh(self) -> MetadataImage:
        """The image of now, whether its watch has told of it or not."""
        return await self._store.refresh()

    def is_unclean(self, draft: MetadataDraft) -> elections.IsUnclean:
        """Which topics would rather lose records than wait for who has them."""
        defaults = self._topic_defaults(draft)
        return lambda topic: allows_unclean_election(topic, defaults)

    def keeps(self, draft: MetadataDraft) -> Callable[[TopicImage], bool]:
        """Which topics' records outlive the process of a broker."""
        defaults = self._topic_defaults(draft)
        return lambda topic: not is_kept_in_memory(topic, defaults)

    async def create_topics(
        self, requests: Sequence[TopicCreation], *, validate_only: bool = False
    ) -> Mapping[str, TopicImage | ApiError]:
        """The created topics by name; with `validate_only`, as they would have been."""

        ids = {request.name: new_topic_id() for request in requests}

        def decide(draft: MetadataDraft) -> Mapping[str, TopicImage | ApiError]:
            defaults = self._topic_defaults(draft)

            def create(request: TopicCreation) -> TopicImage:
                id = ids[request.name]
                existing = draft.topics.get(request.name)
                if existing is not None and existing.id == id and request.name not in draft.touched_topics:
                    return existing
                topic = create_topic(draft, request, id, self._settings.rules, defaults)
                draft.put_topic(topic)
                return topic

            return _each(((request.name, request) for request in requests), create)

        partitions = sum(max(request.partitions, len(request.assignments), 1) for request in requests)
        return await self.change(decide, validate_only=validate_only, partitions=partitions)

    async def delete_topics(
        self, names: Sequence[str], *, ids: Mapping[str, TopicId] | None = None
    ) -> Mapping[str, ApiError | None]:
        """Deletes by name; a name that is also in `ids` only if that is still the topic's id."""

        deleted: dict[str, TopicId] = {}

        def decide(draft: MetadataDraft) -> Mapping[str, ApiError | None]:
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

        def decide(draft: MetadataDraft) -> Mapping[str, ApiError | None]:
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

        partitions = sum(request.count for request in requests)
        return await self.change(decide, validate_only=validate_only, partitions=partitions)

    async def alter_topic_settings(
        self, changes: Mapping[str, SettingsChange], *, validate_only: bool = False
    ) -> Mapping[str, ApiError | None]:
        def decide(draft: MetadataDraft) -> Mapping[str, ApiError | None]:
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

        def decide(draft: MetadataDraft) -> Mapping[BrokerId | None, ApiError | None]:
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
        def decide(draft: MetadataDraft) -> Mapping[str, ApiError | None]:
            def alter(named: tuple[str, SettingsChange]) -> None:
                group_id, change = named
                settings = alter_group_settings(draft, group_id, change, self._settings.groups_with_settings)
                if settings != draft.group_settings(group_id):
                    draft.put_group_settings(group_id, settings)

            return _each(((group_id, (group_id, change)) for group_id, change in changes.items()), alter)

        return await self.change(decide, validate_only=validate_only)

    async def create_acls(self, acls: Sequence[Acl]) -> Sequence[ApiError | None]:
        """Adds ACLs; one that exists already is left as it is."""
        decide = partial(access.add, acls=acls, max_acls=self._settings.acls)
        return await self.change(decide, partitions=len(acls))

    async def delete_acls(self, filters: Sequence[AclFilter]) -> Sequence[Sequence[Acl]]:
        """Removes the ACLs that the filters describe; what each filter found."""
        return await self.change(
            partial(access.remove, filters=filters), partitions=len(filters) * len(self.image.acls)
        )

    async def alter_users(self, changes: Mapping[str, UserChange]) -> Mapping[str, ApiError | None]:
        """Sets and deletes passwords of users."""

        def decide(draft: MetadataDraft) -> Mapping[str, ApiError | None]:
            def alter(named: tuple[str, UserChange]) -> None:
                name, change = named
                credentials = alter_user(draft, name, change, self._settings.users)
                if credentials != draft.users.get(name, {}):
                    draft.put_user(name, credentials)

            return _each(((name, (name, change)) for name, change in changes.items()), alter)

        return await self.change(decide)

    async def add_first_user(self, name: str, change: UserChange) -> bool:
        """Adds a user if there is none at all; whether it was added."""

        def decide(draft: MetadataDraft) -> bool:
            if draft.users:
                return False
            draft.put_user(name, alter_user(draft, name, change, self._settings.users))
            return True

        return await self.change(decide)

    async def alter_database_groups(
        self, changes: Mapping[str, GroupChange], *, validate_only: bool = False
    ) -> Mapping[str, ApiError | None]:
        """Makes, changes and removes database groups."""
        leases: dict[str, list[Change]] = {}

        def decide(draft: MetadataDraft) -> Mapping[str, ApiError | None]:
            def alter(named: tuple[str, GroupChange]) -> None:
                name, change = named
                database_groups.alter(draft, name, change)
                if change.is_removal:
                    # A node with leases below it cannot be deleted.
                    draft.conditions.extend(leases.get(name, ()))

            return _each(((name, (name, change)) for name, change in changes.items()), alter)

        removed = [name for name, change in changes.items() if change.is_removal]
        for _ in range(ATTEMPTS if removed else 0):
            for name in self.image.databases.keys() & removed:
                leases[name] = [*(await self._leases_below(nodes.database_path(name)))]
            try:
                return await self.change(decide, validate_only=validate_only)
            except ConflictError:
                # A lease has come or gone meanwhile.
                continue
        return await self.change(decide, validate_only=validate_only)

    async def alter_quotas(
        self, changes: Mapping[QuotaEntity, QuotaChange], *, validate_only: bool = False
    ) -> Mapping[QuotaEntity, ApiError | None]:
        def decide(draft: MetadataDraft) -> Mapping[QuotaEntity, ApiError | None]:
            def alter(named: tuple[QuotaEntity, QuotaChange]) -> None:
                entity, change = named
                limits = alter_quota(draft, entity, change, self._settings.entities_with_quotas)
                if limits != draft.quotas.get(entity, {}):
                    draft.put_quota(entity, limits)

            return _each(((entity, (entity, change)) for entity, change in changes.items()), alter)

        return await self.change(decide, validate_only=validate_only)

    async def _leases_below(self, path: str) -> list[Delete]:
        found = [f"{path}/{name}" for name in await self._coordination.children(path)]
        read = [(child, await self._coordination.get(child)) for child in found]
        return [Delete(child, node.version) for child, node in read if node is not None]

    async def promote_server(self, group: str, server: int, generation: int) -> bool:
        """Makes a server of a database group its primary, if the group is still in this generation; whether it is."""

        def decide(draft: MetadataDraft) -> bool:
            return group in draft.databases and database_groups.promote(draft, group, server, generation=generation)

        return await self.change(decide)

    async def finish_database_move(self, at: TopicPartition, topic_id: TopicId, epoch: int, target: str) -> bool:
        """This broker, as the leader in this epoch, has copied a partition to another database group; whether the
        partition is there now, in a new epoch. If not, the copy does not count.
        """
        me = self._settings.broker_id
        return await self.change(lambda draft: database_groups.finish_move(draft, at, topic_id, me, epoch, target))

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition] | None, *, is_unclean: bool
    ) -> Mapping[TopicPartition, ApiError | None]:
        """Elects preferred replicas, or any where there is no leader; None is for all, and gives those that change."""

        def decide(draft: MetadataDraft) -> Mapping[TopicPartition, ApiError | None]:
            wanted = partitions
            if wanted is None:
                wanted = [
                    TopicPartition(topic.name, partition.index)
                    for topic in draft.topics.values()
                    for partition in topic.partitions
                ]

            def elect(at: TopicPartition) -> None:
                draft.put_partition(at.topic, operator_requests.elected(draft, at, is_unclean=is_unclean))

            results = _each(((at, at) for at in wanted), elect)
            return results if partitions is not None else operator_requests.without_unneeded(results)

        return await self.change(decide)

    async def reassign_partitions(
        self, targets: Mapping[TopicPartition, tuple[BrokerId, ...] | None], *, may_change_factor: bool = True
    ) -> Mapping[TopicPartition, ApiError | None]:
        """Begins to move partitions to these replicas; None gives up the move that is under way."""

        def decide(draft: MetadataDraft) -> Mapping[TopicPartition, ApiError | None]:
            before_all = dict(draft.topics)

            def move(at: TopicPartition) -> None:
                before = operator_requests.partition_at(draft, at)
                after = operator_requests.moved(draft, at, targets[at], may_change_factor=may_change_factor)
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

        def decide(draft: MetadataDraft) -> None:
            alive = draft.alive
            changed: dict[str, list[PartitionImage]] = {}
            for (name, index), (epoch, in_sync) in changes.items():
                topic = draft.topics.get(name)
                if topic is None or index >= len(topic.partitions):
                    continue
                before = topic.partitions[index]
                after = elections.with_in_sync(before, self._settings.broker_id, epoch, in_sync, alive)
                if after != before:
                    changed.setdefault(name, []).append(after)
            for name, partitions in changed.items():
                draft.put_partition(name, *partitions)

        await self.change(decide, partitions=len(changes))

    async def allocate_producer_ids(self, count: int) -> range:
        """A block of producer ids that were never given out and never will be again, whatever crashes."""
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

    def _topic_defaults(self, draft: MetadataDraft) -> Mapping[str, str]:
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
