"""Which quota holds for a client, and what it has used of it on this broker.

Of the quotas that match a user and a client id the most specific one holds, by Kafka's order (`_LEVELS`). That quota
decides which clients share it: all client ids of a user share the quota of that user, and all users share the quota of
a client id. No clients share a default quota: each without a quota of its own has it for itself.

What was used is forgotten when it no longer counts. If there are more entities than are tracked, those
that come last share one record: a client that takes a new client id for every request cannot make the broker grow, nor
make it forget others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from penstock.security.quota_entity import DEFAULT_NAME, MAX_NAME_LENGTH, QuotaEntity
from penstock.security.quota_keys import QuotaKey, QuotaLimits
from penstock.security.rates import SampledRate, TokenBucket

_LOOKED_AT = 8
"""Records that may be forgotten when a new one is made."""

_EXACT, _DEFAULT, _ABSENT = range(3)
_LEVELS = (
    (_EXACT, _EXACT),
    (_EXACT, _DEFAULT),
    (_EXACT, _ABSENT),
    (_DEFAULT, _EXACT),
    (_DEFAULT, _DEFAULT),
    (_DEFAULT, _ABSENT),
    (_ABSENT, _EXACT),
    (_ABSENT, _DEFAULT),
)
"""How user and client id of a quota are given, the one that wins first."""


class Tracked(NamedTuple):
    """The clients that share a quota: of one user, of one client id, or of one client id of one user."""

    user: str | None
    client_id: str | None


_OTHERS = Tracked(None, None)
"""Shared by those that are too many."""


class FoundQuota(NamedTuple):
    """The quota that holds for a client."""

    limit: float
    tracked: Tracked


class ClientQuotas:
    """All quotas of users and client ids, by what they limit."""

    def __init__(self, quotas: Mapping[QuotaEntity, QuotaLimits]) -> None:
        self._by_key: dict[QuotaKey, dict[tuple[str | None, str | None], float]] = {}
        shapes: dict[QuotaKey, set[tuple[int, int]]] = {}
        for entity, limits in quotas.items():
            if entity.ip is not None:
                continue
            for key, limit in limits.items():
                self._by_key.setdefault(key, {})[entity.user, entity.client_id] = limit
                shapes.setdefault(key, set()).add((_shape(entity.user), _shape(entity.client_id)))
        self._levels = {key: [level for level in _LEVELS if level in found] for key, found in shapes.items()}

    @property
    def keys(self) -> frozenset[QuotaKey]:
        """What is limited for some client."""
        return frozenset(self._by_key)

    def find(self, key: QuotaKey, user: str, client_id: str) -> FoundQuota | None:
        """The quota that holds for this client id of this user; None if there is none."""
        limits = self._by_key.get(key)
        if limits is None:
            return None
        client_id = client_id[:MAX_NAME_LENGTH]
        users, clients = (user, DEFAULT_NAME, None), (client_id, DEFAULT_NAME, None)
        for of_user, of_client in self._levels[key]:
            limit = limits.get((users[of_user], clients[of_client]))
            if limit is not None:
                return FoundQuota(
                    limit,
                    Tracked(None if of_user == _ABSENT else user, None if of_client == _ABSENT else client_id),
                )
        return None


class IpQuotas:
    """How many connections each address may make."""

    def __init__(self, quotas: Mapping[QuotaEntity, QuotaLimits]) -> None:
        key = QuotaKey.CONNECTION_CREATION_RATE
        self._by_ip = {entity.ip: limits[key] for entity, limits in quotas.items() if entity.ip and key in limits}
        self._default = quotas.get(QuotaEntity(ip=DEFAULT_NAME), {}).get(key)

    @property
    def is_empty(self) -> bool:
        return not self._by_ip and self._default is None

    def find(self, ip: str) -> float | None:
        return self._by_ip.get(ip, self._default)


class _Record(Protocol):
    def is_unused(self, now_ms: float) -> bool: ...


R = TypeVar("R", bound=_Record)


class Usage(Generic[R]):
    """What entities have used, in a record for each of them."""

    def __init__(self, max_entities: int, new: Callable[[], R]) -> None:
        self._max = max_entities
        self._new = new
        self._records: dict[Tracked, R] = {}

    def __len__(self) -> int:
        return len(self._records)

    def of(self, tracked: Tracked, now_ms: float) -> R:
        """The record of an entity that is about to use something."""
        record = self._records.get(tracked)
        if record is None:
            self._forget_unused(now_ms)
            if len(self._records) >= self._max:
                tracked = _OTHERS
            record = self._records.setdefault(tracked, self._new())
        return record

    def _forget_unused(self, now_ms: float) -> None:
        """Looks at some, at others the next time: more are forgotten than are new."""
        for tracked in list(islice(self._records, _LOOKED_AT)):
            record = self._records.pop(tracked)
            if not record.is_unused(now_ms):
                self._records[tracked] = record


class RateQuota:
    """One of the quotas that limit a rate, and its users."""

    def __init__(self, max_entities: int) -> None:
        self._usage: Usage[SampledRate] = Usage(max_entities, SampledRate)

    @property
    def tracked(self) -> int:
        return len(self._usage)

    def record(self, found: FoundQuota, value: float, now_ms: float) -> float:
        """Adds what was used; for how many milliseconds the client is to be throttled."""
        rate = self._usage.of(found.tracked, now_ms)
        rate.record(value, now_ms)
        return rate.throttle_ms(found.limit, now_ms)

    def take_back(self, found: FoundQuota, value: float, now_ms: float) -> None:
        """What was recorded is not used after all."""
        self._usage.of(found.tracked, now_ms).record(-value, now_ms)

    def used(self, found: FoundQuota, now_ms: float) -> float:
        """What was used within the window."""
        return self._usage.of(found.tracked, now_ms).total(now_ms)


class MutationQuota:
    """Partitions created and deleted (KIP-599)."""

    def __init__(self, max_entities: int) -> None:
        self._usage: Usage[TokenBucket] = Usage(max_entities, TokenBucket)

    def may_take(self, found: FoundQuota, now_ms: float) -> bool:
        """Whether the client has no debt."""
        return self._usage.of(found.tracked, now_ms).tokens(found.limit, now_ms) >= 0

    def take(self, found: FoundQuota, count: float, now_ms: float) -> None:
        """Takes partitions, whether there are any left or not; a count below 0 gives some back."""
        self._usage.of(found.tracked, now_ms).take(count, found.limit, now_ms)

    def throttle_ms(self, found: FoundQuota, now_ms: float) -> float:
        return self._usage.of(found.tracked, now_ms).throttle_ms(found.limit, now_ms)


def _shape(name: str | None) -> int:
    return _ABSENT if name is None else _EXACT if name else _DEFAULT
