"""Operations on consumer groups: members, lag, resets with a preview, pauses, deletion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.admin import (
    AtOffset,
    AtTime,
    Cluster,
    Earliest,
    GroupDescription,
    GroupOffset,
    GroupPause,
    Latest,
    ResetPlan,
    ResetTarget,
    ShiftBy,
    TopicPartition,
)
from penstock.console.errors import ConflictError, InvalidError
from penstock.console.operations.clusters import Clusters, seen_by
from penstock.console.operations.operation import Changed, Scope, Service, change, query
from penstock.console.operations.paging import ItemResult, RowPage, RowQuery, row_page
from penstock.console.polling.snapshot import GroupRow
from penstock.console.security.roles import Caller, Role
from penstock.console.state.audit import AuditLog

_COLUMNS = ("name", "state", "members", "topics", "lag", "rate_per_s", "eta_s", "paused")


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A consumer of a group."""

    id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: Mapping[str, tuple[int, ...]]
    """By topic."""


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """How far a group is in a partition, and who reads it."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    member: str | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class GroupDetail:
    """A group, its members, and its offsets."""

    name: str
    state: str
    assignor: str
    members: tuple[MemberRow, ...]
    partitions: tuple[GroupPartition, ...]
    lag: int
    paused_all: bool
    paused_topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResetWish:
    """Where a group shall go on."""

    to: str
    """`earliest`, `latest`, `offset`, `time` or `shift`."""
    value: int = 0
    """The offset, the time in milliseconds since 1970, or the shift."""
    partitions: tuple[TopicPartition, ...] | None = None
    """None: all that the group has committed an offset for."""
    include_retries: bool = False


@dataclass(frozen=True, slots=True)
class ResetRow:
    """What a reset means for a partition; counts are upper bounds, because offsets have gaps."""

    topic: str
    partition: int
    before: int | None
    after: int | None
    repeated: int
    skipped: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ResetPreview:
    """What a reset would do, or has done."""

    group: str
    members: int
    rows: tuple[ResetRow, ...]
    repeated: int
    skipped: int
    left_out: tuple[str, ...]
    is_applied: bool


class GroupOperations(Service):
    """Groups of a cluster."""

    def __init__(self, audit: AuditLog, clusters: Clusters) -> None:
        super().__init__(audit)
        self._clusters = clusters

    @query("groups.list", Role.VIEWER, Scope.ANY)
    async def list(self, caller: Caller, cluster: str, rows: RowQuery) -> RowPage[GroupRow]:
        snapshot = seen_by(caller, self._clusters[cluster].snapshot)
        return row_page(snapshot.groups.values(), rows, snapshot.at_ms, _COLUMNS, lambda row: row.name)

    @query("groups.describe", Role.VIEWER, Scope.GROUP)
    async def describe(self, caller: Caller, cluster: str, group: str) -> GroupDetail:
        link = self._clusters[cluster].link
        return await link.detail(("group", group), lambda admin: _detail(admin, group))

    @query("groups.preview_reset", Role.VIEWER, Scope.GROUP)
    async def preview_reset(self, caller: Caller, cluster: str, group: str, wish: ResetWish) -> ResetPreview:
        """What a reset would skip and repeat; changes nothing."""
        plan = await self._plan(cluster, group, wish)
        return _preview(plan, {}, is_applied=False)

    @change("groups.reset", Role.OPERATOR, Scope.GROUP)
    async def reset(self, caller: Caller, cluster: str, group: str, wish: ResetWish) -> Changed[ResetPreview]:
        """Sets a group's offsets, whether it runs or not: brokers fence its members, which go on from there."""
        plan = await self._plan(cluster, group, wish)
        if not plan.after:
            reasons = [error.message for error in plan.errors.values()]
            raise InvalidError(
                f"group {group} has nothing to reset{': ' + reasons[0] if reasons else ''}; nothing was changed"
            )
        managed = self._clusters[cluster]
        done = await managed.link.run(lambda admin: admin.resets.apply(plan))
        managed.changed()
        failed = {at: error.message for at, error in done.errors.items()}
        before = {str(at): plan.before.get(at) for at in plan.after}
        after = {str(at): offset for at, offset in plan.after.items() if at not in failed}
        problem = "; ".join(f"{at}: {text}" for at, text in failed.items())
        return Changed(_preview(plan, failed, is_applied=True), before, after, problem)

    @change("groups.pause", Role.OPERATOR, Scope.GROUP)
    async def pause(self, caller: Caller, cluster: str, group: str, topics: Sequence[str] = ()) -> Changed[GroupPause]:
        """Members stay joined and receive nothing, of all topics or of these."""
        return await self._change_pause(cluster, group, topics, is_pause=True)

    @change("groups.resume", Role.OPERATOR, Scope.GROUP)
    async def resume(self, caller: Caller, cluster: str, group: str, topics: Sequence[str] = ()) -> Changed[GroupPause]:
        return await self._change_pause(cluster, group, topics, is_pause=False)

    @change("groups.delete_offsets", Role.OPERATOR, Scope.GROUP)
    async def delete_offsets(
        self, caller: Caller, cluster: str, group: str, partitions: Sequence[TopicPartition]
    ) -> Changed[tuple[ItemResult, ...]]:
        """The group forgets partitions; refused while a member reads the topic."""
        managed = self._clusters[cluster]
        committed = (await managed.link.run(lambda admin: admin.groups.committed([group])))[group]
        done = await managed.link.run(lambda admin: admin.group_offsets.delete(group, partitions))
        managed.changed()
        results = [ItemResult(str(at), True) for at in done.values]
        results += [ItemResult(str(at), False, error.code, error.message) for at, error in done.errors.items()]
        before = {str(at): committed[at].offset for at in partitions if at in committed}
        problem = "; ".join(f"{each.item}: {each.error}" for each in results if not each.is_done)
        return Changed(tuple(results), before, None, problem)

    @change("groups.delete", Role.ADMIN, Scope.GROUP)
    async def delete(self, caller: Caller, cluster: str, group: str, confirm: str) -> Changed[None]:
        """Deletes a group without members, with its offsets; `confirm` is its name once more."""
        if confirm != group:
            raise ConflictError(f"type the name {group} to confirm; nothing was deleted")
        managed = self._clusters[cluster]
        committed = (await managed.link.run(lambda admin: admin.groups.committed([group])))[group]
        await managed.link.run(lambda admin: admin.groups.delete([group])[group])
        managed.changed()
        return Changed(None, {str(at): each.offset for at, each in committed.items()}, None)

    async def _plan(self, cluster: str, group: str, wish: ResetWish) -> ResetPlan:
        target = _target(wish)
        return await self._clusters[cluster].link.run(
            lambda admin: admin.resets.plan(group, target, wish.partitions, include_retries=wish.include_retries)
        )

    async def _change_pause(
        self, cluster: str, group: str, topics: Sequence[str], *, is_pause: bool
    ) -> Changed[GroupPause]:
        managed = self._clusters[cluster]
        before = (await managed.link.run(lambda admin: admin.groups.pauses([group])))[group]
        after = await managed.link.run(
            lambda admin: (admin.groups.pause if is_pause else admin.groups.resume)(group, topics)
        )
        managed.changed()
        return Changed(after, before, after)


