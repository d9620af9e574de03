"""Decisions about access control lists: which can be added, and what a filter removes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from penstock.cluster import nodes
from penstock.cluster.coordination.contract import MAX_COMMIT_BYTES
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.errors import ApiError, Code
from penstock.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclEntry,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)

MAX_NAME_BYTES = 1000
"""Of a resource or a principal."""
MAX_REMOVED = 100_000
"""That one request may name: each is in the answer."""
_MAX_NODE_BYTES = MAX_COMMIT_BYTES * 9 // 10


def check(acl: Acl) -> None:
    """ApiError if it could not mean anything."""
    (type_, name, pattern), (principal, host, operation, permission) = acl
    if type_ in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise _invalid(f"Invalid resource type {type_.name}: an ACL is about one type.")
    if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid pattern type {pattern.name}: it is LITERAL or PREFIXED.")
    if operation in (Operation.UNKNOWN, Operation.ANY):
        raise _invalid(f"Invalid operation {operation.name}: use ALL for every operation.")
    if permission not in (Permission.ALLOW, Permission.DENY):
        raise _invalid(f"Invalid permission type {permission.name}: it is ALLOW or DENY.")
    if not name:
        raise _invalid("Invalid empty resource name.")
    if not host:
        raise _invalid("Invalid empty host: use * for all of them.")
    if type_ is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}.")
    if max(len(text.encode()) for text in (name, str(principal), host)) > MAX_NAME_BYTES:
        raise _invalid(f"Names of resources, principals and hosts have at most {MAX_NAME_BYTES} bytes.")


def add(draft: MetadataDraft, acls: Sequence[Acl], max_acls: int) -> list[ApiError | None]:
    """Adds ACLs; why each of them cannot be, and None also for one that is there already."""
    results: list[ApiError | None] = []
    count = draft.acl_count
    changed: dict[ResourcePattern, dict[AclEntry, None]] = {}
    sizes: dict[ResourcePattern, int] = {}
    for acl in acls:
        resource, entry = acl
        try:
            check(acl)
            before = changed.get(resource)
            if before is None:
                known = draft.acls.get(resource, ())
                before = changed[resource] = dict.fromkeys(known)
                sizes[resource] = len(nodes.encode_acls(known))
            if entry not in before:
                _check_room(resource, count, max_acls, sizes[resource] + _size(entry))
                before[entry] = None
                sizes[resource] += _size(entry)
                count += 1
            results.append(None)
        except ApiError as error:
            results.append(error)
    for resource, entries in changed.items():
        after = tuple(entries)
        if after != draft.acls.get(resource, ()):
            draft.put_acls(resource, after)
    return results


def remove(draft: MetadataDraft, filters: Sequence[AclFilter]) -> list[list[Acl]]:
    """Removes what the filters describe; what each of them found, also if another one found it too."""
    before = draft.acls
    found: list[list[Acl]] = []
    room = MAX_REMOVED
    for each in filters:
        found.append(list(islice(matching(before, each), room + 1)))
        room -= len(found[-1])
        if room < 0:
            raise _invalid(
                f"The filters describe more than {MAX_REMOVED} ACLs, those of several filters counted again."
            )
    gone: dict[ResourcePattern, set[AclEntry]] = {}
    for resource, entry in (acl for acls in found for acl in acls):
        gone.setdefault(resource, set()).add(entry)
    for resource, entries in gone.items():
        draft.put_acls(resource, tuple(entry for entry in before[resource] if entry not in entries))
    return found


def matching(acls: Mapping[ResourcePattern, tuple[AclEntry, ...]], wanted: AclFilter) -> Iterator[Acl]:
    """The ACLs that a filter describes."""
    for resource, entries in acls.items():
        if wanted.matches_resource(resource):
            for entry in entries:
                if wanted.matches_entry(entry):
                    yield Acl(resource, entry)


def _check_room(resource: ResourcePattern, count: int, max_acls: int, size: int) -> None:
    if count >= max_acls:
        raise ApiError(
            Code.POLICY_VIOLATION, f"The cluster has {count} ACLs, and limits.acls allows no more: remove some first."
        )
    if size > _MAX_NODE_BYTES:
        raise ApiError(Code.POLICY_VIOLATION, f"The coordination tree cannot hold more ACLs about {resource}.")


def _size(entry: AclEntry) -> int:
    return len(nodes.encode_acls((entry,)))


def _invalid(reason: str) -> ApiError:
    return ApiError(Code.INVALID_REQUEST, reason)
