"""The tables of partitions: which topic has which, and back."""

from __future__ import annotations

import re
import string
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ids import TopicPartition, companion_of
from penstock.storage.sql.table_names import MAX_TOPIC_CHARACTERS, partition_of, table_of

TOPICS = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=249)
PARTITIONS = st.integers(0, (1 << 31) - 1)
LONGEST_NAME = 63
"""PostgreSQL cuts longer ones, without an error."""


@pytest.mark.parametrize(
    ("at", "table"),
    [
        (TopicPartition("create_order", 0), "create_order_0"),
        (TopicPartition("Orders.v2", 12), "$4frders$2ev2_12"),
        (companion_of(TopicPartition("create_order", 3)), "create_order_3_delayed"),
        (TopicPartition("__consumer_offsets", 1), "__consumer_offsets_1"),
    ],
)
def test_a_partition_has_the_table_of_its_name(at: TopicPartition, table: str) -> None:
    assert table_of(at) == table
    assert partition_of(table) == at


@given(TOPICS, PARTITIONS, st.booleans())
def test_every_name_fits_into_every_database_and_is_told_apart_by_small_letters(
    topic: str, partition: int, is_companion: bool
) -> None:
    at = TopicPartition(topic, partition)
    table = table_of(companion_of(at) if is_companion else at)
    assert re.fullmatch("[a-z0-9_$]+", table)
    assert len(table) <= LONGEST_NAME


@given(TOPICS, PARTITIONS, st.booleans())
def test_a_name_that_is_not_cut_says_whose_it_is(topic: str, partition: int, is_companion: bool) -> None:
    at = TopicPartition(topic, partition)
    at = companion_of(at) if is_companion else at
    table = table_of(at)
    assert partition_of(table) == (None if "$$" in table else at)


@given(st.lists(st.tuples(TOPICS, PARTITIONS), unique=True, min_size=2, max_size=20))
def test_two_partitions_never_share_a_table(partitions: list[tuple[str, int]]) -> None:
    ats = [TopicPartition(*each) for each in partitions]
    tables = {table_of(at) for at in ats} | {table_of(companion_of(at)) for at in ats}
    assert len(tables) == 2 * len(ats)


def test_long_names_that_begin_alike_differ() -> None:
    alike = "a" * MAX_TOPIC_CHARACTERS
    assert table_of(TopicPartition(alike, 0)) == f"{alike}_0"
    assert table_of(TopicPartition(alike + "b", 0)) != table_of(TopicPartition(alike + "c", 0))


def test_a_topic_that_was_made_anew_can_have_a_table_of_its_own() -> None:
    at = TopicPartition("orders", 0)
    names = {table_of(at), table_of(at, uuid.UUID(int=1)), table_of(at, uuid.UUID(int=2))}
    assert len(names) == 3


@pytest.mark.parametrize("table", ["queue", "queue_segment", "orders", "Orders_0", "orders_00", "$zz_0", "orders_x"])
def test_other_tables_are_of_no_partition(table: str) -> None:
    assert partition_of(table) is None
