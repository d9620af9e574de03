"""Which quota holds for a client, who shares it, and what is remembered."""

from __future__ import annotations

import pytest

from penstock.security.client_quotas import ClientQuotas, FoundQuota, IpQuotas, MutationQuota, RateQuota, Tracked
from penstock.security.quota_entity import DEFAULT_NAME, QuotaEntity
from penstock.security.quota_keys import QuotaKey

KEY = QuotaKey.PRODUCER_BYTE_RATE
ORDER = (
    QuotaEntity("alice", "web"),
    QuotaEntity("alice", DEFAULT_NAME),
    QuotaEntity("alice", None),
    QuotaEntity(DEFAULT_NAME, "web"),
    QuotaEntity(DEFAULT_NAME, DEFAULT_NAME),
    QuotaEntity(DEFAULT_NAME, None),
    QuotaEntity(None, "web"),
    QuotaEntity(None, DEFAULT_NAME),
)
"""Kafka's order, the one that wins first."""
SHARED_BY = (
    *(Tracked("alice", "web"), Tracked("alice", "web"), Tracked("alice", None)),
    *(Tracked("alice", "web"), Tracked("alice", "web"), Tracked("alice", None)),
    *(Tracked(None, "web"), Tracked(None, "web")),
)


@pytest.mark.parametrize("level", range(len(ORDER)))
def test_the_most_specific_quota_holds(level: int) -> None:
    quotas = ClientQuotas({entity: {KEY: float(at)} for at, entity in enumerate(ORDER) if at >= level})
    assert quotas.find(KEY, "alice", "web") == FoundQuota(float(level), SHARED_BY[level])


def test_a_quota_of_another_kind_does_not_hide_one() -> None:
    quotas = ClientQuotas(
        {
            QuotaEntity("alice", "web"): {QuotaKey.CONSUMER_BYTE_RATE: 1.0},
            QuotaEntity(None, DEFAULT_NAME): {KEY: 2.0},
        }
    )
    assert quotas.find(KEY, "alice", "web") == FoundQuota(2.0, Tracked(None, "web"))
    assert quotas.keys == {KEY, QuotaKey.CONSUMER_BYTE_RATE}


def test_others_have_no_quota() -> None:
    quotas = ClientQuotas({QuotaEntity("alice", None): {KEY: 1.0}})
    assert quotas.find(KEY, "bob", "web") is None
    assert quotas.find(QuotaKey.REQUEST_PERCENTAGE, "alice", "web") is None


def test_a_client_without_an_id_has_the_default() -> None:
    quotas = ClientQuotas({QuotaEntity(None, DEFAULT_NAME): {KEY: 1.0}})
    assert quotas.find(KEY, "alice", "") == FoundQuota(1.0, Tracked(None, ""))


def test_long_client_ids_are_cut() -> None:
    quotas = ClientQuotas({QuotaEntity(None, DEFAULT_NAME): {KEY: 1.0}})
    found = quotas.find(KEY, "alice", "a" * 30_000)
    assert found is not None and found.tracked.client_id == "a" * 255


def test_an_address_has_its_own_quota_or_the_default() -> None:
    key = QuotaKey.CONNECTION_CREATION_RATE
    quotas = IpQuotas({QuotaEntity(ip="10.0.0.1"): {key: 5.0}, QuotaEntity(ip=DEFAULT_NAME): {key: 2.0}})
    assert (quotas.find("10.0.0.1"), quotas.find("10.0.0.2")) == (5.0, 2.0)
    assert IpQuotas({QuotaEntity("alice"): {KEY: 1.0}}).is_empty


def test_entities_share_what_they_track_together() -> None:
    quota = RateQuota(100)
    found = FoundQuota(1000.0, Tracked("alice", None))
    assert quota.record(found, 9_000, 0) == 0
    assert quota.record(FoundQuota(1000.0, Tracked("bob", None)), 9_000, 0) == 0
    assert quota.record(found, 2_000, 0) == pytest.approx(1000)
    quota.take_back(found, 2_000, 0)
    assert quota.used(found, 0) == 9_000


def test_a_client_with_ever_new_ids_does_not_grow_the_broker_nor_make_it_forget_others() -> None:
    quota = RateQuota(10)
    alice = FoundQuota(1000.0, Tracked("alice", None))
    quota.record(alice, 20_000, 0)
    throttled = [quota.record(FoundQuota(1000.0, Tracked(None, f"id-{at}")), 1000, 0) for at in range(100)]
    assert quota.tracked == 11
    assert throttled[0] == 0 and throttled[-1] > 0
    assert quota.used(alice, 0) == 20_000


def test_entities_that_use_nothing_are_forgotten() -> None:
    quota = RateQuota(1000)
    for at in range(500):
        quota.record(FoundQuota(1000.0, Tracked(None, f"id-{at}")), 1000, 0)
    for at in range(500, 600):
        quota.record(FoundQuota(1000.0, Tracked(None, f"id-{at}")), 1000, 20_000)
    assert quota.tracked <= 120


def test_a_debt_of_partitions_is_not_forgotten() -> None:
    quota = MutationQuota(10)
    found = FoundQuota(1.0, Tracked("alice", None))
    assert quota.may_take(found, 0)
    quota.take(found, 111, 0)
    for at in range(20):
        quota.take(FoundQuota(1.0, Tracked(None, f"id-{at}")), 1, 50_000)
    assert not quota.may_take(found, 50_000)
    assert quota.throttle_ms(found, 50_000) == 50_000
    assert quota.may_take(found, 100_000)
