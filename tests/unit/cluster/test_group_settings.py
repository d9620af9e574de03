"""Settings of groups: decided, kept in the tree, read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cluster import nodes
from penstock.cluster.coordination.embedded import EmbeddedCoordination
from penstock.cluster.decisions.settings import Increment, OperationKind, Replacement, SettingOperation, SettingsChange
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId

STRANGE = "a/b %2F\0 ü-"
"""A group may be called anything."""


async def controller_of(tree: EmbeddedCoordination, groups_with_settings: int = 2) -> MetadataChanges:
    settings = MetadataSettings("cluster", BrokerId(1), groups_with_settings=groups_with_settings)
    metadata = MetadataChanges(tree, settings)
    await metadata.start()
    return metadata


def steps(*operations: tuple[OperationKind, str, str | None]) -> Increment:
    return Increment(tuple(SettingOperation(name, kind, value) for kind, name, value in operations))


PAUSED = steps((OperationKind.SET, "penstock.paused", "true"))


async def test_settings_are_found_again(tmp_path: Path) -> None:
    tree = await EmbeddedCoordination.open(tmp_path / "coordination.db")
    metadata = await controller_of(tree)
    assert await metadata.alter_group_settings({STRANGE: PAUSED}) == {STRANGE: None}
    assert metadata.image.settings_by_group == {STRANGE: {"penstock.paused": "true"}}
    await tree.close()
    tree = await EmbeddedCoordination.open(tmp_path / "coordination.db")
    again = await controller_of(tree)
    assert again.image.settings_by_group == {STRANGE: {"penstock.paused": "true"}}
    assert await again.alter_group_settings({STRANGE: Replacement({})}) == {STRANGE: None}
    assert again.image.settings_by_group == {}
    assert await tree.get(nodes.group_settings_path(STRANGE)) is None
    await tree.close()


async def test_topics_are_added_to_a_pause_and_taken_from_it(tmp_path: Path) -> None:
    tree = await EmbeddedCoordination.open(tmp_path / "coordination.db")
    metadata = await controller_of(tree)
    name = "penstock.paused.topics"
    for kind, value, expected in (
        (OperationKind.APPEND, "a,b", "a,b"),
        (OperationKind.APPEND, "b,c", "a,b,c"),
        (OperationKind.SUBTRACT, "a", "b,c"),
    ):
        await metadata.alter_group_settings({"g": steps((kind, name, value))})
        assert metadata.image.settings_by_group["g"][name] == expected
    await tree.close()


@pytest.mark.parametrize(
    ("group_id", "change", "code"),
    [
        ("", PAUSED, Code.INVALID_REQUEST),
        ("g", Replacement({"penstock.paused": "maybe"}), Code.INVALID_CONFIG),
        ("g", Replacement({"retention.ms": "1"}), Code.INVALID_CONFIG),
        ("g", Replacement({"penstock.paused.topics": "a,*"}), Code.INVALID_CONFIG),
        ("g", Replacement({"penstock.paused.topics": "a,,b"}), Code.INVALID_CONFIG),
        ("g", steps((OperationKind.APPEND, "penstock.paused", "true")), Code.INVALID_CONFIG),
    ],
)
async def test_what_is_refused_changes_nothing(
    tmp_path: Path, group_id: str, change: SettingsChange, code: Code
) -> None:
    tree = await EmbeddedCoordination.open(tmp_path / "coordination.db")
    metadata = await controller_of(tree)
    refusal = (await metadata.alter_group_settings({group_id: change}))[group_id]
    assert isinstance(refusal, ApiError)
    assert refusal.code is code
    assert metadata.image.settings_by_group == {}
    await tree.close()


async def test_only_so_many_groups_have_settings(tmp_path: Path) -> None:
    tree = await EmbeddedCoordination.open(tmp_path / "coordination.db")
    metadata = await controller_of(tree, groups_with_settings=2)
    results = await metadata.alter_group_settings({"a": PAUSED, "b": PAUSED, "c": PAUSED})
    refusal = results["c"]
    assert isinstance(refusal, ApiError)
    assert refusal.code is Code.POLICY_VIOLATION
    # Those that have some may have others, and make room.
    assert await metadata.alter_group_settings({"a": Replacement({}), "b": PAUSED, "c": PAUSED}) == {
        "a": None,
        "b": None,
        "c": None,
    }
    await tree.close()


async def test_who_looks_hears_of_a_change(tmp_path: Path) -> None:
    tree = await EmbeddedCoordination.open(tmp_path / "coordination.db")
    metadata = await controller_of(tree)
    heard = []
    metadata.subscribe(lambda old, new: heard.append((old.settings_by_group, new.settings_by_group)))
    await metadata.alter_group_settings({"g": PAUSED})
    await metadata.alter_group_settings({"g": PAUSED})
    assert heard == [({}, {"g": {"penstock.paused": "true"}})]
    await tree.close()
