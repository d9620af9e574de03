"""What the leader of a partition knows of its followers, and what follows for the high watermark and the in-sync set.

Pure: what happens comes in with the time, nothing is looked up. Rules (`docs/internals/cluster.md`):
- The offset that a follower fetches is what it has.
- The high watermark is what every member of the in-sync set has, and never goes back. While a change of the set is
  under way, the members before and after it count. It also waits for followers that are alive and keep up without being
  in the set: one that is always a little behind a leader that does not wait for it would never get in.
- The set changes only by commits; a change is proposed here, and counts until it is known what became of it, whatever
  else the metadata says meanwhile.
- A leader whose lease may be over leads on only while no other can have begun. In shared storage any broker can.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from penstock.ids import BrokerId

UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRules:
    """How far behind a follower may be and still count as in sync."""

    max_ms: int
    max_messages: int
    """0: as many as there are."""
    lease_ms: int = 0
    """A member of the in-sync set that has not fetched in this epoch may be the leader of the one before, and not know
    of this one yet: it stays in the set for at least as long as its lease may last.
    """


class Heard:
    """What is heard from another broker about all that it follows here, and does not name again each time."""

    __slots__ = ("fetched_ms", "followed_ms")

    def __init__(self) -> None:
        self.fetched_ms = float("-inf")
        """Of the last fetch: a follower that had everything before it still had it then."""
        self.followed_ms = float("-inf")


class Follower:
    """One other replica, as the leader sees it."""

    __slots__ = ("caught_up_ms", "end_offset", "fetched_ms", "followed_ms", "has_all", "heard", "leader_end")

    def __init__(self, now_ms: float, *, is_in_sync: bool) -> None:
        self.end_offset = UNKNOWN
        """What it has; unknown until it fetches in this epoch."""
        self.fetched_ms = now_ms
        self.leader_end = UNKNOWN
        """The end of the leader's log at its last fetch."""
        self.caught_up_ms = now_ms if is_in_sync else float("-inf")
        """The last moment at which it had all that there was; for who is in sync at the latest when the epoch began."""
        self.followed_ms = float("-inf")
        """The last moment at which it certainly followed this leader."""
        self.heard: Heard | None = None
        """Where more is heard of it, as long as it follows and says nothing else."""
        self.has_all = False
        """Whether it had everything when it was last named."""

    @property
    def last_followed_ms(self) -> float:
        return self.followed_ms if self.heard is None else max(self.followed_ms, self.heard.followed_ms)

    @property
    def last_caught_up_ms(self) -> float:
        """When the follower last had everything: its last fetch, if it had all of it and has not asked for more."""
        if self.heard is None or not self.has_all:
            return self.caught_up_ms
        return max(self.caught_up_ms, self.heard.fetched_ms)

    def unheard(self) -> None:
        """From now on only what it says itself counts."""
        self.followed_ms, self.caught_up_ms = self.last_followed_ms, self.last_caught_up_ms
        self.heard, self.has_all = None, False

    def fetched(self, offset: int, leader_end: int, now_ms: float, followed_ms: float, heard: Heard | None) -> None:
        self.unheard()
        self.heard, self.has_all = heard, offset >= leader_end
        if offset >= leader_end:
            self.caught_up_ms = now_ms
        elif self.leader_end != UNKNOWN and offset >= self.leader_end:
            self.caught_up_ms = self.fetched_ms
        self.end_offset = offset
        self.leader_end = leader_end
        self.fetched_ms = now_ms
        self.followed_ms = max(self.followed_ms, followed_ms)


