"""Quotas: decided, kept in the tree, read back, followed by other brokers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster import nodes
from penstock.cluster.coordination.embedded import EmbeddedCoordination
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.errors import ApiError, Code, CoordinationError
from penstock.ids import BrokerId
from penstock.security.quota_entity import DEFAULT_NAME, QuotaEntity
from penstock.security.quota_keys import QuotaKey

STRANGE = "a/b %2F\0 ü-;:"
"""A user may be called anything."""
BOTH = QuotaEntity(STRANGE, DEFAULT_NAME)
PRODUCED = QuotaKey.PRODUCER_BYTE_RATE


async def metadata_of(tree: EmbeddedCoordination, entities_with_quotas: int = 2) -> MetadataChanges:
    metadata = MetadataChanges(
        tree, MetadataSettings("cluster", BrokerId(1), entities_with_quotas=entities_with_quotas)
    )
    await metadata.start()
    return metadata


async def test_quotas_are_found_again(tmp_path: Path) -> None:
    tree = await EmbeddedCoordination.open(tmp_path / "coordination.db")
    metadata = await metadata_of(tree)
    assert await metadata.alter_quotas({BOTH: {"producer_byte_rate": 1000, "request_percentage": 0.5}}) == {BOTH: None}
    limits = {PRODUCED: 1000.0, QuotaKey.REQUEST_PERCENTAGE: 0.5}
    assert metadata.image.quotas == {BOTH: limits}
    await tree.close()
    tree = await EmbeddedCoordination.open(tmp_path / "coordination.db")
    again = await metadata_of(tree)
    assert again.image.quotas == {BOTH: limits}
    await again.alter_quotas({BOTH: {"request_percentage": None, "consumer_byte_rate": None}})
    assert again.image.quotas == {BOTH: {PRODUCED: 1000.0}}
    await again.alter_quotas({BOTH: {"producer_byte_rate": None}})
    assert again.image.quotas == {}
    assert await tree.get(nodes.quota_path(BOTH)) is None
    await tree.close()


async def test_one_refusal_does_not_keep_the_others_from_going_through(tmp_path: Path) -> None:
    tree = await EmbeddedCoordination.open(tmp_path / "coordination.db")
    metadata = await metadata_of(tree)
    alice, bob, carol = QuotaEntity("alice"), QuotaEntity("bob"), QuotaEntity("carol")
    results = await metadata.alter_quotas(
        {
            alice: {"producer_byte_rate": 1000, "bytes": 1},
            bob: {"producer_byte_rate": 1000},
            carol: {"consumer_byte_rate": -1},
            QuotaEntity(ip="10.0.0.1"): {"connection_creation_rate": 3},
            QuotaEntity(ip="10.0.0.2"): {"connection_creation_rate": 3},
        }
    )
    codes = [result.code if isinstance(result, ApiError) else None for result in results.values()]
    assert codes == [Code.INVALID_REQUEST, None, Code.INVALID_REQUEST, None, Code.POLICY_VIOLATION]
    assert metadata.image.quotas.keys() == {bob, QuotaEntity(ip="10.0.0.1")}
    await tree.close()


async def test_a_change_that_is_only_checked_changes_nothing(tmp_path: Path) -> None:
    tree = await EmbeddedCoordination.open(tmp_path / "coordination.db")
    metadata = await metadata_of(tree)
    assert await metadata.alter_quotas({BOTH: {"producer_byte_rate": 1}}, validate_only=True) == {BOTH: None}
    assert metadata.image.quotas == {}
    await tree.close()


names = st.text(min_size=1, max_size=255)
entities = st.builds(QuotaEntity, names | st.just(DEFAULT_NAME), st.none() | names | st.just(DEFAULT_NAME), st.none())


@given(entities)
def test_an_entity_is_found_in_the_name_of_its_node(entity: QuotaEntity) -> None:
    path = nodes.quota_path(entity)
    assert path.count("/") == 2
    assert nodes.quota_entity_of(path) == entity


@pytest.mark.parametrize("name", ["user:", "group:g", "ip:x", "user:a;ip:10.0.0.1"])
def test_a_node_of_another_version_is_not_guessed_at(name: str) -> None:
    with pytest.raises(CoordinationError, match="unknown node"):
        nodes.quota_entity_of(f"/quotas/{name}")
