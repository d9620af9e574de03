"""One partition on this broker: its log, who leads it, its high watermark and who waits for it to rise.

A partition leads, follows, or knows no leader. Which of them is told by the metadata image (`lead`, `follow`); every
such change has an epoch, and what began in an earlier one ends with an error.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.cluster.metadata import NO_LEADER, PartitionImage
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId, TopicPartition
from penstock.replication.beside import Beside, Pair
from penstock.replication.delaying import NO_DELAYS, Delaying
from penstock.replication.following import Divergence, Position, diverges, is_out_of_range
from penstock.replication.leadership import Heard, LagRules, Leadership
from penstock.replication.tenure import Tenure
from penstock.replication.waiting import PLENTY, Parked, Unacknowledged, Waiter, another_leads
from penstock.storage.contract import Appended, Log, Slice

ALL_IN_SYNC = -1
"""acks=all: the producer wants `min.insync.replicas` to have the batch."""


class Partition:
    """A replica and its role.

    Invariants: last_stable_offset <= high_watermark <= log.end_offset, and while it leads neither goes back. Readers
    see what lies below the high watermark; those that want only what is committed see what lies below the last stable
    offset; followers see everything.
    """

    __slots__ = (
        "_delaying",
        "_is_only_replica",
        "_parked",
        "_tenure",
        "_told_stable",
        "_unacknowledged",
        "beside",
        "high_watermark",
        "is_gone",
        "leader",
        "leader_epoch",
        "leadership",
        "log",
        "term",
    )

    def __init__(self, log: Log, tenure: Tenure, beside: Beside | None = None, delaying: Delaying = NO_DELAYS) -> None:
        self.log = log
        self.beside = beside or Beside(log)
        self._delaying = delaying
        self.leader = NO_LEADER
        self.leader_epoch = -1
        self.leadership: Leadership | None = None
        """Set while this replica leads."""
        self.high_watermark = max(log.start_offset, min(log.saved_high_watermark, log.visible_end))
        self.is_gone = False
        self.term = 0
        """How many roles have ended: what was appended in one of them is waited for in that one only."""
        self._tenure = tenure
        self._is_only_replica = False
        """It leads, and nobody follows: what the log has is acknowledged."""
        self._parked = Parked()
        self._told_stable = self.last_stable_offset
        """The last stable offset when those who wait for it were last told."""
        self._unacknowledged = Unacknowledged()

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
        now_ms = self._tenure.now_ms()
        if self.leadership is None:
            self._end_role()
        if self.leadership is None or self.leader_epoch != image.leader_epoch:
            # A leader that goes on leading in another epoch keeps its log, and so do those who wait for it.
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
            )
            self.leader, self.leader_epoch = me, image.leader_epoch
            self._parked.wake_followers()
        else:
            self.leadership.settled(image.in_sync, image.replicas, alive, now_ms)
        self._is_only_replica = self.leadership.is_only_replica
        self._raise_watermark(0)

    def follow(self, leader: BrokerId, epoch: int) -> None:
        """The metadata says that somebody else leads, or nobody."""
        if self.leadership is None and (leader, epoch) == (self.leader, self.leader_epoch):
            return
        self._end_role()
        self.leader, self.leader_epoch = leader, epoch

    def decided(self, leadership: Leadership) -> None:
        """What was proposed in this leadership is what the metadata says by now, or never will be."""
        leadership.decided()
        self._raise_watermark(0)

    def check_epoch(self, epoch: int) -> None:
        """A client that knows of another leader epoch has to look at the metadata first; -1 means it does not say."""
        if epoch < 0 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise ApiError(Code.FENCED_LEADER_EPOCH, f"epoch {epoch} is over, the leader is in {self.leader_epoch}")
        raise ApiError(Code.UNKNOWN_LEADER_EPOCH, f"epoch {epoch} is ahead of the leader's {self.leader_epoch}")

    def check_leads(self) -> Leadership:
        leadership = self.leadership
        if leadership is None or not self._tenure.holds_for(leadership):
            raise self._not_leading()
        return leadership

    @property
    def knows_watermark(self) -> bool:
        """Whether nobody can have seen a higher one from the leader before."""
        return self.leadership is not None and self.leadership.knows_watermark

    def check_watermark(self) -> None:
        """Clients are asked to wait until it is known: what they have seen does not become less."""
        if not self.knows_watermark:
            raise ApiError(
                Code.OFFSET_NOT_AVAILABLE,
                f"{self.topic_partition}: what lies behind {self.high_watermark} is not known yet",
            )

    def _not_leading(self) -> ApiError:
        return ApiError(Code.NOT_LEADER_OR_FOLLOWER, f"{self.topic_partition} is led by broker {self.leader}")

    async def append(self, batch: memoryview, acks: int, *, guard: int | None = None, is_own: bool = False) -> Appended:
        """Appends a producer's batch; what `guard` and `is_own` mean, `Log.append` says.

        With acks=all the caller awaits `acknowledged`, in the term at its return, before it answers.
        """
        log = self.log
        if acks == ALL_IN_SYNC:
            self._check_in_sync(Code.NOT_ENOUGH_REPLICAS)
        part = None if is_own else self._delaying.parting(self, batch)
        if part is not None:
            self.check_leads()
            await self._prepare_companion()
        await log.admit()
        if self.beside.is_torn:
            await self.beside.mend()
        epoch, term = self.check_leads().epoch, self.term
        try:
            appended = await log.append(batch, epoch, guard=guard, is_own=is_own, part=part)
        except ApiError as error:
            if error.code is Code.DUPLICATE_SEQUENCE_NUMBER and acks == ALL_IN_SYNC:
                # Clients take it for success: what they sent must be with all that are in sync.
                await self.acknowledged(log.end_offset - 1, term)
            raise
        self._check_term(term)
        self._grew(len(batch))
        return appended

    async def append_marker(
        self, producer_id: int, producer_epoch: int, *, committed: bool, coordinator_epoch: int
    ) -> None:
        """Ends a producer's transaction; on return the marker is acknowledged by all that are in sync, and who waits
        for what it makes stable is told.
        """
        if self.beside.companion is not None:
            await self._prepare_companion()
        await self.log.admit()
        await self.beside.mend()
        epoch, term = self.check_leads().epoch, self.term
        appended = await self.log.append_marker(
            producer_id,
            producer_epoch,
            committed=committed,
            coordinator_epoch=coordinator_epoch,
            leader_epoch=epoch,
            part=self._delaying.parting_of_marker(self, producer_id),
        )
        self._check_term(term)
        self._grew(0)
        await self.acknowledged(appended.last_offset, term)

    async def append_pair(self, make: Callable[[int, int], Pair | None]) -> bool:
        """Appends what we make ourselves, given the base offset and the epoch, to the companion and to the log; False
        if nothing was made after all.
        """
        companion = await self.beside.ensure()
        await companion.admit()
        await self.log.admit()
        await self.beside.mend()
        epoch, term = self.check_leads().epoch, self.term
        pair = make(self.log.end_offset, epoch)
        if pair is None:
            return False
        companion.put(pair.aside)
        self.log.put(pair.kept)
        await self.log.secure(1)
        self._check_term(term)
        self._grew(len(pair.kept))
        return True

    async def acknowledged(self, offset: int, term: int, within_ms: int | None = None) -> None:
        """Returns when everybody who is in sync has the record that was appended at `offset` in a term; ApiError if
        this replica no longer leads, too few are in sync, or it takes longer.
        """
        # As a follower it may get another record at that offset, and acknowledge that.
        self._check_term(term)
        await self.passed(offset, within_ms)
        self._check_in_sync(Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    async def passed(self, offset: int, within_ms: int | None = None) -> None:
        """Returns when everybody who is in sync has the record at `offset`, however few that are; ApiError if this
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
        # An append whose producer went away before it was flushed has nobody else to do this.
        self._raise_watermark(0)
        high_watermark = self.high_watermark
        if offset > high_watermark:
            if offset <= self.log.end_offset:
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
        if asked.offset >= log.start_offset or not self.beside.serves_below_start(follower, asked):
            if is_out_of_range(asked, log.start_offset, leadership.end_of(follower)):
                raise ApiError(Code.OFFSET_OUT_OF_RANGE, f"offset {asked.offset} lies before the log")
            divergence = diverges(asked, log.epochs, log.end_offset)
        if divergence is None:
            now_ms = self._tenure.now_ms()
            leadership.fetched(follower, asked.offset, log.end_offset, now_ms, heard.followed_ms, heard)
            self._raise_watermark(0)
        return divergence

    async def read_for_follower(self, follower: BrokerId, offset: int, max_bytes: int) -> Slice:
        return await self.beside.read(follower, offset, max_bytes)

    async def trim(self, offset: int) -> int:
        """Removes records below `offset` (-1: all that are visible) and gives the new start of the log."""
        self.check_leads()
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

    def park_follower(self, waiter: Waiter) -> None:
        """Tells `waiter` from now on when the end of the log has risen or, with no bytes, the high watermark."""
        self._parked.followers.add(waiter)

    def unpark(self, waiter: Waiter) -> None:
        self._parked.discard(waiter)

    def go(self) -> None:
        """The partition leaves this broker: whoever waits has to look again."""
        self.is_gone = True
        self._end_role()

    async def give_up_names(self, batch: memoryview, acks: int) -> None:
        """For a batch that goes to the partition that has taken the place of this one: what waits here under a name
        that it gives or cancels is not delivered.
        """
        end, term = self.log.end_offset, self.term
        if self.beside.companion is None or self.leadership is None:
            return
        await self._delaying.give_up_names(self, batch)
        if acks == ALL_IN_SYNC and self.log.end_offset > end:
            await self.acknowledged(self.log.end_offset - 1, term)

    def has_companion(self) -> None:
        """A leader has sent halves of batches: what waits in them is looked after from now on."""
        if self.beside.companion is not None:
            self._delaying.look_after(self)

    async def _prepare_companion(self) -> None:
        await (await self.beside.ensure()).admit()
        self._delaying.look_after(self)
        await self._delaying.ready(self)

    def _check_in_sync(self, code: Code) -> None:
        wanted = self.log.config.min_insync_replicas
        if wanted > 1 and self.leadership is not None and len(self.leadership.in_sync) < wanted:
            raise ApiError(code, f"{len(self.leadership.in_sync)} replicas are in sync, the topic wants {wanted}")

    def _check_term(self, term: int) -> None:
        if self.term != term:
            raise another_leads()

    def _end_role(self) -> None:
        """Whoever waits for something of the role that ends has to look again, or is told so."""
        self.term += 1
        self.leadership = None
        self._is_only_replica = False
        self._unacknowledged.give_up()
        self.beside.role_changed()
        self._parked.wake()

    def _grew(self, appended_bytes: int) -> None:
        if self._parked.followers:
            self._parked.wake_followers(max(1, appended_bytes))
        self._raise_watermark(appended_bytes)

    def _raise_watermark(self, appended_bytes: int) -> None:
        """As the leader: takes note of what everybody in sync has."""
        visible = self.log.visible_end
        if self._is_only_replica:
            if visible > self.high_watermark:
                self._set_watermark(visible, appended_bytes)
        elif self.leadership is not None and self.leadership.raise_watermark(visible, self._tenure.now_ms()):
            self._set_watermark(self.leadership.high_watermark, PLENTY)

    def follow_watermark(self, leaders: int, appended_bytes: int) -> None:
        """As a follower: takes note of what the leader says that everybody in sync has."""
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
            # A marker makes visible what was appended long before it: nobody counted that, so all look again.
            is_counted = self._told_stable == before and self.last_stable_offset == offset
            self._tell_stable(appended_bytes if is_counted else PLENTY)

    def _tell_stable(self, appended_bytes: int) -> None:
        stable = self.last_stable_offset
        if stable > self._told_stable:
            self._told_stable = stable
            for waiter in tuple(self._parked.stable_readers):
                waiter.grew(appended_bytes)
