"""Which of the logs that were set aside go, and which stay."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cluster.image_reader import empty_image
from penstock.cluster.metadata import MetadataImage, PartitionImage, TopicImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.ids import BrokerId, TopicId, TopicPartition
from penstock.replication.stray_logs import StrayRemoval, is_gone, is_orphan
from penstock.storage.contract import StrayLog
from penstock.storage.segmented.engine import SegmentedEngine
from support.logs import append, new_engine, settings

ME, OTHER = BrokerId(1), BrokerId(2)
KEPT: TopicId = uuid.UUID(int=1)
DELETED: TopicId = uuid.UUID(int=2)
AT = TopicPartition("orders", 0)


def image_with(*replicas: BrokerId, id: TopicId = KEPT) -> MetadataImage:
    """One topic with one partition, on these brokers."""
    draft = MetadataDraft(empty_image("cluster"))
    draft.put_topic(TopicImage("orders", id, (PartitionImage(0, replicas[0], 0, replicas, replicas),)))
    return draft.finish(1)


def owner(id: TopicId = KEPT, index: int = 0) -> StrayLog:
    return StrayLog("any folder", id, TopicPartition("orders", index))


@pytest.mark.parametrize(
    ("image", "of", "expected"),
    [
        pytest.param(image_with(ME), owner(), False, id="a replica is here"),
        pytest.param(image_with(ME), owner(DELETED), True, id="the topic was made anew"),
        pytest.param(empty_image("cluster"), owner(), True, id="the topic was deleted"),
        pytest.param(image_with(OTHER), owner(), True, id="the replica was placed elsewhere"),
        pytest.param(image_with(ME), owner(index=1), True, id="the partition is gone"),
    ],
)
def test_a_log_is_gone_if_the_image_has_it_not_on_this_broker(
    image: MetadataImage, of: StrayLog, expected: bool
) -> None:
    assert is_gone(image, ME, of) is expected


@pytest.mark.parametrize(
    ("moving_to", "of", "expected"),
    [
        pytest.param(None, owner(), False, id="it is here"),
        pytest.param(None, owner(DELETED), True, id="the topic was deleted"),
        pytest.param(None, owner(index=1), False, id="the partition is gone and may come again"),
        pytest.param(None, owner()._replace(database="second"), True, id="it is in another database group"),
        pytest.param("second", owner()._replace(database="second"), False, id="it is on its way there"),
        pytest.param("second", owner(), False, id="it is still here"),
    ],
)
def test_a_log_in_shared_storage_is_an_orphan_if_no_broker_would_open_it(
    moving_to: str | None, of: StrayLog, expected: bool
) -> None:
    draft = MetadataDraft(image_with(OTHER))
    (partition,) = draft.topics["orders"].partitions
    draft.put_partition("orders", replace(partition, database_to=moving_to))
    assert is_orphan(draft.finish(2), of) is expected


async def strays_of(folder: Path, logs: Mapping[TopicPartition, TopicId]) -> SegmentedEngine:
    """An engine that was opened on these logs, and then without them."""
    engine = new_engine(folder)
    await engine.open({at: (id, settings()) for at, id in logs.items()})
    for log in engine.logs.values():
        await append(log, b"a record")
    await engine.close()
    engine = new_engine(folder)
    await engine.open({})
    return engine


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


async def test_what_is_gone_is_removed_and_what_is_not_or_does_not_say_stays(tmp_path: Path) -> None:
    engine = await strays_of(tmp_path, {AT: KEPT, TopicPartition("past", 0): DELETED})
    (tmp_path / "nobody.unknown.stray").mkdir()
    (tmp_path / "nobody.unknown.stray" / "00000000000000000000.log").write_bytes(b"records")
    await StrayRemoval(engine, ME, lambda: image_with(ME), 0).look()
    await engine.close()
    assert names(tmp_path) == ["nobody.unknown.stray", f"orders-0.{KEPT.hex}.stray"]


async def test_the_image_of_the_end_of_the_grace_counts(tmp_path: Path) -> None:
    engine = await strays_of(tmp_path, {AT: KEPT})
    images = [empty_image("cluster")]
    removal = StrayRemoval(engine, ME, lambda: images[-1], 0)
    images.append(image_with(ME))
    await removal.look()
    assert names(tmp_path) == [f"orders-0.{KEPT.hex}.stray"]
    images.append(image_with(OTHER))
    await removal.look()
    await engine.close()
    assert names(tmp_path) == []


async def test_nothing_is_removed_by_a_broker_that_stops_before_the_time_is_over(tmp_path: Path) -> None:
    engine = await strays_of(tmp_path, {AT: DELETED})
    removal = StrayRemoval(engine, ME, lambda: image_with(ME), 3_600_000)
    removal.start()
    await removal.close()
    await engine.close()
    assert names(tmp_path) == [f"orders-0.{DELETED.hex}.stray"]


async def test_one_that_cannot_be_removed_does_not_keep_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await strays_of(tmp_path, {AT: DELETED, TopicPartition("past", 0): DELETED})
    # Something in the way of the name that it gets before it is removed.
    in_the_way = tmp_path / f"orders-0.{DELETED.hex}.stray.removed"
    in_the_way.mkdir()
    (in_the_way / "file").touch()
    await StrayRemoval(engine, ME, lambda: image_with(ME), 0).look()
    await engine.close()
    assert names(tmp_path) == [f"orders-0.{DELETED.hex}.stray", in_the_way.name]
    assert "could not delete a stray log" in [record.getMessage() for record in caplog.records]
