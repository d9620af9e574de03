"""The group coordinator: the shell around the shards. It passes them events one at a time, appends records and replies.

Rule: an event's records are appended before any of its effects is visible; durable state and replies follow the append.
If the append fails, the coordinator tells every client that waits for a reply to retry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from penstock.background_loop import shielded
from penstock.clock import Clock
from penstock.cluster.decisions.retired_partitions import partitions_gone
from penstock.cluster.decisions.settings import Replacement
from penstock.cluster.decisions.topics import TopicCreation
from penstock.cluster.metadata import OFFSETS_TOPIC, MetadataImage
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.config.broker import GroupSettings
from penstock.config.group import CLIENT, group_config
from penstock.errors import ApiError, Code, CoordinationError
from penstock.groups.changes import Changes
from penstock.groups.classic.group import ClassicGroup
from penstock.groups.consumer.events import ConsumerHeartbeat, HeartbeatAnswer
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer_joins import ConsumerJoins, Take
from penstock.groups.events import Heartbeat, Join, Joined, Leaver, MemberEpoch, Outcome, Sync, Synced
from penstock.groups.group_types import Group
from penstock.groups.initial_offsets import initial_offsets
from penstock.groups.offsets import Committed
from penstock.groups.outcome_writer import GroupCounts, OutcomeWriter, answer
from penstock.groups.pause import Pause
from penstock.groups.records import decode, groups_named
from penstock.groups.rules import GroupRules, OffsetRules
from penstock.groups.shard import Shard
from penstock.ids import TopicPartition
from penstock.logs import fields
from penstock.protocol.messages.consumer_group_heartbeat import JOIN
from penstock.replication.damage_repair import DamageRepair
from penstock.replication.lost_records import LostRange
from penstock.replication.placement import partition_for
from penstock.replication.replicas import Replicas
from penstock.replication.shards import STATE_TOPIC_SETTINGS, LoadedShard, Shards
from penstock.replication.state_log import GuardedTransaction
from penstock.replication.transaction_marker import TransactionMarker

logger = logging.getLogger(__name__)

_TICK_S = 0.05

T = TypeVar("T")
A = TypeVar("A", Joined, Synced)


class LedShard(NamedTuple):
    """A shard that is loaded here, and the leader epoch of its partition."""

    epoch: int
    committed: Mapping[str, Mapping[TopicPartition, Committed]]
    """By group."""
    groups: Mapping[str, Group]
    """By name, without those that only have offsets."""


class GroupCoordinator:
    """All groups of this broker."""

    def __init__(
        self,
        metadata: MetadataChanges,
        replicas: Replicas,
        settings: GroupSettings,
        clock: Clock,
        new_member_id: Callable[[str], str],
        repair: DamageRepair,
        changes: Changes | None = None,
    ) -> None:
        """The coordinator reports changes of groups and offsets, and the shards that it loads, to `changes`."""
        self._metadata = metadata
        self._replicas = replicas
        self._settings = settings
        self._group_rules = GroupRules(
            min_session_timeout_ms=settings.min_session_timeout_ms,
            max_session_timeout_ms=settings.max_session_timeout_ms,
            initial_rebalance_delay_ms=settings.initial_rebalance_delay_ms,
            max_members=settings.max_members,
            max_bytes=settings.group_bytes,
            new_member_id=new_member_id,
            consumer_session_timeout_ms=settings.consumer_session_timeout_ms,
            consumer_heartbeat_interval_ms=settings.consumer_heartbeat_interval_ms,
            consumer_assignors=settings.consumer_assignors,
            max_pattern_length=settings.subscription_pattern_length,
        )
        self._offset_rules = OffsetRules(
            max_metadata_bytes=settings.offset_metadata_bytes,
            retention_ms=settings.offsets_retention_ms,
            max_offsets=settings.offsets_per_group,
            max_groups=settings.groups_per_partition,
        )
        self._shards = Shards(
            TopicCreation(name=OFFSETS_TOPIC, partitions=settings.offsets_partitions, overrides=STATE_TOPIC_SETTINGS),
            metadata,
            replicas,
            clock,
            make=lambda: Shard(self._group_rules, self._offset_rules, metadata.image),
            load=self._load,
            lost=lambda shard: answer(shard.abandon(Code.NOT_COORDINATOR).replies),
            adopted=self._keep_time,
            repair=repair,
        )
        self._changes = changes
        self._consumer_joins = ConsumerJoins(self._let_in, self._shards.spawn)
        self._outcomes = OutcomeWriter(self._shards.now_ms, changes)

    @property
    def counts(self) -> GroupCounts:
        return self._outcomes.counts

    @property
    def lost_ranges(self) -> int:
        """Damaged parts of the internal topic that shards were loaded without."""
        return self._shards.lost_ranges

    @property
    def loading(self) -> int:
        """Shards that are not there yet."""
        return sum(not loaded.is_loaded for loaded in self._shards)

    def committed(self) -> Iterable[tuple[str, Mapping[TopicPartition, Committed]]]:
        """The committed offsets of every group."""
        for loaded in self._shards:
            yield from loaded.state.offsets.committed.items()

    def led_shards(self) -> dict[int, LedShard]:
        """The shards that are loaded, by index."""
        found = {}
        for loaded in self._shards:
            leadership = loaded.log.partition.leadership
            if loaded.is_loaded and leadership is not None:
                found[loaded.index] = LedShard(leadership.epoch, loaded.state.offsets.committed, loaded.state.groups)
        return found

    def index_of(self, group_id: str) -> int:
        """The shard of a group; -1 as long as there are no shards."""
        topic = self._metadata.image.topics.get(OFFSETS_TOPIC)
        return -1 if topic is None else partition_for(group_id, len(topic.partitions))

    async def start(self) -> None:
        """Loads the shards that this broker has."""
        await self._shards.adopt()

    def release(self) -> None:
        """The broker is about to stop: answers all requests that wait for a rebalance."""
        self._shards.release()
        for loaded in self._shards:
            answer(loaded.state.abandon(Code.COORDINATOR_NOT_AVAILABLE).replies)

    async def close(self) -> None:
        self.release()
        await self._shards.close()

    def topics_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """The offsets of what is deleted go with it; groups look at their topics and settings anew."""
        for loaded in self._shards:
            loaded.state.image = new
        before, after = old.settings_by_group, new.settings_by_group
        for group_id in before.keys() | after.keys() if before != after and not self._shards.is_stopping else ():
            if before.get(group_id) != after.get(group_id):
                self._shards.spawn(self._take_settings(group_id), f"settings of {group_id}")
        gone = partitions_gone(old, new, self._shards.topics_gone(old, new))
        if not gone or self._shards.is_stopping:
            return
        self._shards.spawn(self._forget(gone), "offsets of what is deleted")

    def look(self) -> None:
        """Begins to load the shards that this broker leads."""
        self._shards.look()

    async def prepare(self) -> int:
        """Makes sure that the internal topic is there; gives its number of partitions."""
        return await self._shards.prepare()

    def groups(self) -> Iterable[Group]:
        """Every group with members or a past, and those that only have offsets."""
        for loaded in self._shards:
            yield from loaded.state.groups.values()
            for group_id in loaded.state.offsets.group_ids:
                if group_id not in loaded.state.groups:
                    yield ClassicGroup(group_id, self._group_rules)

    async def find(self, group_id: str) -> Group | None:
        """The group as it is now; one that only has offsets is empty."""
        shard = (await self._shards.of(group_id)).state
        group = shard.groups.get(group_id)
        if group is None and group_id in shard.offsets:
            return ClassicGroup(group_id, self._group_rules)
        return group

    async def join(self, group_id: str, make: Callable[[object], Join]) -> Joined:
        return await self._ask(group_id, lambda shard, token, now: shard.join(group_id, make(token), now), Joined)

    async def sync(self, group_id: str, make: Callable[[object], Sync]) -> Synced:
        return await self._ask(group_id, lambda shard, token, now: shard.sync(group_id, make(token), now), Synced)

    async def heartbeat(self, group_id: str, event: Heartbeat) -> Code:
        shard = (await self._shards.of(group_id)).state
        return shard.heartbeat(group_id, event, self._shards.now_ms())

    async def consumer_heartbeat(self, group_id: str, event: ConsumerHeartbeat) -> HeartbeatAnswer:
        if event.epoch == JOIN:
            return await self._consumer_joins.join(group_id, event)
        return await self._change(group_id, lambda shard, now_ms: shard.consumer_heartbeat(group_id, event, now_ms))

    async def leave(self, group_id: str, leavers: tuple[Leaver, ...]) -> list[Code]:
        codes = await self._change(group_id, lambda shard, now_ms: shard.leave(group_id, leavers, now_ms))
        self._mark_group(group_id)
        return codes

    async def commit(
        self,
        group_id: str,
        member: MemberEpoch,
        offsets: Mapping[TopicPartition, Committed],
        transaction: GuardedTransaction | None = None,
    ) -> tuple[Code | None, Mapping[TopicPartition, Code]]:
        """In a transaction, the offsets count once it is committed."""

        def work(shard: Shard, now_ms: int) -> tuple[tuple[Code | None, Mapping[TopicPartition, Code]], Outcome]:
            refusal, codes, outcome = shard.commit(
                group_id, member, offsets, now_ms, in_transaction=transaction is not None
            )
            return (refusal, codes), outcome

        return await self._change(group_id, work, transaction)

    async def reset(
        self, group_id: str, offsets: Mapping[TopicPartition, Committed]
    ) -> tuple[Code | None, Mapping[TopicPartition, Code]]:
        """Sets offsets and puts the members out, who go on from there."""

        def work(shard: Shard, now_ms: int) -> tuple[tuple[Code | None, Mapping[TopicPartition, Code]], Outcome]:
            refusal, codes, outcome = shard.reset(group_id, offsets, now_ms)
            return (refusal, codes), outcome

        return await self._change(group_id, work)

    async def place_of(self, group_id: str) -> TopicPartition:
        """The partition of the internal topic in which a group's offsets are written."""
        return TopicPartition(OFFSETS_TOPIC, partition_for(group_id, await self._shards.prepare()))

    def guard(self, at: TopicPartition, producer_id: int) -> int:
        """What a transactional commit has to bring along; see `Transaction.guard`."""
        return self._shards.at(at.partition).log.partition.log.producers.guard(producer_id)

    async def end_transaction(self, at: TopicPartition, marker: TransactionMarker) -> None:
        """Writes the end of a transaction that has committed offsets here, and lets them count or not."""
        loaded = self._shards.at(at.partition)

        async def work(shard: Shard) -> None:
            await marker.write_to(loaded.log.partition)
            if self._changes is not None:
                for group_id in shard.offsets.groups_of(marker.producer_id):
                    for place in shard.offsets.pending(group_id):
                        self._changes.mark_offset(group_id, place)
            shard.offsets.end_transaction(marker.producer_id, committed=marker.is_commit)

        await self._shards.change(loaded, work, "end of a transaction")

    async def check_reader(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Raises ApiError if who asks for offsets as a member of a consumer group is none, or has missed something."""
        group = (await self._shards.of(group_id)).state.groups.get(group_id)
        if isinstance(group, ConsumerGroup) and (member_id is not None or epoch >= 0):
            code = group.check(member_id or "", epoch)
            if code is not None:
                raise ApiError(code)

    async def fetch(
        self, group_id: str, wanted: Iterable[TopicPartition] | None
    ) -> tuple[dict[TopicPartition, Committed | None], frozenset[TopicPartition]]:
        """Committed offsets, and the partitions whose offset a transaction may still change."""
        shard = (await self._shards.of(group_id)).state
        held, pending = shard.fetch(group_id, wanted), shard.offsets.pending(group_id)
        settings = self._metadata.image.settings_by_group.get(group_id)
        policy = CLIENT if settings is None else group_config(settings).offset_initial
        if wanted is not None and policy != CLIENT:
            missing = [at for at, offset in held.items() if offset is None and at not in pending]
            initial = initial_offsets(self._replicas, policy, missing, self._shards.now_ms())
            if initial:
                work = partial(_commit_initial, group_id=group_id, offsets=initial)
                held |= await self._change(group_id, work)
        return held, pending

    async def delete_group(self, group_id: str) -> Code:
        loaded = await self._shards.of(group_id)
        # A member whose session is over does not keep its group until the next look.
        look = self._shards.look_after(loaded, self._end_what_is_over)
        await shielded(self._shards.spawn(look, f"look at {group_id}"))
        code = await self._change(group_id, lambda shard, now_ms: shard.delete_group(group_id))
        if code in (Code.NONE, Code.GROUP_ID_NOT_FOUND) and group_id in self._metadata.image.settings_by_group:
            # A group of which there are only settings is one too.
            try:
                await self._metadata.alter_group_settings({group_id: Replacement({})})
            except CoordinationError as error:
                raise ApiError(Code.COORDINATOR_NOT_AVAILABLE, str(error)) from error
            return Code.NONE
        return code

    async def delete_offsets(
        self, group_id: str, wanted: Iterable[TopicPartition]
    ) -> tuple[Code, dict[TopicPartition, Code]]:
        def work(shard: Shard, now_ms: int) -> tuple[tuple[Code, dict[TopicPartition, Code]], Outcome]:
            code, codes, outcome = shard.delete_offsets(group_id, wanted)
            return (code, codes), outcome

        return await self._change(group_id, work)

    async def _ask(
        self, group_id: str, handle: Callable[[Shard, object, int], Outcome], answer_type: Callable[..., A]
    ) -> A:
        """Hands over an event that may be answered later, and waits for its answer."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        try:
            await self._change(group_id, lambda shard, now_ms: (None, handle(shard, answer, now_ms)))
        except ApiError as error:
            if not answer.done():
                return answer_type(code=error.code)
        finally:
            self._mark_group(group_id)
        return await answer

    async def _change(
        self,
        group_id: str,
        work: Callable[[Shard, int], tuple[T, Outcome]],
        transaction: GuardedTransaction | None = None,
    ) -> T:
        """Does something to a group, in turn; raises ApiError if it could not be written."""
        loaded = await self._shards.of(group_id)

        async def change(shard: Shard) -> T:
            result, outcome = work(shard, self._shards.now_ms())
            await self._outcomes.write(loaded, outcome, transaction)
            return result

        return await self._shards.change(loaded, change, f"change of {group_id}")

    async def _let_in(self, group_id: str, take: Take) -> list[HeartbeatAnswer | ApiError]:
        """Lets in every member that waits by the time it is the group's turn."""
        return await self._change(group_id, lambda shard, now_ms: shard.consumer_joins(group_id, take(), now_ms))

    def _mark_group(self, group_id: str) -> None:
        """Something has happened in a group, whether there are records of it or not."""
        if self._changes is not None:
            self._changes.mark_groups([group_id])

    def _keep_time(self) -> None:
        self._shards.every(
            _TICK_S, lambda shard: shard.is_due(self._shards.now_ms()), self._end_what_is_over, "group sessions"
        )
        self._shards.every(self._settings.offsets_check_ms / 1000, lambda shard: True, self._expire, "offset expiry")

    async def _take_settings(self, group_id: str) -> None:
        """Applies the current settings, not those of the change: a later call looks at the same image."""
        for loaded in self._shards:
            if loaded.index == self.index_of(group_id):
                async with loaded.turn:
                    settings = self._metadata.image.settings_by_group.get(group_id, {})
                    pause = Pause.of_settings(settings)
                    outcome = loaded.state.pause(group_id, pause, self._shards.now_ms())
                    self._mark_group(group_id)
                    await self._outcomes.write(loaded, outcome)

    async def _load(self, loaded: LoadedShard[Shard]) -> None:
        shard = loaded.state
        for group_id, settings in self._metadata.image.settings_by_group.items():
            if loaded.index == self.index_of(group_id):
                shard.pause(group_id, Pause.of_settings(settings), self._shards.now_ms())
        is_whole = True
        async for batch in loaded.log.replay():
            if isinstance(batch, LostRange):
                is_whole = False
                self._shards.report_lost(loaded, batch, groups_named(batch.keys))
                continue
            if batch.header.is_control:
                if (is_commit := batch.is_commit) is not None:
                    shard.offsets.end_transaction(batch.header.producer_id, committed=is_commit)
                continue
            for record in batch.records:
                change = decode(record)
                if change is not None:
                    shard.apply(change, self._shards.now_ms(), batch.pending_for)
        if not is_whole:
            _forget_unended(loaded)
        resumed = shard.loaded(self._shards.now_ms())
        loaded.is_loaded = True
        if self._changes is not None:
            self._changes.mark_loaded()
        try:
            await self._outcomes.write(loaded, resumed)
            # A topic may have been deleted just before a crash; one of the same name must not find its offsets.
            await self._outcomes.write(loaded, shard.forget_partitions(self._is_unknown))
        except ApiError:
            return  # said where it happened; expiry tries again

    def _is_unknown(self, at: TopicPartition) -> bool:
        topic = self._metadata.image.seen(at.topic)
        return topic is None or at.partition >= len(topic.partitions)

    async def _forget(self, gone: frozenset[TopicPartition]) -> None:
        for loaded in self._shards:
            async with loaded.turn:
                await self._outcomes.write(loaded, loaded.state.forget_partitions(gone.__contains__))

    async def _end_what_is_over(self, loaded: LoadedShard[Shard]) -> None:
        for group_id, outcome in loaded.state.tick(self._shards.now_ms()).items():
            self._mark_group(group_id)
            try:
                await self._outcomes.write(loaded, outcome)
            except ApiError:
                continue  # said where it happened; what is over stays over

    async def _expire(self, loaded: LoadedShard[Shard]) -> None:
        await self._outcomes.write(loaded, loaded.state.forget_partitions(self._is_unknown))
        await self._outcomes.write(loaded, loaded.state.expire(self._shards.now_ms()))


def _forget_unended(loaded: LoadedShard[Shard]) -> None:
    """The end of a transaction may be lost: offsets that wait for one that is not open would wait for ever."""
    offsets, producers = loaded.state.offsets, loaded.log.partition.log.producers
    for producer_id in offsets.producers:
        if not producers.is_open(producer_id):
            logger.critical(
                "the end of a transaction is lost: offsets that were committed in it do not count",
                extra=fields(producer_id=producer_id, groups=", ".join(sorted(offsets.groups_of(producer_id)))),
            )
            offsets.end_transaction(producer_id, committed=False)


def _commit_initial(
    shard: Shard, now_ms: int, group_id: str, offsets: Mapping[TopicPartition, Committed]
) -> tuple[dict[TopicPartition, Committed | None], Outcome]:
    return shard.commit_initial(group_id, offsets)