class Leadership:
    """One partition's leader, for one epoch.

    Invariant: `high_watermark` does not fall.
    """

    def __init__(
        self,
        me: BrokerId,
        epoch: int,
        replicas: Collection[BrokerId],
        in_sync: Collection[BrokerId],
        alive: Collection[BrokerId],
        *,
        start_offset: int,
        high_watermark: int,
        rules: LagRules,
        now_ms: float,
        is_shared: bool = False,
    ) -> None:
        """`start_offset`: the end of the log when the epoch began. `is_shared`: every broker reaches the log."""
        self.me = me
        self.epoch = epoch
        self.in_sync = frozenset(in_sync)
        self.high_watermark = high_watermark
        self.proposed: frozenset[BrokerId] | None = None
        """A change that is under way, or whose outcome is not known."""
        self.is_removed = False
        """Whether a move of the partition takes it away from this broker: the commit that ends the move names another
        leader, whatever the lease of this one is.
        """
        self._alive = alive
        self._is_shared = is_shared
        self._start_offset = start_offset
        self._rules = rules
        self._followers = {
            broker: Follower(now_ms, is_in_sync=broker in self.in_sync) for broker in replicas if broker != me
        }

    @property
    def is_alone(self) -> bool:
        """No other replica is in sync, or about to be."""
        return self._counted == {self.me}

    @property
    def is_only_replica(self) -> bool:
        return not self._followers and self.is_alone

    @property
    def _counted(self) -> frozenset[BrokerId]:
        return self.in_sync if self.proposed is None else self.in_sync | self.proposed

    def knows(self, follower: BrokerId) -> bool:
        return follower in self._followers

    @property
    def knows_watermark(self) -> bool:
        """Whether no reader can have seen a higher one: each in-sync replica has all from before the epoch."""
        return self.high_watermark >= self._start_offset

    def fetched(
        self,
        follower: BrokerId,
        offset: int,
        own_end: int,
        now_ms: float,
        followed_ms: float,
        heard: Heard | None = None,
    ) -> None:
        """A follower asks for what is behind `offset`: it has everything below.

        `followed_ms` is when the answer was given that it had received before it asked, on the same connection: a fetch
        may have been on its way for long, but was sent after that. Minus infinity if there was none. `heard` records
        later fetches that do not name this partition because nothing has changed.
        """
        self._followers[follower].fetched(offset, own_end, now_ms, followed_ms, heard)

    def unheard(self, follower: BrokerId) -> None:
        """The follower's fetches no longer say anything about this partition."""
        if follower in self._followers:
            self._followers[follower].unheard()

    def raise_watermark(self, own_end: int, now_ms: float) -> bool:
        """Takes note of what replicas have; True if the high watermark rose. `own_end` is what may be shown of ours."""
        lowest, counted = own_end, self._counted
        if not counted - {self.me} <= self._followers.keys():
            return False
        for broker, follower in self._followers.items():
            if broker in counted or (broker in self._alive and self._keeps_up(follower, own_end, now_ms)):
                lowest = min(lowest, follower.end_offset)
        if lowest <= self.high_watermark:
            return False
        self.high_watermark = lowest
        return True

    def proposal(self, own_end: int, now_ms: float, *, can_write: bool = True) -> frozenset[BrokerId] | None:
        """The in-sync set as it should be, if that is not what it is; None while a change is under way.

        A leader that cannot write proposes one without itself, if any replica is left: one of them leads then. If none
        is, it takes in followers that keep up, as any leader does, and leaves the lead to them next.
        """
        if self.proposed is not None:
            return None
        if not can_write and (others := self.in_sync.intersection(self._alive, self._followers)):
            return frozenset(others)
        wanted, alive = {self.me}, self._alive
        for broker, follower in self._followers.items():
            if broker not in alive:
                continue
            if broker in self.in_sync:
                if not self._is_behind(follower, own_end, now_ms):
                    wanted.add(broker)
            # One that is behind does not come back either, or it would leave and come with every commit.
            elif follower.end_offset >= self.high_watermark and self._keeps_up(follower, own_end, now_ms):
                wanted.add(broker)
        # A dead broker is taken out by the change that elects its successors.
        wanted |= {broker for broker in self.in_sync if broker not in alive}
        return frozenset(wanted) if wanted != self.in_sync else None

    def propose(self, in_sync: frozenset[BrokerId]) -> None:
        """A commit of this set is under way: it is not known which of the two counts."""
        self.proposed = in_sync

    def decided(self) -> None:
        """The proposed set is what the metadata says by now, or never will be."""
        self.proposed = None

    def settled(
        self, in_sync: Collection[BrokerId], replicas: Collection[BrokerId], alive: Collection[BrokerId], now_ms: float
    ) -> None:
        """The metadata says so. It may still be older than what is proposed."""
        self._alive = alive
        self.in_sync = frozenset(in_sync)
        self._followers = {
            broker: self._followers.get(broker) or Follower(now_ms, is_in_sync=broker in self.in_sync)
            for broker in replicas
            if broker != self.me
        }

    def leads(self, now_ms: float, lease_until_ms: float, followed_within_ms: float) -> bool:
        """Whether to append and to answer clients: another leader can begin only after the lease, and only one that is
        in sync and has stopped following.
        """
        if now_ms < lease_until_ms:
            return True
        return not self._is_shared and (self.is_alone or self.is_followed(now_ms - followed_within_ms))

    def is_certain(self, now_ms: float, lease_until_ms: float) -> bool:
        """Whether no other leader can have begun by now, without asking the followers.

        Stricter than `leads`, whose window may end after another leader has begun. The lease says nothing where others
        may have been made leaders while this broker holds it.
        """
        if self.is_alone and not self._is_shared:
            return True
        proposes_another = self.proposed is not None and self.me not in self.proposed
        return now_ms < lease_until_ms and not proposes_another and not self.is_removed

    def is_followed(self, since_ms: float) -> bool:
        """Whether every other member of the in-sync set certainly followed at some moment since."""
        others = self._counted - {self.me}
        return all(self._followers[broker].last_followed_ms >= since_ms for broker in others)

    def lags(self, start_offset: int, own_end: int) -> Iterator[tuple[BrokerId, int]]:
        """How many records each follower does not have yet, of those from `start_offset` on.

        Of one that has not fetched in this epoch: it has what is below the high watermark if it is in sync, and may
        have nothing if it is not.
        """
        for broker, follower in self._followers.items():
            end = follower.end_offset
            if end == UNKNOWN:
                end = self.high_watermark if broker in self.in_sync else start_offset
            yield broker, max(0, own_end - max(end, start_offset))

    def followers_alive(self) -> list[BrokerId]:
        """Those in sync first."""
        return sorted(
            (broker for broker in self._followers if broker in self._alive),
            key=lambda broker: (broker not in self.in_sync, broker),
        )

    def end_of(self, follower: BrokerId) -> int:
        return self._followers[follower].end_offset

    def _keeps_up(self, follower: Follower, own_end: int, now_ms: float) -> bool:
        """Whether it has been seen in this epoch, has what there was before, and is not behind."""
        return follower.end_offset >= self._start_offset and not self._is_behind(follower, own_end, now_ms)

    def _is_behind(self, follower: Follower, own_end: int, now_ms: float) -> bool:
        if follower.end_offset >= own_end:
            return False
        is_unheard = follower.end_offset == UNKNOWN
        max_ms = max(self._rules.max_ms, self._rules.lease_ms) if is_unheard else self._rules.max_ms
        if now_ms - follower.last_caught_up_ms > max_ms:
            return True
        behind = own_end - follower.end_offset
        return bool(self._rules.max_messages) and follower.end_offset != UNKNOWN and behind > self._rules.max_messages
