"""Groups in the database: members, claims, committed offsets, and who uses a transactional id.

    direct_member             consumer_group, member, topics (JSON), expires_at (microseconds, the database's clock)
    direct_claim              consumer_group, topic, partition_index, member ('' if no member has it), epoch,
                              committed_offset (what a member committed last; NULL: nothing)
    direct_handled            consumer_group, topic, partition_index, record_offset, handled_at (microseconds): messages
                              whose handler has committed in a transaction of its own
    direct_transactional_id   transactional_id, epoch, used_at (microseconds)

Offsets are in the topic's own table, `<topic>_consumers` (`storage/sql/offset_table.py`): a commit changes
`committed_offset` and leaves `known_offset` alone, which a broker takes for the wish of a person to move the group.

Everything here runs inside a transaction, in a thread. Claims are locked before offsets.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import NamedTuple

from penstock.brokerless.store import (
    Claim,
    FencedClaimError,
    Granted,
    GroupClaims,
    GroupMember,
    GroupOffsets,
    IdFence,
    StoreRefusedError,
)
from penstock.ids import TopicPartition
from penstock.sql import migrations
from penstock.sql.database import Connection
from penstock.sql.errors import SchemaChanged
from penstock.storage.sql import offset_table
from penstock.storage.sql.offset_table import NO_OFFSET
from penstock.storage.sql.table_names import offset_table_of

NO_MEMBER = ""
_MAX_NAME = 255
_MAX_KEPT_GROUPS = 1000
_LONGEST_SESSION_US = 60_000_000
"""A session that ends later was renewed before the clock of the database was set back."""
_MEMBER = ("consumer_group", "member", "topics", "expires_at")
_CLAIM = ("consumer_group", "topic", "partition_index", "member", "epoch")
_HANDLED = ("consumer_group", "topic", "partition_index", "record_offset", "handled_at")
_OFFSETS = ("consumer_group", "partition", "committed_offset", "known_offset")
KEPT_US = 24 * 3600 * 1_000_000
"""How long claims without a member, and notes of messages that were handled, are kept."""


def _create(connection: Connection) -> None:
    dialect = connection.dialect
    name, number = f"{dialect.varchar(_MAX_NAME)} NOT NULL", f"{dialect.big_integer} NOT NULL"
    tables = (
        (
            "direct_member",
            (
                ("consumer_group", name),
                ("member", name),
                ("topics", f"{dialect.long_text} NOT NULL"),
                ("expires_at", number),
            ),
            _MEMBER[:2],
        ),
        (
            "direct_claim",
            (
                ("consumer_group", name),
                ("topic", name),
                ("partition_index", number),
                ("member", name),
                ("epoch", number),
                ("committed_offset", dialect.big_integer),
            ),
            _CLAIM[:3],
        ),
        (
            "direct_handled",
            (
                ("consumer_group", name),
                ("topic", name),
                ("partition_index", number),
                ("record_offset", number),
                ("handled_at", number),
            ),
            _HANDLED[:4],
        ),
        (
            "direct_transactional_id",
            (("transactional_id", name), ("epoch", number), ("used_at", number)),
            ("transactional_id",),
        ),
    )
    for table, columns, key in tables:
        for statement in dialect.create_table(table, columns, primary_key=key, is_updated_often=True):
            connection.change(statement)


DIRECT = migrations.Component("direct", (_create,))
"""In the database of the client's address."""


def check_name(what: str, name: str) -> None:
    """Raises `StoreRefusedError` for a name that not every database takes as a key."""
    if not offset_table.can_show(name):
        raise StoreRefusedError(
            f"the {what} {name!r} cannot be used with a database: it has more than {_MAX_NAME} characters, a NUL, or a"
            " space at its end"
        )


# Members


def now_us(connection: Connection) -> int:
    return int(connection.execute(f"SELECT {connection.dialect.now_us}")[0][0])


