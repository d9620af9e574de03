"""Options of `format("penstock")`."""

from __future__ import annotations

import re

import pytest

from penstock.pipeline.failure import OptionError
from penstock.pipeline.topics.options import (
    EARLIEST,
    LATEST,
    Everywhere,
    Offsets,
    Time,
    Times,
    parse_reading,
    parse_writing,
)

SERVERS = {"kafka.bootstrap.servers": "h:1"}
BASE = SERVERS | {"subscribe": "a,b"}


def test_defaults_are_those_of_sparks_kafka_source_but_for_isolation() -> None:
    table, stream = parse_reading(BASE, streaming=False), parse_reading(BASE, streaming=True)
    assert (table.starting, table.ending) == (Everywhere(EARLIEST), Everywhere(LATEST))
    assert stream.starting == Everywhere(LATEST)
    assert table.subscription.of(()) == ["a", "b"]
    assert (table.fail_on_data_loss, table.headers, table.decode, table.max_offsets) == (True, False, (), None)
    assert table.is_read_committed


def test_names_are_known_in_any_case() -> None:
    reading = parse_reading(SERVERS | {"SUBSCRIBEPATTERN": "or.*", "failondataloss": "FALSE"}, streaming=False)
    assert not reading.fail_on_data_loss
    assert reading.subscription.of(["orders", "for", "or"]) == ["or", "orders"]


def test_positions_are_understood() -> None:
    def starting(**options: str) -> object:
        return parse_reading(BASE | options, streaming=False).starting

    assert starting(startingOffsets='{"a":{"0":5,"1":-2},"b":{"0":-1}}') == Offsets({"a": {0: 5, 1: -2}, "b": {0: -1}})
    assert starting(startingTimestamp="12") == Time(12)
    assert starting(startingOffsetsByTimestamp='{"a":{"0":7}}') == Times({"a": {0: 7}})


def test_settings_of_the_client_are_passed_on() -> None:
    reading = parse_reading(BASE | {"kafka.security.protocol": "SSL"}, streaming=False)
    assert reading.kafka == {
        "bootstrap.servers": "h:1",
        "security.protocol": "SSL",
        "isolation.level": "read_committed",
    }


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"subscribe": "a"}, "kafka.bootstrap.servers: is required"),
        (SERVERS, "exactly one of subscribe, subscribePattern and assign is needed, found none"),
        (BASE | {"assign": '{"a":[0]}'}, "found subscribe and assign"),
        (BASE | {"subscribe": "a,,b"}, "a topic's name is empty"),
        (SERVERS | {"subscribePattern": "("}, "subscribePattern '('"),
        (SERVERS | {"assign": '{"a":0}'}, "a needs a list of partitions"),
        (SERVERS | {"assign": '{"a":[-1]}'}, "a needs a list of partitions"),
        (SERVERS | {"assign": "[]"}, "has to be an object"),
        (BASE | {"nonsense": "1"}, "nonsense: there is no such option"),
        (BASE | {"minPartitions": "0"}, "minPartitions '0': allowed is a number from 1"),
        (BASE | {"failOnDataLoss": "yes"}, "failOnDataLoss 'yes': allowed are true and false"),
        (BASE | {"decode": "tags,price"}, "decode 'price': allowed are tags, biz_id, due"),
        (BASE | {"startingOffsets": "first"}, "startingOffsets 'first': allowed are earliest, latest and JSON"),
        (BASE | {"startingOffsets": "latest"}, "a table would always be empty"),
        (BASE | {"startingOffsets": '{"a":{"0":-3}}'}, "a-0 needs a number from -2"),
        (BASE | {"endingOffsets": '{"a":{"0":-2}}'}, "a-0 needs a number from -1"),
        (BASE | {"endingOffsets": "earliest"}, "endingOffsets 'earliest': allowed are latest and JSON"),
        (BASE | {"startingOffsets": '{"a":{"x":1}}'}, "a has no partition 'x'"),
        (BASE | {"startingOffsets": "{"}, "is not JSON"),
        (BASE | {"startingTimestamp": "today"}, "startingTimestamp 'today': allowed are milliseconds"),
        (BASE | {"startingTimestamp": "9", "endingTimestamp": "8"}, "endingTimestamp 8: is before"),
        (BASE | {"startingTimestamp": "9", "startingOffsets": "earliest"}, "only one of them can be"),
        (BASE | {"startingOffsetsByTimestampStrategy": "x"}, "allowed are error and latest"),
        (BASE | {"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger: only streams have triggers"),
        (BASE | {"kafka.isolation.level": "dirty"}, "kafka.isolation.level 'dirty'"),
        (BASE | {"kafka.auto.offset.reset": "latest"}, "kafka.auto.offset.reset: is decided by the source"),
        (BASE | {"subscribe": " "}, "subscribe: is empty"),
    ],
)
def test_a_bad_option_of_a_table_is_named(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=re.escape(complaint)):
        parse_reading(options, streaming=False)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(OptionError, match="endingOffsets: a stream has no end"):
        parse_reading(BASE | {"endingOffsets": "latest"}, streaming=True)


def test_a_write_id_belongs_to_tables() -> None:
    assert parse_writing(SERVERS | {"writeId": "a.1"}, streaming=False).write_id == "a.1"
    with pytest.raises(OptionError, match="writeId: a stream is known by"):
        parse_writing(SERVERS | {"writeId": "a"}, streaming=True)
    with pytest.raises(OptionError, match="writeId 'a b'"):
        parse_writing(SERVERS | {"writeId": "a b"}, streaming=False)
