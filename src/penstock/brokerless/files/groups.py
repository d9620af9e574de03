"""Groups in the database of a folder: members with sessions, claims with epochs, committed offsets."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence

from penstock.brokerless.files.database import FolderDatabase
from penstock.brokerless.store import Claim, FencedClaimError, Granted, GroupClaims, GroupMember, GroupOffsets
from penstock.clock import Clock
from penstock.ids import TopicPartition


class FolderGroups:
    """All groups of a folder. Sessions go by the wall clock, which all processes of a machine share."""

    def __init__(self, database: FolderDatabase, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def heartbeat(self, group: str, member: GroupMember, session_ms: int) -> GroupClaims:
        now_ms = self._clock.now_ms()
        with self._database.writing() as db:
            self._expire(db, group, now_ms)
            db.execute(
                "insert or replace into members values (?, ?, ?, ?, ?)",
                (group, member.name, json.dumps(sorted(member.topics)), session_ms, now_ms + session_ms),
            )
            members = db.execute("select member, topics from members where grp = ?", (group,)).fetchall()
            claims = db.execute(
                "select topic, partition, member, epoch from claims where grp = ? and member is not null", (group,)
            ).fetchall()
        return GroupClaims(
            [GroupMember(name, frozenset(json.loads(topics))) for name, topics in members],
            {TopicPartition(topic, number): Claim(name, epoch) for topic, number, name, epoch in claims},
        )

    def claim(self, group: str, member: str, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, Granted]:
        granted = {}
        with self._database.writing() as db:
            self._expire(db, group, self._clock.now_ms())
            if db.execute("select 1 from members where grp = ? and member = ?", (group, member)).fetchone() is None:
                return {}
            for tp in wanted:
                db.execute("insert or ignore into claims (grp, topic, partition) values (?, ?, ?)", (group, *tp))
                row = db.execute(
                    "update claims set member = ?, epoch = epoch + 1"
                    " where grp = ? and topic = ? and partition = ? and member is null"
                    " returning epoch, committed",
                    (member, group, *tp),
                ).fetchone()
                if row is not None:
                    granted[tp] = Granted(*row)
        return granted

    def release(self, group: str, member: str, epochs: Mapping[TopicPartition, int]) -> None:
        with self._database.writing() as db:
            db.executemany(
                "update claims set member = null"
                " where grp = ? and topic = ? and partition = ? and member = ? and epoch = ?",
                [(group, *tp, member, epoch) for tp, epoch in epochs.items()],
            )

    def leave(self, group: str, member: str) -> None:
        with self._database.writing() as db:
            db.execute("delete from members where grp = ? and member = ?", (group, member))
            db.execute("update claims set member = null where grp = ? and member = ?", (group, member))

    def committed(self, group: str, asked: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        rows = self._database.read(
            "select topic, partition, committed from claims where grp = ? and committed is not null", group
        )
        found = {TopicPartition(topic, number): offset for topic, number, offset in rows}
        return {tp: found[tp] for tp in asked if tp in found}

    def commit(self, db: sqlite3.Connection, offsets: GroupOffsets) -> None:
        """Within a transaction. Raises `FencedClaimError`, which ends it."""
        for tp, position in offsets.positions.items():
            changed = db.execute(
                "update claims set committed = ?"
                " where grp = ? and topic = ? and partition = ? and member = ? and epoch = ?",
                (position, offsets.group, *tp, offsets.member, offsets.epochs.get(tp, -1)),
            )
            if changed.rowcount != 1:
                raise FencedClaimError(f"group {offsets.group}: another member has {tp}; nothing was committed")

    def commit_initial(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        with self._database.writing() as db:
            db.executemany(
                "insert into claims (grp, topic, partition, committed) values (?, ?, ?, ?)"
                " on conflict do update set committed = coalesce(committed, excluded.committed)",
                [(group, *tp, position) for tp, position in positions.items()],
            )

    def _expire(self, db: sqlite3.Connection, group: str, now_ms: int) -> None:
        # An end further away than the session is long: the clock was set back.
        db.execute(
            "delete from members where grp = ? and (ends_ms <= ? or ends_ms > ? + session_ms)", (group, now_ms, now_ms)
        )
        db.execute(
            "update claims set member = null where grp = ? and member is not null"
            " and member not in (select member from members where grp = ?)",
            (group, group),
        )
