"""Claims in Redis: one key an id, which Redis itself forgets. Needs `penstock[redis]`.

A key has the claim's token, or `done`. Every decision is one script, which Redis runs as a whole.
"""

from __future__ import annotations

import hashlib
from typing import Any

import redis

from penstock.sdk.receive.dedup import Busy, Claim, Outcome

PREFIX = "penstock:dedup:"

_DONE = "done"
_ANSWER_S = 5.0
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
    """For any number of processes. `url` is redis-py's: `redis://host:6379/0`.

    What Redis forgets is handled again: it should not evict keys, and if it can lose them by a crash, then so can this.
    """

    def __init__(self, url: str, prefix: str = PREFIX) -> None:
        self._prefix = prefix
        self._redis = redis.Redis.from_url(url, socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S)
        self._claim = self._redis.register_script(_CLAIM)
        self._replace = self._redis.register_script(_REPLACE)
        self._release = self._redis.register_script(_RELEASE)

    def claim(self, group: str, biz_id: str, token: str, lease_ms: int) -> Claim:
        answer: Any = self._claim(keys=[self._key(group, biz_id)], args=[token, lease_ms])
        kind, left_ms = answer
        if kind == _IS_DONE:
            return Outcome.DONE
        return Busy(max(0, left_ms)) if kind == _BUSY else Outcome.CLAIMED

    def complete(self, group: str, biz_id: str, token: str, window_ms: int) -> bool:
        return bool(self._replace(keys=[self._key(group, biz_id)], args=[token, _DONE, window_ms]))

    def release(self, group: str, biz_id: str, token: str) -> None:
        self._release(keys=[self._key(group, biz_id)], args=[token])

    def extend(self, group: str, biz_id: str, token: str, lease_ms: int) -> bool:
        return bool(self._replace(keys=[self._key(group, biz_id)], args=[token, token, lease_ms]))

    def close(self) -> None:
        self._redis.close()

    def _key(self, group: str, biz_id: str) -> str:
        return self._prefix + hashlib.sha256(f"{len(group)} {group} {biz_id}".encode()).hexdigest()
