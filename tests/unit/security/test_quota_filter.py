"""Which quotas a request asks for."""

from __future__ import annotations

import pytest

from penstock.security.quota_entity import DEFAULT_NAME, QuotaEntity
from penstock.security.quota_filter import Match, QuotaFilter, UnknownTypeError

ALICE, ALICE_WEB = QuotaEntity("alice"), QuotaEntity("alice", "web")
ANY_USER, DEFAULT_BOTH = QuotaEntity(DEFAULT_NAME), QuotaEntity(DEFAULT_NAME, DEFAULT_NAME)
WEB, IP = QuotaEntity(None, "web"), QuotaEntity(ip="10.0.0.1")
ALL = (ALICE, ALICE_WEB, ANY_USER, DEFAULT_BOTH, WEB, IP)


@pytest.mark.parametrize(
    ("components", "strict", "expected"),
    [
        ([], False, ALL),
        ([], True, ()),
        ([("user", Match.EXACT, "alice")], False, (ALICE, ALICE_WEB)),
        ([("user", Match.EXACT, "alice")], True, (ALICE,)),
        ([("user", Match.DEFAULT, None)], False, (ANY_USER, DEFAULT_BOTH)),
        ([("user", Match.DEFAULT, None)], True, (ANY_USER,)),
        ([("user", Match.ANY, None)], False, (ALICE, ALICE_WEB, ANY_USER, DEFAULT_BOTH)),
        ([("user", Match.ANY, None)], True, (ALICE, ANY_USER)),
        ([("client-id", Match.EXACT, "web")], False, (ALICE_WEB, WEB)),
        ([("user", Match.ANY, None), ("client-id", Match.EXACT, "web")], True, (ALICE_WEB,)),
        ([("user", Match.DEFAULT, None), ("client-id", Match.DEFAULT, None)], True, (DEFAULT_BOTH,)),
        ([("ip", Match.ANY, None)], True, (IP,)),
        ([("ip", Match.EXACT, "10.0.0.2")], True, ()),
    ],
)
def test_entities_are_found_as_in_kafka(
    components: list[tuple[str, int, str | None]], strict: bool, expected: tuple[QuotaEntity, ...]
) -> None:
    wanted = QuotaFilter(components, strict=strict)
    assert tuple(filter(wanted.matches, ALL)) == expected


@pytest.mark.parametrize(
    ("components", "reason"),
    [
        ([("", 2, None)], "empty entity type"),
        ([("user", 2, None), ("user", 1, None)], "more than once"),
        ([("user", 0, None)], "MATCH_TYPE_EXACT"),
        ([("user", 1, "alice")], "MATCH_TYPE_DEFAULT"),
        ([("user", 2, "alice")], "MATCH_TYPE_SPECIFIED"),
        ([("user", 3, None)], "Unknown match type 3"),
        ([("user", 2, None), ("ip", 2, None)], "an ip does not go with"),
    ],
)
def test_a_filter_that_means_nothing_is_refused(components: list[tuple[str, int, str | None]], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        QuotaFilter(components, strict=False)


def test_an_unknown_type_is_of_another_version() -> None:
    with pytest.raises(UnknownTypeError, match="Unsupported entity type group"):
        QuotaFilter([("group", 2, None)], strict=False)
