"""The members of a classic group by id and by instance id, with counts over all of them.

The counts are updated as members join and leave, so that a join costs the same in a group of ten and of ten thousand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from penstock.errors import Code
from penstock.groups.classic.members import ClassicMember, Protocol
from penstock.groups.events import Joined, Outcome, Synced


class Roster:
    """Invariant: every protocol's count in `_offered`, `size` and `joining` are those of the members in it."""

    def __init__(self, members: Iterable[ClassicMember] = ()) -> None:
        self.by_id: dict[str, ClassicMember] = {}
        self.static_ids: dict[str, str] = {}
        """Instance id to member id."""
        self.size = 0
        """Bytes held for all members."""
        self.joining = 0
        """Members whose JoinGroup waits."""
        self._offered: Counter[str] = Counter()
        for member in members:
            self.add(member)

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(self.by_id.values())

    def add(self, member: ClassicMember) -> None:
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        self.joining += member.join_token is not None
        self._count(member, 1)

    def remove(self, member: ClassicMember) -> None:
        del self.by_id[member.member_id]
        if member.instance_id is not None:
            del self.static_ids[member.instance_id]
        self.joining -= member.join_token is not None
        self._count(member, -1)

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """The member's id changes and its place among the others does not."""
        member.member_id = member_id
        self.by_id = {found.member_id: found for found in self}
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member_id

    def describe(
        self, member: ClassicMember, client_id: str, client_host: str, protocols: tuple[Protocol, ...]
    ) -> None:
        """The member says anew who it is and what it can do."""
        self._count(member, -1)
        member.client_id = client_id
        member.client_host = client_host
        member.protocols = protocols
        self._count(member, 1)

    def await_join(self, member: ClassicMember, token: object | None) -> object | None:
        """Sets the JoinGroup that waits, and gives the one that waited before."""
        before = member.join_token
        self.joining += (token is not None) - (before is not None)
        member.join_token = token
        return before

    def heard(self, now_ms: int) -> None:
        """The session of every member begins anew."""
        for member in self:
            member.heard(now_ms)

    def answer_waiting(self, outcome: Outcome, code: Code) -> None:
        """Answers every member that waits."""
        for member in self:
            outcome.reply(self.await_join(member, None), Joined(code=code, member_id=member.member_id))
            outcome.reply(member.sync_token, Synced(code=code))
            member.sync_token = None

    def successor(self, saved: Iterable[ClassicMember], now_ms: int) -> Roster:
        """The members that are in the log, with what is known of them here."""
        members = []
        for found in saved:
            member = replace(found)
            before = self.by_id.get(found.member_id)
            if before is None or before.sync_token is not None:
                member.heard(now_ms)
            else:
                member.expires_ms = before.expires_ms
            if before is not None:
                member.is_new, member.has_synced = before.is_new, before.has_synced
                member.join_token = before.join_token
            members.append(member)
        return Roster(members)

    def supports(self, names: Iterable[str]) -> bool:
        """Whether all members know one of these protocols."""
        return any(self._offered[name] == len(self.by_id) for name in names)

    def vote(self) -> str:
        """The protocol that most members prefer among those that all of them know."""
        votes = Counter(
            next(offered.name for offered in member.protocols if self._offered[offered.name] == len(self.by_id))
            for member in self
        )
        return votes.most_common(1)[0][0]

    @property
    def longest_rebalance_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def _count(self, member: ClassicMember, step: int) -> None:
        self.size += step * member.size
        for name in {offered.name for offered in member.protocols}:
            self._offered[name] += step
            if not self._offered[name]:
                del self._offered[name]
