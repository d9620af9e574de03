"""Whom a quota is for, and what it may limit."""

from __future__ import annotations

import pytest

from penstock.security.quota_entity import DEFAULT_NAME, QuotaEntity, quota_entity
from penstock.security.quota_keys import QuotaKey, checked_limit


def test_an_entity_has_the_names_that_it_was_given() -> None:
    assert quota_entity({"user": "alice", "client-id": None}) == QuotaEntity(user="alice", client_id=DEFAULT_NAME)
    assert quota_entity({"ip": "::0001"}).names == {"ip": "::1"}
    assert str(quota_entity({"user": None, "client-id": "web"})) == "default user, client-id 'web'"


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({}, "empty"),
        ({"group": "g"}, "Unhandled client quota entity type: group"),
        ({"user": ""}, "Empty user"),
        ({"ip": "10.0.0.1", "user": "alice"}, "combination"),
        ({"ip": "an-address"}, "not an IP address"),
        ({"user": "a" * 256}, "at most 255"),
    ],
)
def test_what_is_no_entity_is_refused(names: dict[str, str | None], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        quota_entity(names)


def test_a_limit_of_bytes_is_a_whole_number() -> None:
    alice = QuotaEntity(user="alice")
    assert checked_limit(alice, "producer_byte_rate", 1000.0000001) == (QuotaKey.PRODUCER_BYTE_RATE, 1000.0)
    assert checked_limit(alice, "request_percentage", 0.5) == (QuotaKey.REQUEST_PERCENTAGE, 0.5)


@pytest.mark.parametrize(
    ("entity", "key", "value", "reason"),
    [
        (QuotaEntity(user="alice"), "connection_creation_rate", 1.0, "Invalid configuration key"),
        (QuotaEntity(ip="10.0.0.1"), "producer_byte_rate", 1.0, "Invalid configuration key"),
        (QuotaEntity(user="alice"), "bytes", 1.0, "Invalid configuration key"),
        (QuotaEntity(user="alice"), "producer_byte_rate", 0.0, "greater than 0"),
        (QuotaEntity(user="alice"), "producer_byte_rate", -1.0, "greater than 0"),
        (QuotaEntity(user="alice"), "producer_byte_rate", float("nan"), "greater than 0"),
        (QuotaEntity(user="alice"), "request_percentage", float("inf"), "finite"),
        (QuotaEntity(user="alice"), "producer_byte_rate", 1.5, "whole number"),
        (QuotaEntity(user="alice"), "producer_byte_rate", 1e30, "at most"),
        (QuotaEntity(ip=DEFAULT_NAME), "connection_creation_rate", 2.0**31, "at most"),
    ],
)
def test_what_is_no_limit_is_refused(entity: QuotaEntity, key: str, value: float, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        checked_limit(entity, key, value)
