"""One partition on this broker: its log, its leader, its high watermark and the requests that wait for it to rise.

A partition leads, follows, or knows no leader. The metadata image says which (`lead`, `follow`); every such change has
an epoch, and what began in an earlier one ends with an error.

What is written becomes visible when it is as safe as the topic asks for, whatever becomes of the request that wrote it:
the partition owns the wait for that, and requests wait for the partition (`secure`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from penstock.background_loop import shielded
from penstock.cluster.metadata import NO_LEADER, PartitionImage
from penstock.errors import ApiError, Code, PenstockError
from penstock.ids import BrokerId, TopicPartition
from penstock.net import eager
from penstock.records.batch import BatchHeader, read_header
from penstock.records.records import records_block
from penstock.replication.companion_pair import CompanionPair, Pair, PairAppend
from penstock.replication.delayed_records import NO_DELAYS, DelayedRecords
from penstock.replication.divergence import Divergence, Position, diverges, is_out_of_range
from penstock.replication.leader_lease import LeaderLease
from penstock.replication.leadership import Heard, LagRules, Leadership
from penstock.replication.waiters import (
    PLENTY,
    Confirmations,
    FollowerWaiter,
    Parked,
    Unacknowledged,
    Waiter,
    another_leads,
    not_confirmed,
)
from penstock.storage.admission import Checked, Inspected, check_batch_for, inspect, looks_into_records
from penstock.storage.contract import Appended, Log, Slice

ALL_IN_SYNC = -1
"""acks=all: the producer wants `min.insync.replicas` to have the batch."""


class Written(NamedTuple):
    """A batch that is in the log, and may have to wait until it is safe there."""

    appended: Appended
    size_bytes: int
    term: int
    """Of the partition, when it was written."""


class Partition:
    """A replica and its role.

    Invariants: last_stable_offset <= high_watermark <= log.end_offset, and while it leads neither goes back. Readers
    see what lies below the high watermark; those that want only what is committed see what lies below the last stable
    offset; followers see everything.
    """

    __slots__ = (
        "_confirmations",
        "_delayed_records",
        "_is_only_replica",
        "_lease",
        "_parked",
        "_securing",
        "_told_stable",
        "_unacknowledged",
        "high_watermark",
        "is_gone",
        "is_shared",
        "leader",
        "leader_epoch",
        "leadership",
        "log",
        "pair",
        "term",
    )

    def __init__(
        self,
        log: Log,
        lease: LeaderLease,
        pair: CompanionPair | None = None,
        delayed_records: DelayedRecords = NO_DELAYS,
        *,
        is_shared: bool = False,
    ) -> None:
        """`is_shared`: the log is one of a shared engine, and has been taken over."""
        self.log = log
        self.is_shared = is_shared
        self.pair = pair or CompanionPair(log)
        self._delayed_records = delayed_records
        self.leader = NO_LEADER
        self.leader_epoch = -1
        self.leadership: Leadership | None = None
        """Set while this replica leads."""
        self.high_watermark = max(log.start_offset, min(log.saved_high_watermark, log.visible_end))
        self.is_gone = False
        self.term = 0
        """How many roles have ended: what was appended in one of them is waited for in that one only."""
        self._lease = lease
        self._is_only_replica = False
        """It leads without followers: what the log has is acknowledged."""
        self._parked = Parked()
        self._told_stable = self.last_stable_offset
        """The last stable offset when the readers that wait for it last heard of it."""
        self._unacknowledged = Unacknowledged()
        self._confirmations = Confirmations()
        self._securing: set[asyncio.Task[None]] = set()
        if is_shared:
            log.on_reload = self.notice_growth

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.topic_partition

    @property
    def last_stable_offset(self) -> int:
        """What a read_committed reader may see ends here: where the first transaction begins whose end is not known."""
        first_unstable = self.log.first_unstable_offset
        if first_unstable is None or first_unstable > self.high_watermark:
            return self.high_watermark
        return first_unstable

    def lead(self, me: BrokerId, image: PartitionImage, alive: frozenset[BrokerId], rules: LagRules) -> None:
        """The metadata says that this replica leads, with these followers."""
        now_ms = self._lease.now_ms()
        if self.leadership is None:
            self._end_role()
        if self.leadership is None or self.leader_epoch != image.leader_epoch:
            # A leader that goes on leading in another epoch keeps its log, and the requests that wait for it.
            self.leadership = Leadership(
                me,
                image.leader_epoch,
                image.replicas,
                image.in_sync,
                alive,
                start_offset=self.log.end_offset,
                high_watermark=self.high_watermark,
                rules=rules,
                now_ms=now_ms,
                is_shared=self.is_shared,
            )
            self.leader, self.leader_epoch = me, image.leader_epoch
            self._parked.wake_followers()
        else:
            self.leadership.settled(image.in_sync, image.replicas, alive, now_ms)
        self.leadership.is_removed = me in image.removing
        self._is_only_replica = self.leadership.is_only_replica
        self._raise_watermark()

    def follow(self, leader: BrokerId, epoch: int) -> None:
        """The metadata names another leader, or none."""
        if self.leadership is None and (leader, epoch) == (self.leader, self.leader_epoch):
            return
        self._end_role()
        self.leader, self.leader_epoch = leader, epoch

    def decided(self, leadership: Leadership) -> None:
        """What was proposed in this leadership is what the metadata says by now, or never will be."""
        leadership.decided()
        self._raise_watermark()

    def check_epoch(self, epoch: int) -> None:
        """A client that knows of another leader epoch has to look at the metadata first; -1 means it does not say."""
        if epoch < 0 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise ApiError(Code.FENCED_LEADER_EPOCH, f"epoch {epoch} is over, the leader is in {self.leader_epoch}")
        raise ApiError(Code.UNKNOWN_LEADER_EPOCH, f"epoch {epoch} is ahead of the leader's {self.leader_epoch}")

    def check_leads(self) -> Leadership:
        leadership = self.leadership
        if leadership is None or not self._lease.holds_for(leadership):
            raise self._not_leading()
        return leadership

    def check_is_leader(self) -> None:
        """The same as far as the metadata says, whatever the lease: `append` looks at that."""
        if self.leadership is None:
            raise self._not_leading()

    async def confirm_leads(self, since_ms: float | None = None) -> None:
        """Returns when this replica certainly led at some moment since `since_ms`, or since now: what it knows of the
        partition after that is not older than what another leader had acknowledged by then. ApiError if it may not.

        While the lease holds, this needs no follower. Past it every in-sync follower has to fetch once more.
        """
        leadership = self.check_leads()
        if self._lease.is_certain_for(leadership):
            return
        since_ms = self._lease.now_ms() if since_ms is None else since_ms
        if leadership.is_followed(since_ms):
            return
        self._call_followers(since_ms)
        await self._confirmations.wait(since_ms, self._lease.followed_within_ms)

    def other_replicas(self) -> list[BrokerId]:
        """Brokers that may have what this one has; the leader, as far as it is known, knows them all."""
        if self.leadership is not None:
            return self.leadership.followers_alive()
        return [self.leader] if self.leader >= 0 else []

    def follower_heard(self) -> None:
        """A follower has fetched again, from this partition as before."""
        if self._confirmations and self.leadership is not None:
            self._confirmations.confirm(self.leadership.is_followed)
            if self._confirmations:
                self._call_followers(self._confirmations.latest_ms)

    def _call_followers(self, since_ms: float) -> None:
        for waiter in tuple(self._parked.followers):
            waiter.answer_now(since_ms)

    @property
    def knows_watermark(self) -> bool:
        """Whether no client can have seen a higher one from the leader before."""
        return self.leadership is not None and self.leadership.knows_watermark and not self.log.is_read_only

    def check_watermark(self) -> None:
        """Has clients wait until the high watermark is known: what they have seen does not become less."""
        if not self.knows_watermark:
            raise ApiError(
                Code.OFFSET_NOT_AVAILABLE,
                f"{self.topic_partition}: what lies behind {self.high_watermark} is not known yet",
            )

    def _not_leading(self) -> ApiError:
        return ApiError(Code.NOT_LEADER_OR_FOLLOWER, f"{self.topic_partition} is led by broker {self.leader}")

    @property
    def takes_delayed(self) -> bool:
        """Whether producers may ask that records are delivered later."""
        return self._delayed_records.takes_delayed

    def asks_for_delay(self, block: memoryview) -> bool:
        """Whether one of these decompressed records may ask for a delay."""
        return self._delayed_records.asks_for_delay(block)

    def delayed_in(self, header: BatchHeader, block: memoryview) -> object:
        """What of a batch with these records is for later; None if all of it is for now. May be called in a thread."""
        return self._delayed_records.delayed_in(self.log.config, header, block)

    def _inspect(self, batch: memoryview) -> Inspected:
        config = self.log.config
        header = check_batch_for(batch, config)
        if not (self.takes_delayed or self.log.stores_records or looks_into_records(config, header)):
            return Inspected(header, config)
        block = records_block(batch, header)
        self.log.check_records(header, block)
        found = inspect(batch, header, config, block)
        return found._replace(delayed=self.delayed_in(header, block), unpacked_bytes=len(block))

    async def append(
        self,
        batch: memoryview,
        acks: int,
        *,
        guard: int | None = None,
        is_own: bool = False,
        inspected: Inspected | None = None,
    ) -> Appended:
        """Writes a producer's batch and returns when it is as safe as the topic asks for; see `write`.

        With acks=all the caller awaits `acknowledged`, in the term at its return, before it answers.
        """
        written = await self.write(batch, acks, guard=guard, is_own=is_own, inspected=inspected)
        await self.secured(written)
        return written.appended

    async def write(
        self,
        batch: memoryview,
        acks: int,
        *,
        guard: int | None = None,
        is_own: bool = False,
        inspected: Inspected | None = None,
    ) -> Written:
        """Writes a producer's batch; `Log.check` explains `guard` and `is_own`. The caller has `inspected` what a
        client sent, because that can take long, and calls `secure` or `secured` before it awaits anything else.
        """
        log, write_lock, delayed = self.log, self.pair.write_lock, None
        if acks == ALL_IN_SYNC:
            self._check_in_sync(Code.NOT_ENOUGH_REPLICAS)
        if not is_own:
            if inspected is None or inspected.config is not log.config:
                inspected = self._inspect(batch)
            delayed = inspected.delayed
        if delayed is not None:
            self.check_leads()
            await self._prepare_companion()
        await log.prepare_write()
        duplicate: ApiError | None = None
        # From here to the end of the write no other task may write to the log: see the rules in `storage.contract`.
        if write_lock is not None:
            await write_lock.acquire()
        end_before = log.end_offset
        try:
            if self.pair.is_torn:
                await self.pair.cut_torn()
            epoch, term = self.check_leads().epoch, self.term
            checked = log.check(batch, guard=guard, is_own=is_own, inspected=inspected)
            header, repeat_of = checked.header, checked.repeat_of
            base_offset = log.end_offset if repeat_of is None else repeat_of
            if delayed is not None and repeat_of is None:
                pair = self._delayed_records.split(self, delayed, header, base_offset, epoch)
                await self._write_halves(checked, pair, base_offset, epoch)
            elif repeat_of is None:
                await log.write(checked, base_offset, epoch)
        except ApiError as error:
            if error.code is not Code.DUPLICATE_SEQUENCE_NUMBER or acks != ALL_IN_SYNC:
                raise
            duplicate = error
        except asyncio.CancelledError:
            self._secure_since(end_before)
            raise
        finally:
            if write_lock is not None:
                write_lock.release()
        if duplicate is not None:
            # Clients take it for success: what they sent must be with all that are in sync.
            await self.acknowledged(log.end_offset - 1, term)
            raise duplicate
        last_offset, is_repeat = base_offset + header.last_offset_delta, repeat_of is not None
        return Written(Appended(base_offset, last_offset, checked.append_time_ms, is_repeat), len(batch), term)

    async def secured(self, written: Written) -> None:
        """Returns when a written batch is as safe as the topic asks for, and readers may see it. ApiError or
        StorageError if it is not in the log.
        """
        if not self.log.secures_later:
            await self._secure(written)
        elif (securing := self.secure(written)) is not None:
            await shielded(securing)

    def secure(self, written: Written) -> asyncio.Task[None] | None:
        """The same for a caller that does something else meanwhile: the task that ends then, None if that is now. It
        belongs to the partition, so its end is awaited with `shielded`.
        """
        # The log knows at the first step which batch is meant.
        securing = eager.start(asyncio.get_running_loop(), self._secure(written))
        if securing is not None:
            self._securing.add(securing)
            securing.add_done_callback(self._is_secured)
        return securing

    async def _secure(self, written: Written) -> None:
        base_offset, last_offset, _, is_repeat = written.appended
        await self.log.secure(0 if is_repeat else last_offset - base_offset + 1)
        self._grew(written.size_bytes)
        self.check_term(written.term)

    def _is_secured(self, securing: asyncio.Task[None]) -> None:
        self._securing.discard(securing)
        if not securing.cancelled():
            securing.exception()  # is for those who wait, if somebody still does

    def _secure_since(self, end_offset: int) -> None:
        """A writer that is alone with the log was cancelled: what it has begun to write since is written all the same,
        and nobody waits for it.
        """
        if self.log.end_offset > end_offset:
            with suppress(PenstockError):
                self.secure(Written(Appended(end_offset, self.log.end_offset - 1), PLENTY, self.term))

    @property
    def is_securing(self) -> bool:
        """Whether something that was written is not as safe yet as the topic asks for."""
        return bool(self._securing)

    async def close(self) -> None:
        """Returns when nothing of this partition is under way. Its log has been closed before, or deleted."""
        while self._securing:
            await asyncio.wait(self._securing)

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        """Alone with the log."""
        async with self.pair.writing():
            await self.pair.cut_torn()
            end_before = self.log.end_offset
            try:
                yield
            except asyncio.CancelledError:
                self._secure_since(end_before)
                raise

    async def _write_halves(self, checked: Checked, pair: Pair, base_offset: int, epoch: int) -> None:
        """Writes one half of a checked batch to the companion, then the other to the log."""
        companion = self.pair.companion
        assert companion is not None
        await companion.write_stamped(pair.aside)
        await self.log.write(checked._replace(batch=pair.kept, header=read_header(pair.kept)), base_offset, epoch)

    async def append_marker(
        self, producer_id: int, producer_epoch: int, *, committed: bool, coordinator_epoch: int
    ) -> None:
        """Ends a producer's transaction; on return all in-sync replicas have the marker, and readers that wait for what
        it makes stable have been told.
        """
        if self.pair.companion is not None:
            await self._prepare_companion()
        log = self.log
        await log.prepare_write()
        async with self._writing():
            epoch, term = self.check_leads().epoch, self.term
            checked = log.check_marker(
                producer_id, producer_epoch, committed=committed, coordinator_epoch=coordinator_epoch
            )
            offset = log.end_offset
            pair = self._delayed_records.split_marker(self, checked.batch, offset, epoch)
            if pair is None:
                await log.write(checked, offset, epoch)
            else:
                await self._write_halves(checked, pair, offset, epoch)
        await self.secured(Written(Appended(offset, offset), 0, term))
        await self.acknowledged(offset, term)

    @asynccontextmanager
    async def pair_append(self) -> AsyncIterator[PairAppend]:
        """For a pair that this broker builds: gives the place where the caller may write it, or not, before it awaits
        anything else.
        """
        companion = await self.pair.ensure()
        await companion.prepare_write()
        await self.log.prepare_write()
        async with self._writing():
            epoch, term = self.check_leads().epoch, self.term
            place = PairAppend(self.log, companion, self.log.end_offset, epoch)
            yield place
        if place.written_bytes:
            offset = place.base_offset
            await self.secured(Written(Appended(offset, offset), place.written_bytes, term))

    async def acknowledged(self, offset: int, term: int, within_ms: int | None = None) -> None:
        """Returns when all in-sync replicas have the record that was appended at `offset` in a term; ApiError if this
        replica no longer leads, too few are in sync, or it takes longer.
        """
        # As a follower it may get another record at that offset, and acknowledge that.
        self.check_term(term)
        await self.passed(offset, within_ms)
        self._check_in_sync(Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    async def passed(self, offset: int, within_ms: int | None = None) -> None:
        """Returns when all in-sync replicas have the record at `offset`, however few those are; ApiError if this
        replica no longer leads.
        """
        if self.leadership is None:
            raise another_leads()
        if self.high_watermark <= offset:
            await self._unacknowledged.wait(offset, within_ms)

    async def read(self, offset: int, max_bytes: int, *, committed_only: bool = False, below: int = PLENTY) -> Slice:
        """Batches below the high watermark or, with `committed_only`, below the last stable offset, together with
        the aborted transactions that are to be left out of them; and none that reaches to `below`.
        """
        # A log in a database may have more than was written to it here.
        self._raise_watermark()
        if offset > self.high_watermark and self.leadership is not None:
            # Another leader may have shown it.
            await self.confirm_leads()
        high_watermark = self.high_watermark
        if offset > high_watermark:
            if offset <= self.log.end_offset or self.log.is_read_only:
                self.check_watermark()
            raise ApiError(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} is above the high watermark {high_watermark}")
        if not committed_only:
            return await self.log.read(offset, max_bytes, min(high_watermark, below))
        aborted = self.log.producers.aborted
        while True:
            removals = aborted.removals
            found = await self.log.read(offset, max_bytes, min(self.last_stable_offset, below))
            # If entries were removed meanwhile, what was read may be older than the compaction that removed them.
            if aborted.removals == removals:
                return found._replace(aborted=self.log.aborted_transactions(offset, found.end_offset))

    def fetched_by(self, follower: BrokerId, asked: Position, heard: Heard) -> Divergence | None:
        """A follower asks for what is behind `asked`: it has everything below, unless its log is another one.

        What is `heard`, `Leadership.fetched` says. Past its lease a leader that was left alone for a moment is
        refused to clients, not to its followers: by their fetches it knows that they follow, and leads on.
        """
        leadership, log = self.leadership, self.log
        if leadership is None:
            raise self._not_leading()
        if not leadership.knows(follower):
            raise ApiError(Code.UNKNOWN_LEADER_EPOCH, f"broker {follower} is no replica of {self.topic_partition}")
        divergence = None
        if asked.offset >= log.start_offset or not self.pair.serves_below_start(follower, asked):
            if is_out_of_range(asked, log.start_offset, leadership.end_of(follower)):
                raise ApiError(Code.OFFSET_OUT_OF_RANGE, f"offset {asked.offset} lies before the log")
            divergence = diverges(asked, log.epochs, log.end_offset)
        if divergence is None:
            now_ms = self._lease.now_ms()
            leadership.fetched(follower, asked.offset, log.end_offset, now_ms, heard.followed_ms, heard)
            self._raise_watermark()
            self.follower_heard()
        return divergence

    async def read_for_follower(self, follower: BrokerId, offset: int, max_bytes: int) -> Slice:
        return await self.pair.read(follower, offset, max_bytes)

    async def trim(self, offset: int) -> int:
        """Removes records below `offset` (-1: all that are visible) and gives the new start of the log."""
        await self.confirm_leads()
        target = self.high_watermark if offset == -1 else offset
        if not 0 <= target <= self.high_watermark:
            raise ApiError(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} is not below the high watermark")
        if "delete" not in self.log.config.cleanup_policy:
            raise ApiError(Code.POLICY_VIOLATION, "records of a topic that is only compacted cannot be deleted")
        await self.log.trim(target)
        self._tell_stable(PLENTY)
        return self.log.start_offset

    def park(self, waiter: Waiter, *, committed_only: bool = False) -> None:
        """Tells `waiter` from now on when the high watermark, or the last stable offset, has risen."""
        if committed_only:
            self._told_stable = self.last_stable_offset
            self._parked.stable_readers.add(waiter)
        else:
            self._parked.readers.add(waiter)

    def park_follower(self, waiter: FollowerWaiter) -> None:
        """Tells `waiter` from now on when the end of the log has risen or, with no bytes, the high watermark."""
        self._parked.followers.add(waiter)

    def unpark(self, waiter: Waiter) -> None:
        self._parked.discard(waiter)

    def unpark_follower(self, waiter: FollowerWaiter) -> None:
        self._parked.discard_follower(waiter)

    def go(self) -> None:
        """The partition leaves this broker: waiting requests have to look again."""
        self.is_gone = True
        self._end_role()

    async def cancel_timers(self, batch: memoryview, acks: int) -> None:
        """Cancels the messages that wait here under timer ids that a batch sets or cancels; the batch itself goes to
        the successor of this partition.
        """
        end, term = self.log.end_offset, self.term
        if self.pair.companion is None or self.leadership is None:
            return
        await self._delayed_records.cancel_timers(self, batch)
        if acks == ALL_IN_SYNC and self.log.end_offset > end:
            await self.acknowledged(self.log.end_offset - 1, term)

    def has_companion(self) -> None:
        """A leader has sent halves of batches: what waits in them is looked after from now on."""
        if self.pair.companion is not None:
            self._delayed_records.look_after(self)

    async def _prepare_companion(self) -> None:
        await (await self.pair.ensure()).prepare_write()
        self._delayed_records.look_after(self)
        await self._delayed_records.ready(self)

    def _check_in_sync(self, code: Code) -> None:
        wanted = self.log.config.min_insync_replicas
        if wanted > 1 and not self.is_shared and self.leadership is not None and len(self.leadership.in_sync) < wanted:
            raise ApiError(code, f"{len(self.leadership.in_sync)} replicas are in sync, the topic wants {wanted}")

    def check_term(self, term: int) -> None:
        """For something that was appended in a term: ApiError if that is over."""
        if self.term != term:
            raise not_confirmed()

    def _end_role(self) -> None:
        """Requests that wait for something of the role that ends look again, or get an error."""
        self.term += 1
        self.leadership = None
        self._is_only_replica = False
        self._unacknowledged.give_up()
        self._confirmations.give_up()
        self.pair.role_changed()
        self._parked.wake()

    def notice_growth(self) -> None:
        """The log may have more than was written to it: it may have been read again from where it is stored."""
        self._raise_watermark()

    def _grew(self, appended_bytes: int) -> None:
        if self._parked.followers:
            self._parked.wake_followers(max(1, appended_bytes))
        before = self.high_watermark
        self._raise_watermark(appended_bytes)
        if self._is_only_replica and self.high_watermark == before:
            # The high watermark has passed it with what became safe at once with it, and only that was counted.
            self._tell_readers(appended_bytes)

    def _raise_watermark(self, appended_bytes: int = PLENTY) -> None:
        """As the leader: takes note of what all in-sync replicas have. Unless the caller knows how many bytes that are,
        readers look for themselves whether they are enough.
        """
        visible = self.log.visible_end
        if self._is_only_replica:
            if visible > self.high_watermark:
                self._set_watermark(visible, appended_bytes)
        elif self.leadership is not None and self.leadership.raise_watermark(visible, self._lease.now_ms()):
            self._set_watermark(self.leadership.high_watermark, PLENTY)

    def follow_watermark(self, leaders: int, appended_bytes: int) -> None:
        """As a follower: takes note of what all in-sync replicas have, as the leader says."""
        reached = min(leaders, self.log.visible_end)
        if reached > self.high_watermark:
            self._set_watermark(reached, appended_bytes)

    def _set_watermark(self, offset: int, appended_bytes: int) -> None:
        before, self.high_watermark = self.high_watermark, offset
        self.log.saved_high_watermark = offset
        if self.leadership is not None:
            self.leadership.high_watermark = offset
        self._unacknowledged.pass_below(offset)
        parked = self._parked
        if parked.followers:
            parked.wake_followers(0)
        for waiter in tuple(parked.readers) if parked.readers else ():
            waiter.grew(appended_bytes)
        if parked.stable_readers:
            # A marker makes visible what was appended long before it: that size is not counted, so all look again.
            is_counted = self._told_stable == before and self.last_stable_offset == offset
            self._tell_stable(appended_bytes if is_counted else PLENTY)

    def _tell_readers(self, appended_bytes: int) -> None:
        for waiter in (*self._parked.readers, *self._parked.stable_readers):
            waiter.grew(appended_bytes)

    def _tell_stable(self, appended_bytes: int) -> None:
        stable = self.last_stable_offset
        if stable > self._told_stable:
            self._told_stable = stable
            for waiter in tuple(self._parked.stable_readers):
                waiter.grew(appended_bytes)
