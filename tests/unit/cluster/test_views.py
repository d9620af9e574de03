"""Which views may be, and what their bases may no longer do, over a real controller and tree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.cluster.controller import Controller, ControllerSettings
from penstock.cluster.embedded import EmbeddedCoordination
from penstock.cluster.metadata import BrokerInfo, TopicImage
from penstock.cluster.retiring import partitions_gone
from penstock.cluster.settings import Increment, Operation, OperationKind, Replacement
from penstock.cluster.topics import Assignment, MorePartitions, NewTopic, TopicRules
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId, TopicPartition
from support.tree import register

BROKER = BrokerId(1)
SETTINGS = ControllerSettings("cluster", BROKER, TopicRules(default_partitions=3, views_per_topic=2))


@pytest.fixture
async def controller(tmp_path: Path) -> Controller:
    controller = Controller(await EmbeddedCoordination.open(tmp_path / "coordination.db"), SETTINGS)
    await controller.start()
    await register(controller, BrokerInfo(BROKER, "127.0.0.1", 9092))
    await controller.create_topics([NewTopic("orders"), NewTopic("other")])
    return controller


def view(name: str = "view", of: str = "orders", tags: str = "a,b", **more: object) -> NewTopic:
    overrides = {"penstock.view.of": of, "penstock.view.tags": tags, **more.pop("overrides", {})}  # type: ignore[dict-item]
    return NewTopic(name, overrides=overrides, **more)  # type: ignore[arg-type]


async def created(controller: Controller, request: NewTopic) -> TopicImage | ApiError:
    return (await controller.create_topics([request]))[request.name]


async def refusal(controller: Controller, request: NewTopic) -> tuple[Code, str]:
    found = await created(controller, request)
    assert isinstance(found, ApiError)
    return found.code, str(found)


async def altered(controller: Controller, name: str, change: Mapping[str, str | None]) -> ApiError | None:
    operations = tuple(
        Operation(key, OperationKind.SET if value is not None else OperationKind.DELETE, value)
        for key, value in change.items()
    )
    return (await controller.alter_topic_settings({name: Increment(operations)}))[name]


async def test_a_view_has_an_id_of_its_own_and_no_partitions_but_those_that_are_seen(controller: Controller) -> None:
    made = await created(controller, view())
    assert isinstance(made, TopicImage)
    image = controller.image
    assert made.partitions == () and made.id != image.topics["orders"].id
    seen = image.seen("view")
    assert seen is not None and seen.partitions == image.topics["orders"].partitions
    assert image.partition_count == 6
    assert (
        await created(controller, view("counted", partitions=3, replication_factor=1))
        == controller.image.topics["counted"]
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
        (view(assignments=(Assignment(0, (BROKER,)),)), Code.INVALID_REPLICA_ASSIGNMENT, "orders has the replicas"),
        (view("no/name"), Code.INVALID_TOPIC_EXCEPTION, "name is invalid"),
        (view("orders"), Code.TOPIC_ALREADY_EXISTS, "already exists"),
        (NewTopic("x", overrides={"penstock.view.tags": "a"}), Code.INVALID_CONFIG, "without penstock.view.of"),
    ],
)
async def test_a_view_that_cannot_be_is_refused(
    controller: Controller, request_: NewTopic, code: Code, said: str
) -> None:
    found, reason = await refusal(controller, request_)
    assert (found, said in reason) == (code, True), reason


async def test_a_view_of_a_view_and_one_too_many_are_refused(controller: Controller) -> None:
    await created(controller, view())
    assert (await refusal(controller, view("second", of="view")))[0] is Code.INVALID_CONFIG
    await created(controller, view("second"))
    assert (await refusal(controller, view("third")))[0] is Code.POLICY_VIOLATION
    assert isinstance(await created(controller, view("third", of="other")), TopicImage)


async def test_a_base_and_its_view_can_be_created_and_deleted_in_one_request(controller: Controller) -> None:
    made = await controller.create_topics([NewTopic("base"), view("shown", of="base")])
    assert all(isinstance(each, TopicImage) for each in made.values())
    assert await controller.delete_topics(["base", "shown"]) == {"base": None, "shown": None}
    assert not {"base", "shown"} & controller.image.topics.keys()


async def test_a_base_stays_while_it_has_views(controller: Controller) -> None:
    await created(controller, view())
    error = (await controller.delete_topics(["orders"]))["orders"]
    assert error is not None and error.code is Code.POLICY_VIOLATION and "view" in str(error)
    assert "orders" in controller.image.topics
    assert (await controller.delete_topics(["view"]))["view"] is None
    assert (await controller.delete_topics(["orders"]))["orders"] is None


async def test_a_view_grows_with_its_base_and_not_by_itself(controller: Controller) -> None:
    await created(controller, view())
    error = (await controller.create_partitions([MorePartitions("view", 5)]))["view"]
    assert error is not None and error.code is Code.INVALID_PARTITIONS and "add them there" in str(error)
    before = controller.image
    assert (await controller.create_partitions([MorePartitions("orders", 5)]))["orders"] is None
    seen = controller.image.seen("view")
    assert seen is not None and len(seen.partitions) == 5
    # The other way round, groups forget what they had committed of the view's last partitions as well.
    gone = partitions_gone(controller.image, before, ())
    assert gone == {TopicPartition(name, index) for name in ("orders", "view") for index in (3, 4)}


async def test_the_expression_of_a_view_can_be_changed_and_nothing_else(controller: Controller) -> None:
    await created(controller, view())
    assert await altered(controller, "view", {"penstock.view.tags": "c and not d"}) is None
    assert controller.image.topics["view"].overrides["penstock.view.tags"] == "c and not d"
    for name, change in (
        ("view", {"penstock.view.tags": None}),
        ("view", {"penstock.view.tags": "("}),
        ("view", {"penstock.view.of": "other"}),
        ("view", {"penstock.view.of": None}),
        ("view", {"retention.ms": "1"}),
        ("orders", {"penstock.view.of": "other", "penstock.view.tags": "a"}),
        ("orders", {"penstock.view.tags": "a"}),
    ):
        error = await altered(controller, name, change)
        assert error is not None and error.code is Code.INVALID_CONFIG, change
    everything = Replacement({"penstock.view.tags": "a"})
    error = (await controller.alter_topic_settings({"view": everything}))["view"]
    assert error is not None and error.code is Code.INVALID_CONFIG
    assert await altered(controller, "orders", {"retention.ms": "1"}) is None


async def test_views_are_there_after_a_restart(controller: Controller, tmp_path: Path) -> None:
    made = await created(controller, view())
    again = Controller(await EmbeddedCoordination.open(tmp_path / "coordination.db"), SETTINGS)
    image = await again.start()
    assert image.topics["view"] == made
    await again.close()
