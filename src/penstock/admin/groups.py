"""Consumer groups: members, committed offsets and lag, pauses, deletion. Resets are in `group_reset`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as LibraryPartition

from penstock.admin.configs import ConfigChange, ConfigOperations, ConfigResource, Configs
from penstock.admin.connection import AdminConnection
from penstock.admin.errors import AdminError, admin_error
from penstock.admin.offsets import OffsetOperations
from penstock.admin.results import Page, Results
from penstock.admin.topics import did_you_mean
from penstock.config.group import PAUSED, PAUSED_TOPICS, RESET_MARK
from penstock.errors import Code
from penstock.ids import TopicPartition

_DEAD = "DEAD"
"""The state of a group that does not exist."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group as a list shows it; the state is Kafka's: STABLE, EMPTY, PREPARING_REBALANCE, ..."""

    name: str
    state: str


@dataclass(frozen=True, slots=True)
class GroupListing:
    """All groups of which brokers told."""

    groups: tuple[GroupSummary, ...]
    errors: tuple[AdminError, ...]
    """Of brokers that did not tell of theirs."""


@dataclass(frozen=True, slots=True)
class GroupPause:
    """What a group does not receive: everything, some topics, or (false) neither."""

    is_all: bool = False
    topics: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.is_all or bool(self.topics)


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One consumer in a group."""

    id: str
    client_id: str
    host: str
    group_instance_id: str | None
    """For a static member."""
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members."""

    name: str
    state: str
    assignor: str
    members: tuple[MemberDescription, ...]


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Where a group goes on in a partition."""

    offset: int
    metadata: str


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """How far a group is in one partition."""

    partition: TopicPartition
    committed: int
    end: int | None
    """One past the last offset of the partition; None if its leader does not answer, and `error` says why."""
    error: AdminError | None = None

    @property
    def lag(self) -> int | None:
        return None if self.end is None else max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind, partition by partition."""

    name: str
    state: str
    offsets: tuple[GroupOffset, ...]
    error: AdminError | None = None
    """Why its committed offsets cannot be read, if so."""

    @property
    def lag(self) -> int:
        """Over all partitions whose lag is known."""
        return sum(offset.lag or 0 for offset in self.offsets)


