"""Dedup claims in Redis: one key per id, which Redis expires. Needs `penstock[redis]`.

A key holds the claim's token, or `done`. Every decision is one script, which Redis runs atomically.
"""

from __future__ import annotations

import hashlib
from typing import Any

import redis

from penstock.sdk.dedup.store import Claim, ClaimedElsewhere, ClaimResult
from penstock.sdk.errors import InvalidInputError

PREFIX = "penstock:dedup:"

_DONE = "done"
_TIMEOUT_S = 5.0
_CLAIMED, _IS_DONE, _BUSY = 0, 1, 2

_CLAIM = f"""
local kept = redis.call('GET', KEYS[1])
if kept == '{_DONE}' then return {{{_IS_DONE}, 0}} end
if kept and kept ~= ARGV[1] then return {{{_BUSY}, redis.call('PTTL', KEYS[1])}} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {{{_CLAIMED}, 0}}
"""
_REPLACE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""


class RedisStore:
    """Keeps business ids in Redis, for any number of processes.

    An id that Redis loses is handled again: configure Redis not to evict keys, and to persist them.

    Args:
        url: An address as redis-py takes it: `redis://host:6379/0`.
        prefix: The prefix of all keys.

    Raises:
        InvalidInputError: The address is invalid.
    """

    def __init__(self, url: str, prefix: str = PREFIX) -> None:
        self._prefix = prefix
        try:
            self._redis = redis.Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)
        except (ValueError, AttributeError) as error:
            raise InvalidInputError(
                f"RedisStore: {url!r}: {error}; expected an address such as redis://host:6379/0"
            ) from None
        self._claim = self._redis.register_script(_CLAIM)
        self._replace = self._redis.register_script(_REPLACE)
        self._release = self._redis.register_script(_RELEASE)

    def claim(self, group: str, biz_id: str, token: str, lease_ms: int) -> Claim:
        """Try to claim the id for this token; see `Store.claim`."""
        answer: Any = self._claim(keys=[self._key(group, biz_id)], args=[token, lease_ms])
        kind, lease_left_ms = answer
        if kind == _IS_DONE:
            return ClaimResult.DONE
        return ClaimedElsewhere(max(0, lease_left_ms)) if kind == _BUSY else ClaimResult.CLAIMED

    def complete(self, group: str, biz_id: str, token: str, window_ms: int) -> bool:
        """Mark the id as done for `window_ms`; False if this token no longer holds the claim."""
        return bool(self._replace(keys=[self._key(group, biz_id)], args=[token, _DONE, window_ms]))

    def release(self, group: str, biz_id: str, token: str) -> None:
        """Give up the claim; does nothing if this token does not hold it."""
        self._release(keys=[self._key(group, biz_id)], args=[token])

    def extend(self, group: str, biz_id: str, token: str, lease_ms: int) -> bool:
        """Renew the lease from now; False if this token no longer holds the claim."""
        return bool(self._replace(keys=[self._key(group, biz_id)], args=[token, token, lease_ms]))

    def close(self) -> None:
        """Close the connections to Redis."""
        self._redis.close()

    def _key(self, group: str, biz_id: str) -> str:
        return self._prefix + hashlib.sha256(f"{len(group)} {group} {biz_id}".encode()).hexdigest()
