"""The census of partitions that a scrape shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from penstock.broker.metrics import replication_metrics
from penstock.broker.metrics.replication_metrics import PartitionCensus, Tally, tally_of
from penstock.cluster.metadata import NO_LEADER, MetadataImage, PartitionImage, TopicImage
from penstock.ids import BrokerId, new_topic_id

ME = BrokerId(1)


def partition(index: int, leader: int, replicas: str, in_sync: str, adding: str = "") -> PartitionImage:
    def brokers(text: str) -> tuple[BrokerId, ...]:
        return tuple(BrokerId(int(number)) for number in text)

    return PartitionImage(index, BrokerId(leader), 0, brokers(replicas), brokers(in_sync), adding=brokers(adding))


def topic(name: str, *partitions: PartitionImage, overrides: Mapping[str, str] | None = None) -> TopicImage:
    return TopicImage(name, new_topic_id(), partitions, overrides or {})


def image(*topics: TopicImage) -> MetadataImage:
    return MetadataImage(1, "cluster", {}, ME, {each.name: each for each in topics}, {})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (partition(0, 1, "123", "123"), Tally(placed=1)),
        (partition(0, 2, "23", "23"), Tally()),
        # Led here, and somebody is missing.
        (partition(0, 1, "123", "12"), Tally(placed=1, under_replicated=1)),
        (partition(0, 1, "123", "1"), Tally(placed=1, under_replicated=1, under_min_isr=1)),
        # Led elsewhere: counted there.
        (partition(0, 2, "213", "2"), Tally(placed=1)),
        (partition(0, 2, "123", "123"), Tally(placed=1, imbalanced=1)),
        (partition(0, NO_LEADER, "23", "23"), Tally(offline=1, imbalanced=1)),
        # One that is being added is not missing, one of the others is.
        (partition(0, 1, "123", "12", adding="3"), Tally(placed=1, reassigning=1)),
        (partition(0, 1, "1234", "12", adding="4"), Tally(placed=1, reassigning=1, under_replicated=1)),
    ],
)
def test_partitions_are_counted_from_the_point_of_view_of_one_broker(found: PartitionImage, expected: Tally) -> None:
    assert tally_of(topic("orders", found), ME, 2) == expected


def test_the_minimum_is_the_topics_own_or_else_the_default() -> None:
    found = image(
        topic("strict", partition(0, 1, "12", "1"), overrides={"min.insync.replicas": "2"}),
        topic("lax", partition(0, 1, "12", "1"), overrides={"min.insync.replicas": "1"}),
        topic("ordinary", partition(0, 1, "12", "1")),
    )
    census = PartitionCensus(ME)
    assert census.take(found, {}).under_min_isr == 1
    assert census.take(found, {"min.insync.replicas": "2"}).under_min_isr == 2
    assert PartitionCensus(ME).take(image(), {}) == Tally()
    shared = topic("shared", partition(0, 1, "1", "1"), overrides={"penstock.storage": "sql"})
    assert PartitionCensus(ME).take(image(shared), {"min.insync.replicas": "2"}) == Tally(placed=1)


def test_a_topic_that_has_not_changed_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []

    def tally_and_note(topic: TopicImage, me: BrokerId, min_in_sync: int) -> Tally:
        counted.append(topic.name)
        return tally_of(topic, me, min_in_sync)

    monkeypatch.setattr(replication_metrics, "tally_of", tally_and_note)
    census = PartitionCensus(ME)
    orders, invoices = topic("orders", partition(0, 1, "12", "12")), topic("invoices", partition(0, 1, "12", "12"))
    census.take(image(orders, invoices), {})
    changed = replace(orders, partitions=(partition(0, 1, "12", "1"),))
    assert census.take(image(changed, invoices), {}).under_replicated == 1
    assert census.take(image(invoices), {}) == Tally(placed=1)
    assert counted == ["orders", "invoices", "orders"]
