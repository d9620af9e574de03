"""Committed offsets in Redis, written behind to the database.

A commit goes to Redis; a thread writes what is there to the database once a second, and so does a member that gives a
partition up. Redis has, for each partition of a group, the epoch of the claim, the offset, and the offset that the
database was given last:

    HASH penstock:offsets:<database>:<group>     <topic>/<partition> -> <epoch>:<offset>:<flushed>

A member that claims a partition takes the offset of Redis if the database still has the offset that was last written to
it; otherwise an operator has set it in the database, and that counts. If Redis is gone, offsets are those of the
database: messages are repeated, none is lost, because an offset is committed only when everything before it is handled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from penstock.brokerless.store import FencedClaimError, Granted, GroupOffsets, StoreAwayError
from penstock.extras import missing_extra
from penstock.ids import TopicPartition
from penstock.sdk.errors import InvalidInputError
from penstock.sdk.problem_log import OngoingProblem

log = logging.getLogger(__name__)

FLUSH_S = 1.0
"""How often offsets go to the database: so many seconds of messages come again at most if Redis is lost."""
_KEPT_S = 14 * 24 * 3600
_LIMIT_S = 2.0

_COMMIT = """
for at = 1, #ARGV, 3 do
  local found = redis.call('HGET', KEYS[1], ARGV[at])
  if found and tonumber(string.match(found, '^(%d+):')) > tonumber(ARGV[at + 1]) then return 0 end
end
for at = 1, #ARGV, 3 do
  local found = redis.call('HGET', KEYS[1], ARGV[at])
  local flushed = found and string.match(found, ':([^:]*)$') or '?'
  redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1] .. ':' .. ARGV[at + 2] .. ':' .. flushed)
end
return 1
"""
_CLAIM = """
local found = redis.call('HGET', KEYS[1], ARGV[1])
local offset = ARGV[3]
if found then
  local kept, flushed = string.match(found, '^%d+:([^:]*):([^:]*)$')
  if flushed == ARGV[3] and kept ~= '' and (ARGV[3] == '' or tonumber(kept) > tonumber(ARGV[3])) then offset = kept end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ':' .. offset .. ':' .. ARGV[3])
return offset
"""
_FLUSHED = """
for at = 1, #ARGV, 3 do
  local found = redis.call('HGET', KEYS[1], ARGV[at])
  if found then
    local epoch, offset = string.match(found, '^(%d+):([^:]*):')
    if epoch == ARGV[at + 1] then
      redis.call('HSET', KEYS[1], ARGV[at], epoch .. ':' .. offset .. ':' .. ARGV[at + 2])
    end
  end
end
"""


class RedisOffsets:
    """Thread-safe. `close` writes what is left to the database."""

    def __init__(self, url: str, database: str, write: Callable[[GroupOffsets], None]) -> None:
        """`write` commits to the database. Raises `InvalidInputError` for an address that cannot be read."""
        try:
            import redis
        except ModuleNotFoundError as error:
            raise missing_extra(error, "offsets in Redis") or error from None
        try:
            self._redis: Any = redis.Redis.from_url(url, socket_timeout=_LIMIT_S, socket_connect_timeout=_LIMIT_S)
        except ValueError as error:
            raise InvalidInputError(f"offsets: the address of Redis cannot be read: {error}") from None
        self._errors = redis.RedisError
        self._database = database
        self._write = write
        self._lock = threading.Lock()
        self.flushing = threading.Lock()
        """Held while offsets are written behind: no other thread may write older ones meanwhile."""
        self._dirty: dict[tuple[str, str], GroupOffsets] = {}
        """By group and member: what the database does not have yet."""
        self._problem = OngoingProblem(
            log, "Redis does not answer; offsets go to the database", "Redis answers again; offsets go there"
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-offsets", daemon=True)
        self._thread.start()

    def commit(self, offsets: GroupOffsets) -> bool:
        """Commit to Redis; False if that does not answer. Raises `FencedClaimError`."""
        args: list[object] = []
        for tp, offset in offsets.positions.items():
            args += [_field(tp), offsets.epochs[tp], offset]
        try:
            is_taken = self._redis.eval(_COMMIT, 1, self._key(offsets.group), *args)
            self._redis.expire(self._key(offsets.group), _KEPT_S)
        except self._errors as error:
            self._problem.report(error)
            return False
        self._problem.end()
        if not is_taken:
            self.forget(offsets, is_superseded=True)
            raise FencedClaimError(f"another member of {offsets.group} reads a partition by now; nothing was committed")
        with self._lock:
            key = offsets.group, offsets.member
            before = self._dirty.get(key)
            if before is not None:
                offsets = GroupOffsets(
                    offsets.group,
                    offsets.member,
                    {**before.positions, **offsets.positions},
                    {**before.epochs, **offsets.epochs},
                )
            self._dirty[key] = offsets
        return True

    def claimed(self, group: str, granted: Mapping[TopicPartition, Granted]) -> Mapping[TopicPartition, Granted]:
        """Where the group goes on: what Redis has, if it knows more than the database."""
        found: dict[TopicPartition, Granted] = {}
        try:
            for tp, grant in granted.items():
                known = "" if grant.committed is None else str(grant.committed)
                offset = self._redis.eval(_CLAIM, 1, self._key(group), _field(tp), grant.epoch, known).decode()
                found[tp] = Granted(grant.epoch, int(offset) if offset else None)
        except self._errors as error:
            self._problem.report(error)
            return granted
        return found

    def forget(self, offsets: GroupOffsets, *, is_superseded: bool = False) -> None:
        """They are in the database, or will never be. `is_superseded`: earlier ones of these partitions, too."""
        with self._lock:
            kept = self._dirty.pop((offsets.group, offsets.member), None)
            if kept is None:
                return
            positions = {
                tp: offset
                for tp, offset in kept.positions.items()
                if tp not in offsets.positions or (offset != offsets.positions[tp] and not is_superseded)
            }
            if positions:
                left = GroupOffsets(offsets.group, offsets.member, positions, kept.epochs)
                self._dirty[offsets.group, offsets.member] = left

    def flush(self, group: str | None = None) -> None:
        """Write to the database. Raises `StoreAwayError`; what is lost to other members is forgotten."""
        with self.flushing:
            with self._lock:
                waiting = [each for each in self._dirty.values() if group in (None, each.group)]
            for offsets in waiting:
                try:
                    self._write(offsets)
                except FencedClaimError as error:
                    log.warning("group %s: %s", offsets.group, error)
                else:
                    self._note_flushed(offsets)
                self.forget(offsets)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        try:
            self.flush()
        except StoreAwayError as error:
            log.warning("offsets could not be written to the database: %s; Redis has them", error)
        self._redis.close()

    def _note_flushed(self, offsets: GroupOffsets) -> None:
        args: list[object] = []
        for tp, offset in offsets.positions.items():
            args += [_field(tp), offsets.epochs[tp], offset]
        try:
            self._redis.eval(_FLUSHED, 1, self._key(offsets.group), *args)
        except self._errors as error:
            self._problem.report(error)

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_S):
            try:
                self.flush()
            except StoreAwayError as error:
                log.info("offsets wait in Redis: %s", error)
            except Exception:
                log.exception("could not write offsets to the database")

    def _key(self, group: str) -> str:
        return f"penstock:offsets:{self._database}:{group}"


def _field(tp: TopicPartition) -> str:
    return f"{tp.topic}/{tp.partition}"