def heartbeat(connection: Connection, group: str, member: GroupMember, session_ms: int) -> GroupClaims:
    now = now_us(connection)
    topics = json.dumps(sorted(member.topics), ensure_ascii=False)
    row = (group, member.name, topics, now + session_ms * 1000)
    connection.upsert("direct_member", _MEMBER[:2], _MEMBER, [row])
    rows = connection.execute("SELECT member, topics, expires_at FROM direct_member WHERE consumer_group = ?", group)
    gone = [name for name, _, expires_at in rows if expires_at < now]
    latest = now + _LONGEST_SESSION_US
    for name in (name for name, _, expires_at in rows if expires_at > latest):
        # One that is gone would be missed too late; one that is alive renews it.
        connection.change(
            "UPDATE direct_member SET expires_at = ? WHERE consumer_group = ? AND member = ? AND expires_at > ?",
            now + session_ms * 1000,
            group,
            name,
            latest,
        )
    for name in gone:
        connection.change(
            "DELETE FROM direct_member WHERE consumer_group = ? AND member = ? AND expires_at < ?", group, name, now
        )
    alive = {name: GroupMember(name, frozenset(json.loads(text))) for name, text, _ in rows if name not in gone}
    claims = connection.execute(
        "SELECT topic, partition_index, member, epoch FROM direct_claim WHERE consumer_group = ? AND member <> ?",
        group,
        NO_MEMBER,
    )
    return GroupClaims(
        [alive[name] for name in sorted(alive)],
        {TopicPartition(topic, number): Claim(name, epoch) for topic, number, name, epoch in claims if name in alive},
    )


def leave(connection: Connection, group: str, member: str) -> None:
    connection.change("DELETE FROM direct_member WHERE consumer_group = ? AND member = ?", group, member)
    connection.change(
        "UPDATE direct_claim SET member = ? WHERE consumer_group = ? AND member = ?", NO_MEMBER, group, member
    )


# Claims


class _StoredClaim(NamedTuple):
    member: str
    epoch: int
    committed: int | None


def claim(
    connection: Connection, group: str, member: str, wanted: Collection[TopicPartition]
) -> Mapping[TopicPartition, Granted]:
    """Duplicate if another member has made the same row meanwhile."""
    now = now_us(connection)
    rows = connection.execute(
        "SELECT member FROM direct_member WHERE consumer_group = ? AND expires_at >= ?", group, now
    )
    alive = {name for (name,) in rows}
    if member not in alive:
        return {}
    stored = _locked_claims(connection, group, wanted)
    granted: dict[TopicPartition, int] = {}
    for tp in sorted(wanted):
        found = stored.get(tp)
        if found is not None and found.member in alive and found.member != member:
            continue
        # By the clock: the rows of groups that are gone are deleted, and an epoch must not come again.
        granted[tp] = now if found is None else max(now, found.epoch + 1)
    connection.insert(
        "direct_claim", _CLAIM, [(group, *tp, member, epoch) for tp, epoch in granted.items() if tp not in stored]
    )
    connection.upsert(
        "direct_claim",
        _CLAIM[:3],
        _CLAIM,
        [(group, *tp, member, epoch) for tp, epoch in granted.items() if tp in stored],
    )
    offsets = committed(connection, group, granted)
    _forget_handled(connection, group, stored, offsets)
    return {tp: Granted(epoch, offsets.get(tp)) for tp, epoch in granted.items()}


def release(connection: Connection, group: str, member: str, epochs: Mapping[TopicPartition, int]) -> None:
    for tp in sorted(epochs):
        connection.change(
            "UPDATE direct_claim SET member = ?"
            " WHERE consumer_group = ? AND topic = ? AND partition_index = ? AND member = ? AND epoch = ?",
            NO_MEMBER,
            group,
            *tp,
            member,
            epochs[tp],
        )


