from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.acl_index import AclIndex, Acls
from penstock.security.acls import (
    Acl,
    AclEntry,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from penstock.security.authorizer import Authorizer, AuthorizerRules
from penstock.security.principal import EVERYONE, Principal

ALICE, BOB = Principal.user("alice"), Principal.user("bob")
TOPIC = ResourceType.TOPIC
HERE, THERE = "10.0.0.1", "10.0.0.2"
REAL_OPERATIONS = [each for each in Operation if each not in (Operation.UNKNOWN, Operation.ANY)]


def rule(
    name: str,
    operation: Operation,
    *,
    who: Principal = ALICE,
    host: str = "*",
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
    type_: ResourceType = TOPIC,
) -> Acl:
    return Acl(ResourcePattern(type_, name, pattern), AclEntry(who, host, operation, permission))


def acls_of(*rules: Acl) -> Acls:
    found: dict[ResourcePattern, tuple[AclEntry, ...]] = {}
    for resource, entry in rules:
        found[resource] = (*found.get(resource, ()), entry)
    return found


def allows(acls: Acls, operation: Operation, name: str, who: Principal = ALICE, host: str = HERE) -> bool:
    return AclIndex(acls).decide(who, host, operation, TOPIC, name).is_allowed


def test_what_no_entry_speaks_of_is_denied() -> None:
    assert not allows({}, Operation.READ, "orders")
    assert not allows(acls_of(rule("orders", Operation.READ)), Operation.READ, "payments")
    assert not allows(acls_of(rule("orders", Operation.READ)), Operation.READ, "orders", BOB)


def test_denial_wins_over_permission_wherever_it_stands() -> None:
    denial = rule("ord", Operation.READ, permission=Permission.DENY, pattern=PatternType.PREFIXED, who=EVERYONE)
    acls = acls_of(rule("orders", Operation.ALL), denial)
    assert not allows(acls, Operation.READ, "orders")
    assert allows(acls, Operation.WRITE, "orders")


def test_permissions_imply_describe_and_denials_do_not() -> None:
    for operation in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER):
        assert allows(acls_of(rule("orders", operation)), Operation.DESCRIBE, "orders")
    assert not allows(acls_of(rule("orders", Operation.CREATE)), Operation.DESCRIBE, "orders")
    assert allows(acls_of(rule("orders", Operation.ALTER_CONFIGS)), Operation.DESCRIBE_CONFIGS, "orders")
    assert not allows(acls_of(rule("orders", Operation.DESCRIBE_CONFIGS)), Operation.ALTER_CONFIGS, "orders")
    denied = acls_of(rule("orders", Operation.DESCRIBE), rule("orders", Operation.READ, permission=Permission.DENY))
    assert allows(denied, Operation.DESCRIBE, "orders")


def test_host_has_to_be_the_one_that_is_named() -> None:
    acls = acls_of(rule("orders", Operation.READ, host=HERE))
    assert allows(acls, Operation.READ, "orders", host=HERE)
    assert not allows(acls, Operation.READ, "orders", host=THERE)


def test_decision_names_the_acl() -> None:
    reading = rule("orders-", Operation.READ, pattern=PatternType.PREFIXED)
    decision = AclIndex(acls_of(reading)).decide(ALICE, HERE, Operation.DESCRIBE, TOPIC, "orders-eu")
    assert decision.acl == reading
    assert str(reading) == "ALLOW User:alice READ on topic orders-… (prefixed) from any host"


def test_everyone_is_allowed_only_where_no_acl_is_about_the_resource() -> None:
    authorizer = Authorizer(AuthorizerRules(allows_without_acl=True), acls_of(rule("orders", Operation.READ, who=BOB)))
    assert authorizer.decide(ALICE, HERE, Operation.READ, TOPIC, "payments").is_allowed
    assert not authorizer.decide(ALICE, HERE, Operation.READ, TOPIC, "orders").is_allowed
    assert authorizer.may_with_any(ALICE, HERE, Operation.WRITE, TOPIC)


def test_super_users_are_not_held_by_denials() -> None:
    everything = acls_of(rule("*", Operation.ALL, permission=Permission.DENY, who=EVERYONE))
    authorizer = Authorizer(AuthorizerRules(super_users=frozenset({ALICE})), everything)
    assert authorizer.decisions(ALICE, HERE, Operation.DELETE, TOPIC)["orders"]
    assert authorizer.may_with_any(ALICE, HERE, Operation.WRITE, TOPIC)
    assert not authorizer.decisions(BOB, HERE, Operation.DELETE, TOPIC)["orders"]


def test_change_of_acls_counts_at_once() -> None:
    authorizer = Authorizer(AuthorizerRules())
    assert not authorizer.decisions(ALICE, HERE, Operation.READ, TOPIC)["orders"]
    assert not authorizer.may_with_any(ALICE, HERE, Operation.READ, TOPIC)
    authorizer.change(acls_of(rule("orders", Operation.READ)))
    assert authorizer.decisions(ALICE, HERE, Operation.READ, TOPIC)["orders"]
    assert authorizer.may_with_any(ALICE, HERE, Operation.READ, TOPIC)
    authorizer.change({})
    assert not authorizer.decisions(ALICE, HERE, Operation.READ, TOPIC)["orders"]


