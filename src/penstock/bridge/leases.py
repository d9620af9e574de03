"""Leases: which bridge sends the messages of which shard of a database.

Everything is one transaction and goes by the database's clock. What a holder believes of its lease is by its own
monotonic clock, counted from before the request, so it ends before the database would give the lease to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.bridge.tables import TableNames
from penstock.clock import Clock
from penstock.sql.database import Connection

_FORGET = 10
"""Members that are silent for so many leases are removed."""
_LONGEST = 10
"""What ends later than so many leases from now was renewed before the clock was set back."""


@dataclass(slots=True)
class Lease:
    """The right to send what is due in a shard."""

    shard: int
    epoch: int
    valid_until_ms: float
    """By the monotonic clock."""
    clock: Clock

    @property
    def is_valid(self) -> bool:
        return self.clock.monotonic_ms() < self.valid_until_ms


@dataclass(frozen=True, slots=True)
class LeaseRound:
    """What came of one renewal."""

    held: dict[int, int]
    """Shards and the epochs under which this member has them."""
    surplus: Sequence[int]
    """Those among them that others should have: to be released when their senders have stopped."""


def renew(
    connection: Connection, names: TableNames, member: str, held: Sequence[int], lease_ms: int, first_shard: int
) -> LeaseRound:
    """Be a member, renew the leases of shards that are `held`, and take free ones that are ours.

    The members that are alive have the shards in turn; `first_shard` is the number of the first one in this database
    among those of all databases.
    """
    dialect = connection.dialect
    leases, members = dialect.quoted(names.leases), dialect.quoted(names.members)
    now_ms = connection.execute(f"SELECT {dialect.now_us}")[0][0] // 1000
    connection.upsert(names.members, ["member"], ["member", "until"], [(member, now_ms + lease_ms)])
    connection.change(f"DELETE FROM {members} WHERE until < ?", now_ms - _FORGET * lease_ms)
    latest_ms = now_ms + _LONGEST * lease_ms
    connection.change(f"UPDATE {members} SET until = ? WHERE until > ?", now_ms + lease_ms, latest_ms)
    found = connection.execute(f"SELECT member FROM {members} WHERE until > ? ORDER BY member", now_ms)
    alive = [row[0] for row in found]
    rows = connection.execute(f"SELECT shard, owner, epoch, until FROM {leases} ORDER BY shard{dialect.for_update}")
    ours: dict[int, int] = {}
    surplus: list[int] = []
    for shard, owner, epoch, until in rows:
        if until > latest_ms:
            # Otherwise bridges would notice a dead owner too late. A live owner renews its lease.
            until = now_ms + lease_ms
            connection.change(f"UPDATE {leases} SET until = ? WHERE shard = ?", until, shard)
        is_our_turn = alive[(first_shard + shard) % len(alive)] == member
        if owner == member and shard in held and until > now_ms:
            ours[shard] = epoch
            if not is_our_turn:
                surplus.append(shard)
        elif is_our_turn and (until <= now_ms or owner == member):
            ours[shard] = epoch + 1
        else:
            continue
        connection.change(
            f"UPDATE {leases} SET owner = ?, epoch = ?, until = ? WHERE shard = ?",
            member,
            ours[shard],
            now_ms + lease_ms,
            shard,
        )
    return LeaseRound(ours, surplus)


def holds(connection: Connection, names: TableNames, member: str, shard: int, epoch: int) -> bool:
    """Whether the lease is still the member's."""
    leases = connection.dialect.quoted(names.leases)
    found = connection.execute(f"SELECT owner, epoch FROM {leases} WHERE shard = ?", shard)
    return bool(found) and tuple(found[0]) == (member, epoch)


def release(connection: Connection, names: TableNames, member: str, shards: Sequence[int], *, leave: bool) -> None:
    """Give leases back at once; `leave`: and be a member no longer."""
    dialect = connection.dialect
    for shard in shards:
        connection.change(
            f"UPDATE {dialect.quoted(names.leases)} SET until = 0 WHERE shard = ? AND owner = ?", shard, member
        )
    if leave:
        connection.change(f"DELETE FROM {dialect.quoted(names.members)} WHERE member = ?", member)
