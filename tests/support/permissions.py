"""Giving permissions to callers of a broker in this process, and reading what they are answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.errors import Code
from penstock.net.caller import Caller
from penstock.protocol import apis
from penstock.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from penstock.security.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from penstock.security.principal import Principal
from support import callers
from support.inner_broker import InnerBroker

ROOT = Principal.user("root")
AUTHORIZED = {"security.authorizer": "acls", "security.super_users": str(ROOT)}
"""Settings of a broker whose callers need permissions, all but one."""
DENIED = {
    int(code)
    for code in (
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
}


def caller_of(principal: Principal) -> Caller:
    caller = callers.client()
    caller.principal = principal
    return caller


def acl(
    principal: Principal,
    operation: Operation,
    type_: ResourceType,
    name: str = CLUSTER_NAME,
    *,
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
) -> AclCreation:
    return AclCreation(
        resource_type=type_,
        resource_name=name,
        resource_pattern_type=pattern,
        principal=str(principal),
        host="*",
        operation=operation,
        permission_type=permission,
    )


def give(broker: InnerBroker, *creations: AclCreation) -> None:
    answer = broker.ask(caller_of(ROOT), apis.CREATE_ACLS, 3, CreateAclsRequest(creations=creations))
    assert not any(codes(answer)), answer


def codes(answer: Any) -> Iterator[int]:
    """Every error code in an answer."""
    if isinstance(answer, dict):
        for key, value in answer.items():
            if key.endswith("error_code") and key != "topic_config_error_code":
                yield value or 0
            else:
                yield from codes(value)
    elif isinstance(answer, list | tuple):
        for item in answer:
            yield from codes(item)
