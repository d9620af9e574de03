"""The quotas in force on this broker, and what clients have used of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.config.quotas import QuotaSettings
from penstock.net.caller import Caller
from penstock.security.client_quotas import ClientQuotas, FoundQuota, MutationQuota, RateQuota
from penstock.security.quota_entity import QuotaEntity
from penstock.security.quota_keys import CLIENT_KEYS, QuotaKey, QuotaLimits
from penstock.security.rates import SAMPLE_MS


@dataclass(slots=True)
class ThrottleCounts:
    """What /metrics shows of one quota."""

    throttled: int = 0
    """Answers after which a client was throttled by it."""
    seconds: float = 0.0
    """For how long, all together."""


@dataclass(slots=True)
class _Rates:
    produced: RateQuota
    consumed: RateQuota
    requests: RateQuota
    mutations: MutationQuota


class ClientLimits:
    """Follows the quotas in the metadata; each broker counts for itself, as in Kafka."""

    def __init__(self, settings: QuotaSettings, now_ms: Callable[[], float]) -> None:
        self._settings = settings
        self._now_ms = now_ms
        self._quotas = ClientQuotas({})
        self._rates = self._new_rates()
        self.counts = {key: ThrottleCounts() for key in CLIENT_KEYS}

    @property
    def is_active(self) -> bool:
        """Whether any client has a quota."""
        return bool(self._quotas.keys)

    @property
    def measures_time(self) -> bool:
        """Whether it matters how long requests take."""
        return QuotaKey.REQUEST_PERCENTAGE in self._quotas.keys

    def follow(self, quotas: Mapping[QuotaEntity, QuotaLimits]) -> None:
        """From now on these hold; what was used counts on."""
        self._quotas = ClientQuotas(quotas)
        if not self.is_active:
            self._rates = self._new_rates()

    def find(self, key: QuotaKey, caller: Caller) -> FoundQuota | None:
        """The quota that holds for the caller."""
        return self._quotas.find(key, caller.principal.name, caller.client_id or "")

    def restrains_producing(self, caller: Caller) -> bool:
        """Whether a quota holds for what the caller produces, or for the time that it takes."""
        keys = (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.REQUEST_PERCENTAGE)
        return any(self.find(key, caller) is not None for key in keys)

    def add_produced(self, caller: Caller, size: int) -> float:
        """Counts a request to produce; for how many milliseconds the caller is to be throttled."""
        found = self.find(QuotaKey.PRODUCER_BYTE_RATE, caller)
        return 0.0 if found is None else self._bounded(self._rates.produced.record(found, size, self._now_ms()))

    def add_consumed(self, found: FoundQuota, size: int) -> tuple[float, bool]:
        """Counts an answer to a fetch; for how many milliseconds the caller is to be throttled, and whether it gets
        the answer nevertheless: one that alone is more than the quota of a whole window, when it has had nothing
        before. It would never get it otherwise.
        """
        now_ms, consumed = self._now_ms(), self._rates.consumed
        is_first = consumed.used(found, now_ms) <= 0
        throttle_ms = self._bounded(consumed.record(found, size, now_ms))
        return throttle_ms, is_first

    def take_back_consumed(self, found: FoundQuota, size: int) -> None:
        """The answer is not sent after all."""
        self._rates.consumed.take_back(found, size, self._now_ms())

    def add_time(self, caller: Caller, seconds: float) -> float:
        """Counts the time of the event loop that a request has taken; the quota is in percent of it."""
        found = self.find(QuotaKey.REQUEST_PERCENTAGE, caller)
        if found is None:
            return 0.0
        return min(SAMPLE_MS, self._rates.requests.record(found, 100 * seconds, self._now_ms()))

    def partition_allowance(self, caller: Caller, *, is_strict: bool) -> PartitionAllowance:
        """What the caller may create and delete; only a strict one refuses."""
        found = self.find(QuotaKey.CONTROLLER_MUTATION_RATE, caller)
        return PartitionAllowance(self, caller, found, is_strict=is_strict)

    def may_mutate(self, found: FoundQuota) -> bool:
        return self._rates.mutations.may_take(found, self._now_ms())

    def add_mutations(self, found: FoundQuota, count: int) -> float:
        """Counts partitions that are created or deleted, or fewer if the count is below 0."""
        now_ms, mutations = self._now_ms(), self._rates.mutations
        mutations.take(found, count, now_ms)
        return self._bounded(mutations.throttle_ms(found, now_ms))

    def throttle(self, caller: Caller, times_ms: Mapping[QuotaKey, float]) -> int:
        """Throttles the caller by the quota that takes longest; for how many milliseconds."""
        key, longest = max(times_ms.items(), key=lambda item: item[1])
        if longest < 1:
            return 0
        throttle_ms = round(longest)
        counts = self.counts[key]
        counts.throttled += 1
        counts.seconds += throttle_ms / 1000
        caller.throttle_ms = throttle_ms
        return throttle_ms

    def _bounded(self, throttle_ms: float) -> float:
        return min(throttle_ms, self._settings.max_throttle_ms)

    def _new_rates(self) -> _Rates:
        tracked = self._settings.tracked_entities
        return _Rates(RateQuota(tracked), RateQuota(tracked), RateQuota(tracked), MutationQuota(tracked))


@dataclass(slots=True)
class PartitionAllowance:
    """Partitions that one request creates or deletes (KIP-599)."""

    _limits: ClientLimits
    _caller: Caller
    _found: FoundQuota | None
    is_strict: bool = field(kw_only=True)

    def take(self, count: int) -> bool:
        """Counts so many partitions; False, and nothing is counted, if the caller has taken too many already."""
        if self._found is None:
            return True
        if self.is_strict and not self._limits.may_mutate(self._found):
            self._throttle(0)
            return False
        self._throttle(count)
        return True

    def give_back(self, count: int) -> None:
        """So many were not created or deleted after all."""
        if self._found is not None:
            self._throttle(-count)

    def _throttle(self, count: int) -> None:
        assert self._found is not None
        self._caller.mutation_throttle_ms = self._limits.add_mutations(self._found, count)