def _forget_handled(
    connection: Connection,
    group: str,
    stored: Mapping[TopicPartition, _StoredClaim],
    offsets: Mapping[TopicPartition, int],
) -> None:
    """The group's offsets were set back from outside: messages behind them are to be handled again."""
    for tp, offset in offsets.items():
        before = stored[tp].committed if tp in stored else None
        if before is not None and offset < before:
            connection.change(
                "DELETE FROM direct_handled"
                " WHERE consumer_group = ? AND topic = ? AND partition_index = ? AND record_offset >= ?",
                group,
                *tp,
                offset,
            )


def check_claims(connection: Connection, offsets: GroupOffsets) -> None:
    """Locks the claims until the end of the transaction. Raises `FencedClaimError`."""
    stored = _locked_claims(connection, offsets.group, offsets.positions)
    for tp in offsets.positions:
        found = stored.get(tp)
        if found is None or (found.member, found.epoch) != (offsets.member, offsets.epochs.get(tp)):
            raise FencedClaimError(
                f"another member of {offsets.group} reads partition {tp.partition} of {tp.topic} by now; its offset was"
                " not committed"
            )


def _locked_claims(
    connection: Connection, group: str, wanted: Collection[TopicPartition]
) -> dict[TopicPartition, _StoredClaim]:
    """In the order of their key, so that two members never wait for each other."""
    found: dict[TopicPartition, _StoredClaim] = {}
    for topic in sorted({tp.topic for tp in wanted}):
        numbers = sorted(tp.partition for tp in wanted if tp.topic == topic)
        marks = ", ".join("?" * len(numbers))
        rows = connection.execute(
            "SELECT partition_index, member, epoch, committed_offset FROM direct_claim"
            f" WHERE consumer_group = ? AND topic = ? AND partition_index IN ({marks})"
            f" ORDER BY partition_index{connection.dialect.for_update}",
            group,
            topic,
            *numbers,
        )
        found |= {TopicPartition(topic, number): _StoredClaim(*claim) for number, *claim in rows}
    return found


# Offsets


