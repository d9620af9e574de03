"""Access control lists as values: which principals may do what with which resources. Numbers and words are Kafka's.

An ACL is a resource pattern and an entry: `User:alice` may (or may not) `READ` the topics that begin with `orders-`,
from any host. Pure: `acl_index.py` decides with them, `cluster/` stores them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from penstock.security.principal import Principal

CLUSTER_NAME = "kafka-cluster"
"""The only name that a resource of type CLUSTER has."""
ANY_NAME = "*"
"""As the name of a literal pattern: every resource of the type."""
ANY_HOST = "*"


class ResourceType(IntEnum):
    """What can be protected; UNKNOWN and ANY stand in filters only."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a name in an ACL is meant; UNKNOWN, ANY and MATCH stand in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What is done with a resource; UNKNOWN and ANY stand in filters only."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """What an entry says; UNKNOWN and ANY stand in filters only."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


OPERATIONS_OF: dict[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations that mean something for each type: what responses list as authorized operations."""


class ResourcePattern(NamedTuple):
    """The resources that an ACL is about."""

    type: ResourceType
    name: str
    pattern: PatternType = PatternType.LITERAL

    def __str__(self) -> str:
        resource = self.type.name.lower().replace("_", "-")
        if self.pattern is PatternType.PREFIXED:
            return f"{resource} {self.name}… (prefixed)"
        return f"every {resource}" if self.name == ANY_NAME else f"{resource} {self.name}"


class AclEntry(NamedTuple):
    """The principal that is allowed or denied an operation, and the host that it comes from."""

    principal: Principal
    host: str
    operation: Operation
    permission: Permission


class Acl(NamedTuple):
    """One access control list entry with the resources that it is about; Kafka's AclBinding."""

    resource: ResourcePattern
    entry: AclEntry

    def __str__(self) -> str:
        principal, host, operation, permission = self.entry
        where = "any host" if host == ANY_HOST else f"host {host}"
        return f"{permission.name} {principal} {operation.name} on {self.resource} from {where}"


class AclFilter(NamedTuple):
    """Which ACLs are meant; None and ANY stand for all of them."""

    type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches_resource(self, resource: ResourcePattern) -> bool:
        """MATCH means the ACLs that apply to the resource of that name: its own, those of prefixes, those of all."""
        if self.type not in (ResourceType.ANY, resource.type):
            return False
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, resource.pattern):
            return False
        if self.name is None or self.name == resource.name:
            return True
        if self.pattern is not PatternType.MATCH:
            return False
        if resource.pattern is PatternType.PREFIXED:
            return self.name.startswith(resource.name)
        return resource.name == ANY_NAME

    def matches_entry(self, entry: AclEntry) -> bool:
        return (
            self.principal in (None, str(entry.principal))
            and self.host in (None, entry.host)
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )
