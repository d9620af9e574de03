"""Checks of what a member of a consumer group asks for; each raises ApiError."""

from __future__ import annotations

from penstock.errors import ApiError, Code
from penstock.groups.consumer.members import ConsumerMember
from penstock.groups.consumer.pattern import Pattern, PatternError
from penstock.groups.consumer.state import ConsumerState
from penstock.groups.rules import GroupRules


def check_assignor(name: str | None, rules: GroupRules) -> None:
    if name is not None and name not in rules.consumer_assignors:
        known = ", ".join(rules.consumer_assignors)
        raise ApiError(Code.UNSUPPORTED_ASSIGNOR, f"Assignor {name} is not supported. Supported: {known}.")


def check_pattern(pattern: str | None, rules: GroupRules) -> None:
    """An empty expression is allowed: it matches nothing."""
    if not pattern:
        return
    if len(pattern) > rules.max_pattern_length:
        reason = f"longer than {rules.max_pattern_length} characters"
        raise ApiError(Code.INVALID_REGULAR_EXPRESSION, f"SubscribedTopicRegex is {reason}.")
    try:
        Pattern(pattern)
    except PatternError as error:
        raise ApiError(Code.INVALID_REGULAR_EXPRESSION, f"SubscribedTopicRegex is not valid: {error}.") from error


def check_room(state: ConsumerState, before: ConsumerMember | None, member: ConsumerMember, rules: GroupRules) -> None:
    """Whether the group has room for a new member, or for what a member says of itself now."""
    if before is None and len(state.members) >= rules.max_members:
        raise ApiError(Code.GROUP_MAX_SIZE_REACHED, f"The group has {rules.max_members} members already.")
    if state.size + member.size - (0 if before is None else before.size) > rules.max_bytes:
        raise ApiError(Code.GROUP_MAX_SIZE_REACHED, "The members say more of themselves than a group may hold.")