class OffsetTableMissingError(Exception):
    """A topic has no table of offsets yet."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic


def create_offset_table(connection: Connection, topic: str) -> None:
    """Inside of `run_ddl`."""
    offset_table.create(connection, _offset_table(topic))


def committed(
    connection: Connection, group: str, asked: Collection[TopicPartition], *, is_locked: bool = False
) -> dict[TopicPartition, int]:
    """Raises `OffsetTableMissingError`."""
    dialect = connection.dialect
    found: dict[TopicPartition, int] = {}
    for topic in sorted({tp.topic for tp in asked}):
        try:
            rows = connection.execute(
                f"SELECT {dialect.quoted('partition')}, committed_offset FROM {dialect.quoted(_offset_table(topic))}"
                f" WHERE consumer_group = ?{dialect.for_update if is_locked else ''}",
                group,
            )
        except SchemaChanged as error:
            raise OffsetTableMissingError(topic) from error
        found |= {tp: offset for number, offset in rows if (tp := TopicPartition(topic, number)) in asked}
    return found


Expected = Mapping[TopicPartition, Collection[int | None]]
"""What this process believes that the table says; several values while the outcome of a commit is not known."""


def commit(connection: Connection, offsets: GroupOffsets, expected: Expected) -> None:
    """Raises `FencedClaimError` if a claim is lost, or if a person has set an offset meanwhile."""
    check_claims(connection, offsets)
    write_offsets(connection, offsets.group, offsets.positions, expected)
    for tp, offset in sorted(offsets.positions.items()):
        connection.change(
            "UPDATE direct_claim SET committed_offset = ?"
            " WHERE consumer_group = ? AND topic = ? AND partition_index = ?",
            offset,
            offsets.group,
            *tp,
        )


def write_offsets(
    connection: Connection, group: str, positions: Mapping[TopicPartition, int], expected: Expected
) -> None:
    """The claims are locked."""
    stored = committed(connection, group, positions, is_locked=True)
    for tp in positions:
        if tp in expected and stored.get(tp) not in expected[tp]:
            raise FencedClaimError(
                f"the committed offset of {group} in partition {tp.partition} of {tp.topic} was set to"
                f" {stored.get(tp)} from outside; the group goes on from there"
            )
    _put(connection, group, positions, stored)


def commit_initial(connection: Connection, group: str, positions: Mapping[TopicPartition, int]) -> None:
    """Raises Duplicate if another client commits one of them meanwhile."""
    stored = committed(connection, group, positions, is_locked=True)
    _put(connection, group, {tp: offset for tp, offset in positions.items() if tp not in stored}, stored)


def _put(
    connection: Connection, group: str, positions: Mapping[TopicPartition, int], stored: Collection[TopicPartition]
) -> None:
    dialect = connection.dialect
    for topic in sorted({tp.topic for tp in positions}):
        table = _offset_table(topic)
        of_topic = {tp: offset for tp, offset in sorted(positions.items()) if tp.topic == topic}
        new = [(group, tp.partition, offset, NO_OFFSET) for tp, offset in of_topic.items() if tp not in stored]
        connection.insert(table, _OFFSETS, new)
        for tp, offset in of_topic.items():
            if tp in stored:
                connection.change(
                    f"UPDATE {dialect.quoted(table)} SET committed_offset = ?"
                    f" WHERE consumer_group = ? AND {dialect.quoted('partition')} = ?",
                    offset,
                    group,
                    tp.partition,
                )


def _offset_table(topic: str) -> str:
    return offset_table_of(TopicPartition(topic, 0))


# Handlers in transactions


def note_handled(connection: Connection, group: str, tp: TopicPartition, offset: int) -> None:
    """Duplicate if the message was handled before. Waits for another transaction that is handling it."""
    connection.insert("direct_handled", _HANDLED, [(group, *tp, offset, now_us(connection))])


def forget_handled(connection: Connection) -> None:
    """What was handled long ago does not come again."""
    connection.change("DELETE FROM direct_handled WHERE handled_at < ?", now_us(connection) - KEPT_US)


# Transactional ids


def fence(connection: Connection, transactional_id: str) -> IdFence:
    rows = connection.execute(
        f"SELECT epoch FROM direct_transactional_id WHERE transactional_id = ?{connection.dialect.for_update}",
        transactional_id,
    )
    now = now_us(connection)
    epoch = max(now, rows[0][0] + 1 if rows else 0)
    columns = ("transactional_id", "epoch", "used_at")
    connection.upsert("direct_transactional_id", columns[:1], columns, [(transactional_id, epoch, now)])
    return IdFence(transactional_id, epoch)


def check_fence(connection: Connection, fence: IdFence) -> None:
    """Locks the row until the end of the transaction. Raises `FencedClaimError`."""
    rows = connection.execute(
        f"SELECT epoch FROM direct_transactional_id WHERE transactional_id = ?{connection.dialect.for_update}",
        fence.transactional_id,
    )
    if not rows or rows[0][0] != fence.epoch:
        raise FencedClaimError(f"another client uses the transactional id {fence.transactional_id} by now")
    connection.change(
        "UPDATE direct_transactional_id SET used_at = ? WHERE transactional_id = ?",
        now_us(connection),
        fence.transactional_id,
    )


# What is left over


def forget_gone(connection: Connection) -> None:
    """Deletes members whose session expired long ago, claims that have had no member for long, and transactional ids
    that no client has used for long.
    """
    forget_handled(connection)
    before = now_us(connection) - KEPT_US
    connection.change("DELETE FROM direct_member WHERE expires_at < ?", before)
    rows = connection.execute(
        "SELECT DISTINCT consumer_group FROM direct_claim WHERE epoch < ? AND consumer_group NOT IN"
        " (SELECT consumer_group FROM direct_member) LIMIT ?",
        before,
        _MAX_KEPT_GROUPS,
    )
    for (group,) in rows:
        connection.change("DELETE FROM direct_claim WHERE consumer_group = ? AND epoch < ?", group, before)
    connection.change("DELETE FROM direct_transactional_id WHERE used_at < ?", before)
