"""DescribeClientQuotas and AlterClientQuotas."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.broker.handlers.client_quotas import ClientQuotaHandlers
from penstock.broker.requests.context import RequestContext
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.config.loader import load
from penstock.errors import Code
from penstock.protocol.messages.alter_client_quotas import (
    AlterClientQuotasEntity,
    AlterClientQuotasEntry,
    AlterClientQuotasOperation,
    AlterClientQuotasRequest,
)
from penstock.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasComponent,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from support import callers
from support.tree import Tree

CONTEXT = RequestContext(1, callers.client())


@pytest.fixture
async def handlers(tree: Tree) -> AsyncIterator[ClientQuotaHandlers]:
    metadata = MetadataChanges(tree, MetadataSettings.of(load(None, {}, {}).config, "cluster"))
    await metadata.start()
    yield ClientQuotaHandlers(metadata)


def entry(
    entity: list[tuple[str, str | None]], set_: dict[str, float] | None = None, remove: tuple[str, ...] = ()
) -> AlterClientQuotasEntry:
    return AlterClientQuotasEntry(
        entity=tuple(AlterClientQuotasEntity(entity_type=type_, entity_name=name) for type_, name in entity),
        ops=(
            *(AlterClientQuotasOperation(key=key, value=value) for key, value in (set_ or {}).items()),
            *(AlterClientQuotasOperation(key=key, value=0, remove=True) for key in remove),
        ),
    )


async def alter(handlers: ClientQuotaHandlers, *entries: AlterClientQuotasEntry) -> list[Code]:
    response = await handlers.alter_client_quotas(AlterClientQuotasRequest(entries=entries), CONTEXT)
    assert [result.entity for result in response.entries] == [each.entity for each in entries]
    return [Code(result.error_code) for result in response.entries]


async def describe(
    handlers: ClientQuotaHandlers, *components: tuple[str, int, str | None], strict: bool = False
) -> DescribeClientQuotasResponse:
    asked = tuple(
        DescribeClientQuotasComponent(entity_type=type_, match_type=match, match=name)
        for type_, match, name in components
    )
    return await handlers.describe_client_quotas(DescribeClientQuotasRequest(components=asked, strict=strict), CONTEXT)


def listed(response: DescribeClientQuotasResponse) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    assert response.entries is not None
    return {
        tuple((part.entity_type, part.entity_name) for part in each.entity): {
            value.key: value.value for value in each.values
        }
        for each in response.entries
    }


async def test_what_was_set_is_described(handlers: ClientQuotaHandlers) -> None:
    done = await alter(
        handlers,
        entry([("user", "alice"), ("client-id", None)], {"producer_byte_rate": 1024}),
        entry([("user", None)], {"request_percentage": 50, "consumer_byte_rate": 2048}),
    )
    assert done == [Code.NONE, Code.NONE]
    assert listed(await describe(handlers)) == {
        (("user", "alice"), ("client-id", None)): {"producer_byte_rate": 1024},
        (("user", None),): {"request_percentage": 50, "consumer_byte_rate": 2048},
    }
    assert listed(await describe(handlers, ("user", 0, "alice"), strict=True)) == {}
    await alter(handlers, entry([("user", None)], remove=("request_percentage",)))
    assert listed(await describe(handlers, ("user", 1, None), strict=True)) == {
        (("user", None),): {"consumer_byte_rate": 2048}
    }


async def test_what_cannot_be_is_refused_by_entity(handlers: ClientQuotaHandlers) -> None:
    done = await alter(
        handlers,
        entry([], {"producer_byte_rate": 1024}),
        entry([("user", "alice"), ("user", "bob")], {"producer_byte_rate": 1024}),
        entry([("user", "alice")], {"producer_byte_rate": 1024}),
        entry([("user", "alice")], {"producer_byte_rate": 2048}),
        entry([("user", "bob")], {"producer_byte_rate": 1.5}),
        entry([("user", "carol")], {"producer_byte_rate": 1}, remove=("producer_byte_rate",)),
        entry([("ip", "localhost")], {"connection_creation_rate": 1}),
    )
    bad = Code.INVALID_REQUEST
    assert done == [bad, bad, Code.NONE, bad, bad, bad, bad]
    assert listed(await describe(handlers)) == {(("user", "alice"),): {"producer_byte_rate": 1024}}


async def test_a_filter_that_means_nothing_is_refused(handlers: ClientQuotaHandlers) -> None:
    refused = await describe(handlers, ("user", 0, None))
    assert (refused.error_code, refused.entries) == (Code.INVALID_REQUEST, None)
    assert (await describe(handlers, ("group", 2, None))).error_code == Code.UNSUPPORTED_VERSION