def _target(wish: ResetWish) -> ResetTarget:
    match wish.to:
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
        case "offset":
            return AtOffset(wish.value)
        case "time":
            return AtTime(wish.value)
        case "shift":
            return ShiftBy(wish.value)
        case _:
            raise InvalidError(f"{wish.to!r} is no target of a reset: earliest, latest, offset, time or shift")


def _preview(plan: ResetPlan, failed: Mapping[TopicPartition, str], *, is_applied: bool) -> ResetPreview:
    rows = [_reset_row(at, plan.before.get(at), offset, failed.get(at, "")) for at, offset in plan.after.items()]
    rows += [
        ResetRow(at.topic, at.partition, plan.before.get(at), None, 0, 0, error.message)
        for at, error in plan.errors.items()
    ]
    return ResetPreview(
        group=plan.group,
        members=plan.member_count,
        rows=tuple(sorted(rows, key=lambda row: (row.topic, row.partition))),
        repeated=sum(row.repeated for row in rows),
        skipped=sum(row.skipped for row in rows),
        left_out=plan.left_out,
        is_applied=is_applied,
    )


def _reset_row(at: TopicPartition, before: int | None, after: int, problem: str) -> ResetRow:
    moved = 0 if before is None else after - before
    return ResetRow(at.topic, at.partition, before, after, max(0, -moved), max(0, moved), problem)


def _detail(admin: Cluster, group: str) -> GroupDetail:
    described = admin.groups.describe([group])[group]
    offsets = admin.groups.offsets([group])[group]
    pause = admin.groups.pauses([group]).values.get(group, GroupPause())
    rows = _group_partitions(described, offsets)
    return GroupDetail(
        name=group,
        state=described.state,
        assignor=described.assignor,
        members=tuple(
            MemberRow(member.id, member.client_id, member.host, member.group_instance_id, _by_topic(member.partitions))
            for member in described.members
        ),
        partitions=rows,
        lag=sum(row.lag or 0 for row in rows),
        paused_all=pause.is_all,
        paused_topics=pause.topics,
    )


def _group_partitions(group: GroupDescription, offsets: Sequence[GroupOffset]) -> tuple[GroupPartition, ...]:
    readers = {at: member.id for member in group.members for at in member.partitions}
    rows = {
        each.partition: GroupPartition(
            each.partition.topic,
            each.partition.partition,
            each.committed,
            each.end,
            each.lag,
            readers.get(each.partition),
            "" if each.error is None else each.error.message,
        )
        for each in offsets
    }
    for at, member in readers.items():
        rows.setdefault(at, GroupPartition(at.topic, at.partition, None, None, None, member))
    return tuple(rows[at] for at in sorted(rows))


def _by_topic(partitions: Sequence[TopicPartition]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for at in partitions:
        found[at.topic] = (*found.get(at.topic, ()), at.partition)
    return found
