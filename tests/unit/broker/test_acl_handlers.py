"""CreateAcls, DescribeAcls and DeleteAcls over a real tree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.broker.handlers.acls import MAX_ACLS, AclHandlers
from penstock.broker.requests.context import RequestContext
from penstock.cluster import nodes
from penstock.cluster.decisions.settings import Replacement
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.errors import Code
from penstock.ids import BrokerId
from penstock.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from penstock.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from penstock.protocol.messages.describe_acls import DescribeAclsRequest
from penstock.security.acls import Operation, PatternType, Permission, ResourcePattern, ResourceType
from support import callers
from support.tree import Tree

CONTEXT = RequestContext(3, callers.client())
READ = AclCreation(
    resource_type=ResourceType.TOPIC,
    resource_name="orders",
    principal="User:alice",
    host="*",
    operation=Operation.READ,
    permission_type=Permission.ALLOW,
)
EVERYTHING = DescribeAclsRequest(
    resource_type_filter=ResourceType.ANY,
    resource_name_filter=None,
    pattern_type_filter=PatternType.ANY,
    principal_filter=None,
    host_filter=None,
    operation=Operation.ANY,
    permission_type=Permission.ANY,
)
ANYTHING = DeleteAclsFilter(
    resource_type_filter=ResourceType.ANY,
    resource_name_filter=None,
    pattern_type_filter=PatternType.ANY,
    principal_filter=None,
    host_filter=None,
    operation=Operation.ANY,
    permission_type=Permission.ANY,
)


@pytest.fixture
async def metadata(tree: Tree) -> MetadataChanges:
    metadata = MetadataChanges(tree, MetadataSettings("cluster", BrokerId(1), acls=5))
    await metadata.start()
    return metadata


@pytest.fixture
def handlers(metadata: MetadataChanges) -> AclHandlers:
    return AclHandlers(metadata, is_enabled=True)


async def create(handlers: AclHandlers, *creations: AclCreation) -> list[int]:
    response = await handlers.create_acls(CreateAclsRequest(creations=creations), CONTEXT)
    return [result.error_code for result in response.results]


async def listed(
    handlers: AclHandlers, wanted: DescribeAclsRequest = EVERYTHING
) -> list[tuple[int, str, int, str, int]]:
    response = await handlers.describe_acls(wanted, CONTEXT)
    assert response.error_code == Code.NONE
    return [
        (resource.resource_type, resource.resource_name, resource.pattern_type, acl.principal, acl.operation)
        for resource in response.resources
        for acl in resource.acls
    ]


async def test_created_acls_are_described_and_survive_a_restart(
    handlers: AclHandlers, metadata: MetadataChanges, tree: Tree
) -> None:
    prefixed = replace(READ, resource_name="päy-*/", resource_pattern_type=PatternType.PREFIXED)
    assert await create(handlers, READ, replace(READ, operation=Operation.WRITE), prefixed) == [0, 0, 0]
    await metadata.close()
    again = MetadataChanges(tree, MetadataSettings("cluster", BrokerId(1)))
    await again.start()
    assert sorted(await listed(AclHandlers(again, is_enabled=True))) == [
        (2, "orders", 3, "User:alice", Operation.READ),
        (2, "orders", 3, "User:alice", Operation.WRITE),
        (2, "päy-*/", 4, "User:alice", Operation.READ),
    ]
    assert again.image.acls == metadata.image.acls


async def test_acl_that_exists_is_created_once(handlers: AclHandlers, metadata: MetadataChanges) -> None:
    assert await create(handlers, READ, READ) == [0, 0]
    before = metadata.image
    assert await create(handlers, READ) == [0]
    assert metadata.image is before
    assert len(await listed(handlers)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        replace(READ, resource_type=ResourceType.ANY),
        replace(READ, resource_type=99),
        replace(READ, resource_type=ResourceType.CLUSTER),
        replace(READ, resource_name=""),
        replace(READ, resource_name="x" * 1001),
        replace(READ, resource_pattern_type=PatternType.MATCH),
        replace(READ, principal="alice"),
        replace(READ, principal="User:" + "x" * 1000),
        replace(READ, host=""),
        replace(READ, operation=Operation.ANY),
        replace(READ, operation=Operation.UNKNOWN),
        replace(READ, permission_type=Permission.ANY),
    ],
)
async def test_acl_that_means_nothing_is_refused_and_the_others_are_created(
    handlers: AclHandlers, wrong: AclCreation
) -> None:
    assert await create(handlers, wrong, READ) == [Code.INVALID_REQUEST, 0]
    assert len(await listed(handlers)) == 1


async def test_number_of_acls_has_a_bound(handlers: AclHandlers) -> None:
    many = [replace(READ, resource_name=f"topic-{number}") for number in range(7)]
    assert await create(handlers, *many) == [0] * 5 + [Code.POLICY_VIOLATION] * 2
    assert await create(handlers, READ) == [Code.POLICY_VIOLATION]
    too_many = [READ] * (MAX_ACLS + 1)
    assert set(await create(handlers, *too_many)) == {Code.INVALID_REQUEST}


async def test_filters_delete_what_they_describe(handlers: AclHandlers, tree: Tree) -> None:
    bob = replace(READ, principal="User:bob")
    group = replace(READ, resource_type=ResourceType.GROUP)
    await create(handlers, READ, bob, group)
    wanted = (
        replace(ANYTHING, principal_filter="User:alice", resource_type_filter=ResourceType.TOPIC),
        replace(ANYTHING, resource_type_filter=ResourceType.USER),
        replace(ANYTHING, operation=Operation.UNKNOWN),
        replace(ANYTHING, resource_type_filter=ResourceType.GROUP),
        replace(ANYTHING, principal_filter="User:alice"),
    )
    response = await handlers.delete_acls(DeleteAclsRequest(filters=wanted), CONTEXT)
    assert [(each.error_code, len(each.matching_acls)) for each in response.filter_results] == [
        (0, 1),
        (0, 0),
        (Code.INVALID_REQUEST, 0),
        (0, 1),
        (0, 2),
    ]
    assert await listed(handlers) == [(2, "orders", 3, "User:bob", Operation.READ)]
    left = nodes.acls_path(ResourcePattern(ResourceType.TOPIC, "orders"))
    assert [f"{nodes.ACLS}/{name}" for name in await tree.children(nodes.ACLS)] == [left]


async def test_filter_match_finds_what_applies_to_a_name(handlers: AclHandlers) -> None:
    prefixed = replace(READ, resource_name="ord", resource_pattern_type=PatternType.PREFIXED)
    await create(handlers, READ, prefixed, replace(READ, resource_name="*"), replace(READ, resource_name="payments"))
    wanted = replace(EVERYTHING, resource_name_filter="orders", pattern_type_filter=PatternType.MATCH)
    assert {name for _, name, *_ in await listed(handlers, wanted)} == {"orders", "ord", "*"}


async def test_without_authorizer_there_are_no_acls(metadata: MetadataChanges) -> None:
    disabled = AclHandlers(metadata, is_enabled=False)
    assert await create(disabled, READ) == [Code.SECURITY_DISABLED]
    assert (await disabled.describe_acls(EVERYTHING, CONTEXT)).error_code == Code.SECURITY_DISABLED
    deleted = await disabled.delete_acls(DeleteAclsRequest(filters=(ANYTHING,)), CONTEXT)
    assert deleted.filter_results[0].error_code == Code.SECURITY_DISABLED


async def test_changes_of_other_things_leave_the_acls_the_same_object(
    handlers: AclHandlers, metadata: MetadataChanges
) -> None:
    await create(handlers, READ)
    before = metadata.image.acls
    await metadata.alter_group_settings({"billing": Replacement({"penstock.paused": "true"})})
    assert metadata.image.acls is before
