"""Which views may be, and what their bases may no longer do, over a real controller and tree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.cluster.coordination.embedded import EmbeddedCoordination
from penstock.cluster.decisions.retired_partitions import partitions_gone
from penstock.cluster.decisions.settings import Increment, OperationKind, Replacement, SettingOperation
from penstock.cluster.decisions.topics import MorePartitions, ReplicaAssignment, TopicCreation, TopicRules
from penstock.cluster.metadata import BrokerInfo, TopicImage
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId, TopicPartition
from support.tree import register

BROKER = BrokerId(1)
SETTINGS = MetadataSettings("cluster", BROKER, TopicRules(default_partitions=3, views_per_topic=2))


@pytest.fixture
async def metadata(tmp_path: Path) -> MetadataChanges:
    metadata = MetadataChanges(await EmbeddedCoordination.open(tmp_path / "coordination.db"), SETTINGS)
    await metadata.start()
    await register(metadata, BrokerInfo(BROKER, "127.0.0.1", 9092))
    await metadata.create_topics([TopicCreation("orders"), TopicCreation("other")])
    return metadata


def view(name: str = "view", of: str = "orders", tags: str = "a,b", **more: object) -> TopicCreation:
    overrides = {"penstock.view.of": of, "penstock.view.tags": tags, **more.pop("overrides", {})}  # type: ignore[dict-item]
    return TopicCreation(name, overrides=overrides, **more)  # type: ignore[arg-type]


async def created(metadata: MetadataChanges, request: TopicCreation) -> TopicImage | ApiError:
    return (await metadata.create_topics([request]))[request.name]


async def refusal(metadata: MetadataChanges, request: TopicCreation) -> tuple[Code, str]:
    found = await created(metadata, request)
    assert isinstance(found, ApiError)
    return found.code, str(found)


async def altered(metadata: MetadataChanges, name: str, change: Mapping[str, str | None]) -> ApiError | None:
    operations = tuple(
        SettingOperation(key, OperationKind.SET if value is not None else OperationKind.DELETE, value)
        for key, value in change.items()
    )
    return (await metadata.alter_topic_settings({name: Increment(operations)}))[name]


async def test_a_view_has_an_id_of_its_own_and_no_partitions_but_those_that_are_seen(metadata: MetadataChanges) -> None:
    made = await created(metadata, view())
    assert isinstance(made, TopicImage)
    image = metadata.image
    assert made.partitions == () and made.id != image.topics["orders"].id
    seen = image.seen("view")
    assert seen is not None and seen.partitions == image.topics["orders"].partitions
    assert image.partition_count == 6
    assert (
        await created(metadata, view("counted", partitions=3, replication_factor=1)) == metadata.image.topics["counted"]
    )


@pytest.mark.parametrize(
    ("request_", "code", "said"),
    [
        (view(of="nothing"), Code.INVALID_CONFIG, "no topic 'nothing'"),
        (view(of=""), Code.INVALID_CONFIG, "no topic ''"),
        (view(of="view"), Code.INVALID_CONFIG, "no topic 'view'"),
        (view(tags=""), Code.INVALID_CONFIG, "which tags it shows"),
        (view(tags="a and"), Code.INVALID_CONFIG, "a tag at the end"),
        (view(overrides={"retention.ms": "1000"}), Code.INVALID_CONFIG, "retention.ms: a view has no log of its own"),
        (view(partitions=2), Code.INVALID_PARTITIONS, "the 3 of orders"),
        (view(replication_factor=3), Code.INVALID_REPLICATION_FACTOR, "the 1 of orders"),
        (
            view(assignments=(ReplicaAssignment(0, (BROKER,)),)),
            Code.INVALID_REPLICA_ASSIGNMENT,
            "orders has the replicas",
        ),
        (view("no/name"), Code.INVALID_TOPIC_EXCEPTION, "name is invalid"),
        (view("orders"), Code.TOPIC_ALREADY_EXISTS, "already exists"),
        (TopicCreation("x", overrides={"penstock.view.tags": "a"}), Code.INVALID_CONFIG, "without penstock.view.of"),
    ],
)
async def test_a_view_that_cannot_be_is_refused(
    metadata: MetadataChanges, request_: TopicCreation, code: Code, said: str
) -> None:
    found, reason = await refusal(metadata, request_)
    assert (found, said in reason) == (code, True), reason


async def test_a_view_of_a_view_and_one_too_many_are_refused(metadata: MetadataChanges) -> None:
    await created(metadata, view())
    assert (await refusal(metadata, view("second", of="view")))[0] is Code.INVALID_CONFIG
    await created(metadata, view("second"))
    assert (await refusal(metadata, view("third")))[0] is Code.POLICY_VIOLATION
    assert isinstance(await created(metadata, view("third", of="other")), TopicImage)


async def test_a_base_and_its_view_can_be_created_and_deleted_in_one_request(metadata: MetadataChanges) -> None:
    made = await metadata.create_topics([TopicCreation("base"), view("shown", of="base")])
    assert all(isinstance(each, TopicImage) for each in made.values())
    assert await metadata.delete_topics(["base", "shown"]) == {"base": None, "shown": None}
    assert not {"base", "shown"} & metadata.image.topics.keys()


async def test_a_base_stays_while_it_has_views(metadata: MetadataChanges) -> None:
    await created(metadata, view())
    error = (await metadata.delete_topics(["orders"]))["orders"]
    assert error is not None and error.code is Code.POLICY_VIOLATION and "view" in str(error)
    assert "orders" in metadata.image.topics
    assert (await metadata.delete_topics(["view"]))["view"] is None
    assert (await metadata.delete_topics(["orders"]))["orders"] is None


async def test_a_view_grows_with_its_base_and_not_by_itself(metadata: MetadataChanges) -> None:
    await created(metadata, view())
    error = (await metadata.create_partitions([MorePartitions("view", 5)]))["view"]
    assert error is not None and error.code is Code.INVALID_PARTITIONS and "add them there" in str(error)
    before = metadata.image
    assert (await metadata.create_partitions([MorePartitions("orders", 5)]))["orders"] is None
    seen = metadata.image.seen("view")
    assert seen is not None and len(seen.partitions) == 5
    # The other way round, groups forget what they had committed of the view's last partitions as well.
    gone = partitions_gone(metadata.image, before, ())
    assert gone == {TopicPartition(name, index) for name in ("orders", "view") for index in (3, 4)}


async def test_the_expression_of_a_view_can_be_changed_and_nothing_else(metadata: MetadataChanges) -> None:
    await created(metadata, view())
    assert await altered(metadata, "view", {"penstock.view.tags": "c and not d"}) is None
    assert metadata.image.topics["view"].overrides["penstock.view.tags"] == "c and not d"
    for name, change in (
        ("view", {"penstock.view.tags": None}),
        ("view", {"penstock.view.tags": "("}),
        ("view", {"penstock.view.of": "other"}),
        ("view", {"penstock.view.of": None}),
        ("view", {"retention.ms": "1"}),
        ("orders", {"penstock.view.of": "other", "penstock.view.tags": "a"}),
        ("orders", {"penstock.view.tags": "a"}),
    ):
        error = await altered(metadata, name, change)
        assert error is not None and error.code is Code.INVALID_CONFIG, change
    everything = Replacement({"penstock.view.tags": "a"})
    error = (await metadata.alter_topic_settings({"view": everything}))["view"]
    assert error is not None and error.code is Code.INVALID_CONFIG
    assert await altered(metadata, "orders", {"retention.ms": "1"}) is None


async def test_views_are_there_after_a_restart(metadata: MetadataChanges, tmp_path: Path) -> None:
    made = await created(metadata, view())
    again = MetadataChanges(await EmbeddedCoordination.open(tmp_path / "coordination.db"), SETTINGS)
    image = await again.start()
    assert image.topics["view"] == made
    await again.close()