def test_kept_decisions_have_a_bound() -> None:
    authorizer = Authorizer(AuthorizerRules(kept_decisions=50))
    for number in range(1000):
        assert not authorizer.decisions(ALICE, f"host-{number % 7}", Operation.READ, TOPIC)[f"topic-{number}"]
        assert authorizer.kept <= 50


def test_authorized_operations_are_bits() -> None:
    authorizer = Authorizer(AuthorizerRules(), acls_of(rule("orders", Operation.READ)))
    assert authorizer.operations(ALICE, HERE, TOPIC, "orders") == 1 << Operation.READ | 1 << Operation.DESCRIBE


@pytest.mark.parametrize(
    ("filter_", "matches"),
    [
        (AclFilter(), {"orders", "ord", "*"}),
        (AclFilter(name="orders"), {"orders"}),
        (AclFilter(name="orders", pattern=PatternType.MATCH), {"orders", "ord", "*"}),
        (AclFilter(name="ord", pattern=PatternType.PREFIXED), {"ord"}),
        (AclFilter(name="ord", pattern=PatternType.LITERAL), set()),
        (AclFilter(pattern=PatternType.PREFIXED), {"ord"}),
        (AclFilter(name="payments", pattern=PatternType.MATCH), {"*"}),
        (AclFilter(type=ResourceType.GROUP), set()),
        (AclFilter(principal="User:alice", operation=Operation.READ), {"orders", "ord"}),
        (AclFilter(permission=Permission.DENY), {"*"}),
        (AclFilter(host=HERE), set()),
    ],
)
def test_filters_find_what_they_describe(filter_: AclFilter, matches: set[str]) -> None:
    rules = [
        rule("orders", Operation.READ),
        rule("ord", Operation.READ, pattern=PatternType.PREFIXED),
        rule("*", Operation.WRITE, permission=Permission.DENY),
    ]
    found = {
        each.resource.name for each in rules if filter_.matches_resource(each[0]) and filter_.matches_entry(each[1])
    }
    assert found == matches


NAMES = st.text(alphabet="ab*", min_size=1, max_size=3)
RULES = st.builds(
    rule,
    NAMES,
    st.sampled_from(REAL_OPERATIONS),
    who=st.sampled_from([ALICE, BOB, EVERYONE, Principal("Group", "alice")]),
    host=st.sampled_from(["*", HERE, THERE]),
    permission=st.sampled_from([Permission.ALLOW, Permission.DENY]),
    pattern=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    type_=st.sampled_from([TOPIC, ResourceType.GROUP]),
)


def naive(rules: list[Acl], who: Principal, host: str, operation: Operation, name: str, *, default: bool) -> bool:
    """Every rule is looked at, in Kafka's words."""
    about = [
        entry
        for (type_, pattern_name, pattern), entry in rules
        if type_ is TOPIC
        and (name.startswith(pattern_name) if pattern is PatternType.PREFIXED else pattern_name in (name, "*"))
    ]
    mine = [entry for entry in about if entry.principal in (who, EVERYONE) and entry.host in (host, "*")]
    implied = {
        Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
    }.get(operation, set())
    if any(e.permission is Permission.DENY and e.operation in (operation, Operation.ALL) for e in mine):
        return False
    if any(e.permission is Permission.ALLOW and e.operation in {operation, Operation.ALL, *implied} for e in mine):
        return True
    return default and not about


@given(
    st.lists(RULES, max_size=8), st.sampled_from([ALICE, BOB]), st.sampled_from(REAL_OPERATIONS), NAMES, st.booleans()
)
def test_index_decides_as_every_rule_together(
    rules: list[Acl], who: Principal, operation: Operation, name: str, default: bool
) -> None:
    # The index is made in two steps: what has not changed is taken over from the one before.
    index = AclIndex(acls_of(*rules), AclIndex(acls_of(*rules[: len(rules) // 2])))
    decision = index.decide(who, HERE, operation, TOPIC, name, allows_without_acl=default)
    assert decision.is_allowed == naive(rules, who, HERE, operation, name, default=default)
    if decision.acl is not None:
        assert decision.acl in rules


@given(st.lists(RULES, max_size=8), st.sampled_from([ALICE, BOB]), st.booleans())
def test_write_to_any_topic_is_allowed_if_there_is_such_a_topic(
    rules: list[Acl], who: Principal, default: bool
) -> None:
    names = {resource.name for resource, _ in rules if resource.name != "*"}
    candidates = {*names, *(f"{name}~" for name in ("", "*", *names))}
    expected = any(naive(rules, who, HERE, Operation.WRITE, name, default=default) for name in candidates)
    index = AclIndex(acls_of(*rules))
    assert index.decide_for_any(who, HERE, Operation.WRITE, TOPIC, allows_without_acl=default) == expected