class GroupOperations:
    """Operations on consumer groups."""

    def __init__(self, connection: AdminConnection, configs: ConfigOperations, offsets: OffsetOperations) -> None:
        self._connection = connection
        self._configs = configs
        self._offsets = offsets

    def list(self) -> GroupListing:
        """All groups by name; each broker lists the groups that it coordinates."""
        deadline = self._connection.deadline()
        asked: Future[Any] = self._connection.send(
            lambda: self._connection.client.list_consumer_groups(request_timeout=deadline.left_s)
        )
        told = self._connection.result(asked, deadline)
        groups = sorted((group.group_id, group.state.name) for group in told.valid)
        if told.errors and not groups:
            # With no broker at all the library gives an empty list and an error; this raises.
            self._connection.require_listener()
            self._connection.metadata(deadline)
        return GroupListing(
            tuple(GroupSummary(name, state) for name, state in groups),
            tuple(admin_error(error) for error in told.errors),
        )

    def describe(self, names: Iterable[str]) -> Results[str, GroupDescription]:
        """These groups; GROUP_ID_NOT_FOUND for one that does not exist, with the nearest name that does."""
        deadline, wanted = self._connection.deadline(), list(dict.fromkeys(names))
        if not wanted:
            return Results()
        asked = self._connection.send(
            lambda: self._connection.client.describe_consumer_groups(wanted, request_timeout=deadline.left_s)
        )
        told: Results[str, Any] = self._connection.results(asked, deadline)
        found = {name: _description(name, group) for name, group in told.values.items() if group.state.name != _DEAD}
        missing = [
            name
            for name in wanted
            if name not in found and (name in told.values or told.errors[name].code == Code.GROUP_ID_NOT_FOUND.name)
        ]
        known = [group.name for group in self.list().groups] if missing else []
        return Results(found, {**told.errors, **{name: no_group(name, known) for name in missing}})

    def committed(
        self, names: Iterable[str], *, require_stable: bool = False
    ) -> Results[str, Mapping[TopicPartition, CommittedOffset]]:
        """All committed offsets of groups; a group that does not exist has none. `require_stable` waits for
        transactions that are about to commit offsets.
        """
        deadline = self._connection.deadline()
        asked: dict[str, Future[Any]] = {}
        for name in dict.fromkeys(names):
            # The library takes one group a request.
            asked |= self._connection.send(
                lambda name=name: self._connection.client.list_consumer_group_offsets(  # type: ignore[misc]
                    [ConsumerGroupTopicPartitions(name)],
                    require_stable=require_stable,
                    request_timeout=deadline.left_s,
                )
            )
        return self._connection.results(asked, deadline).map(_committed)

    def offsets(self, names: Iterable[str]) -> Results[str, tuple[GroupOffset, ...]]:
        """How far groups are in each partition that they have committed an offset for."""
        committed = self.committed(names)
        ends = self._offsets.latest(sorted({at for each in committed.values.values() for at in each}))
        return committed.map(
            lambda each: tuple(
                GroupOffset(at, found.offset, ends.values.get(at), ends.errors.get(at)) for at, found in each.items()
            )
        )

    def lags(self, *, limit: int = 100, after: str | None = None) -> Page[GroupLag]:
        """Groups by name with their lag."""
        listed = [group for group in self.list().groups if after is None or group.name > after]
        chosen = listed[:limit]
        offsets = self.offsets(group.name for group in chosen)
        items = tuple(
            GroupLag(
                group.name,
                group.state,
                offsets.values.get(group.name, ()),
                offsets.errors.get(group.name),
            )
            for group in chosen
        )
        return Page(items, chosen[-1].name if len(listed) > limit else None)

    def unread_by(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, tuple[str, ...]]:
        """For each partition: the groups that have committed an offset before its end."""
        ends = self._offsets.latest(partitions).values
        committed = self.committed(group.name for group in self.list().groups).all()
        return {
            at: tuple(
                name for name, each in committed.items() if at in each and at in ends and each[at].offset < ends[at]
            )
            for at in partitions
        }

    def set_offsets(
        self, name: str, offsets: Mapping[TopicPartition, int], *, fence_members: bool = True
    ) -> Results[TopicPartition, None]:
        """Sets committed offsets, whether the group has members or not: brokers fence the members, which rejoin and
        go on from there. If one partition does not exist, brokers set none.

        Without `fence_members`, brokers refuse if the group has members (UNKNOWN_MEMBER_ID).
        """
        deadline = self._connection.deadline()
        if not offsets:
            return Results()
        mark = RESET_MARK if fence_members else ""
        wanted = [LibraryPartition(at.topic, at.partition, offset, metadata=mark) for at, offset in offsets.items()]
        asked: dict[str, Future[Any]] = self._connection.send(
            lambda: self._connection.client.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(name, wanted)], request_timeout=deadline.left_s
            )
        )
        told = self._connection.result(asked[name], deadline).topic_partitions
        errors = {
            TopicPartition(each.topic, each.partition): admin_error(each.error)
            for each in told
            if each.error is not None
        }
        return Results({at: None for at in offsets if at not in errors}, errors)

    def delete(self, names: Iterable[str]) -> Results[str, None]:
        """Deletes groups without members, with their offsets."""
        deadline, wanted = self._connection.deadline(), list(dict.fromkeys(names))
        if not wanted:
            return Results()
        asked = self._connection.send(
            lambda: self._connection.client.delete_consumer_groups(wanted, request_timeout=deadline.left_s)
        )
        done = self._connection.results(asked, deadline)
        return Results(done.values, {name: _deletion_error(name, error) for name, error in done.errors.items()})

    def pauses(self, names: Iterable[str]) -> Results[str, GroupPause]:
        """What is paused of groups; a group that does not exist yet can be paused too."""
        asked = {ConfigResource.group(name): name for name in names}
        found = self._configs.describe(asked).map(_pause)
        return Results(
            {asked[resource]: pause for resource, pause in found.values.items()},
            {asked[resource]: error for resource, error in found.errors.items()},
        )

    def pause(self, name: str, topics: Sequence[str] = ()) -> GroupPause:
        """Pauses all of a group, or these topics besides those that are paused already; gives what is paused now.

        Members stay joined and receive nothing.
        """
        everything = ConfigChange.set(PAUSED.name, "true")
        return self._change_pause(name, [ConfigChange.append(PAUSED_TOPICS.name, topics) if topics else everything])

    def resume(self, name: str, topics: Sequence[str] = ()) -> GroupPause:
        """Resumes everything, or these topics; gives what is still paused."""
        if topics:
            changes = [ConfigChange.subtract(PAUSED_TOPICS.name, topics)]
        else:
            changes = [ConfigChange.delete(PAUSED.name), ConfigChange.delete(PAUSED_TOPICS.name)]
        return self._change_pause(name, changes)

    def _change_pause(self, name: str, changes: Sequence[ConfigChange]) -> GroupPause:
        self._configs.alter({ConfigResource.group(name): changes}).all()
        return self.pauses([name])[name]


def no_group(name: str, known: Iterable[str]) -> AdminError:
    """The error for a group that does not exist."""
    return AdminError(Code.GROUP_ID_NOT_FOUND.name, f"there is no group {name}{did_you_mean(name, known)}")


def _description(name: str, group: Any) -> GroupDescription:
    return GroupDescription(
        name, group.state.name, group.partition_assignor, tuple(_member(member) for member in group.members)
    )


def _member(member: Any) -> MemberDescription:
    assigned = member.assignment.topic_partitions if member.assignment is not None else ()
    return MemberDescription(
        id=member.member_id,
        client_id=member.client_id,
        host=member.host.removeprefix("/"),
        group_instance_id=member.group_instance_id or None,
        partitions=tuple(sorted(TopicPartition(each.topic, each.partition) for each in assigned)),
    )


def _metadata(place: Any) -> str:
    """What a member has noted with its offset. Any client may note any bytes, which the library takes for UTF-8."""
    try:
        return place.metadata or ""
    except UnicodeDecodeError:
        return ""


def _committed(told: Any) -> Mapping[TopicPartition, CommittedOffset]:
    found = {
        TopicPartition(each.topic, each.partition): CommittedOffset(each.offset, _metadata(each))
        for each in told.topic_partitions or ()
        if each.error is None and each.offset >= 0
    }
    return dict(sorted(found.items()))


def _pause(configs: Configs) -> GroupPause:
    def value(name: str) -> str:
        entry = configs.get(name)
        return "" if entry is None or entry.value is None else entry.value

    topics = tuple(topic for topic in value(PAUSED_TOPICS.name).split(",") if topic)
    return GroupPause(value(PAUSED.name) == "true", topics)


def _deletion_error(name: str, error: AdminError) -> AdminError:
    if error.code == Code.NON_EMPTY_GROUP.name:
        return AdminError(error.code, "it has members; stop them first")
    return AdminError(error.code, "there is no such group") if error.code == Code.GROUP_ID_NOT_FOUND.name else error
