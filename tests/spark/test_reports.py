"""Reports over lake and live topics: every figure is one that was put there."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.pipeline.failure import PipelineError
from penstock.pipeline.lake.delta import LakeLocation, open_lake
from penstock.pipeline.querying.history import TimeWindow
from penstock.sdk.topic_names import retry_topic
from support.broker_process import BrokerProcess
from support.lake import archive_all, archiver_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.reports.runner import Report

MakeTopic = Callable[..., str]
HOUR_MS = 3_600_000
# At the beginning of an hour.
THEN_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
NOW = datetime.fromtimestamp((THEN_MS + 10 * HOUR_MS) / 1000, UTC)


class Sender:
    """Sends records with the headers and times that a test wants them to have."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._producer = Producer({"bootstrap.servers": broker.kafka})

    def send(
        self,
        topic: str,
        after_ms: int = 0,
        partition: int = 0,
        key: bytes | None = None,
        value: bytes = b"x",
        **headers: Any,
    ) -> None:
        named: list[tuple[str, str | bytes | None]] = [
            (name.replace("_", "-"), str(text).encode()) for name, text in headers.items()
        ]
        timestamp = THEN_MS + after_ms
        self._producer.produce(topic, value, key, partition=partition, timestamp=timestamp, headers=named)

    def flush(self) -> None:
        assert self._producer.flush(30) == 0


def reported(
    spark: SparkSession, broker: BrokerProcess, folder: Path | None, *topics: str, now: datetime = NOW, **more: Any
) -> tuple[Report, dict[str, list[dict[str, Any]]]]:
    from penstock.pipeline.querying.history import open_history
    from penstock.pipeline.reports.runner import ReportOptions, chosen_topics, run

    location = None if folder is None else LakeLocation(str(folder))
    kafka = {"bootstrap.servers": broker.kafka}
    history = open_history(location, kafka)
    options = ReportOptions(
        topics=chosen_topics(history, topics),
        window=more.pop("window", TimeWindow()),
        location=location,
        kafka=kafka,
        origins=frozenset(topics),
        **more,
    )
    made = run(spark, options, history, now, lambda what, done, total: None)
    return made, {result.name: result.rows for result in made.results}


def test_every_report_says_what_happened(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path, topic: str
) -> None:
    from penstock.pipeline.reports.reconciliation import parse_pair

    orders, payments = make_topic(3), make_topic(name=f"{topic}.payments")
    group = f"{topic}-billing"
    retry, dead = make_topic(name=retry_topic(group, orders)), make_topic(name=f"{group}.dead")
    shared_retry = make_topic(name=f"{group}.retry")
    sender = Sender(broker)
    for number in range(100):
        biz_id = f"order-{number:03d}"
        # Nine of ten have one key, and with it one partition; none goes to partition 2.
        hot = number % 10 != 0
        sender.send(
            orders,
            number,
            partition=0 if hot else 1,
            key=b"hot" if hot else b"cold",
            value=b"v" * 100,
            penstock_biz_id=biz_id,
            penstock_sender="shop" if number < 60 else "app",
        )
        if number >= 97:
            continue
        # It takes 40 ms, and one takes a minute.
        sender.send(payments, number + (60_000 if number == 5 else 40), penstock_biz_id=biz_id)
    sender.send(payments, 2 * HOUR_MS, penstock_biz_id="order-007")
    sender.send(payments, 2 * HOUR_MS, penstock_biz_id="stranger")
    sender.send(payments, 2 * HOUR_MS)
    sender.flush()
    archive_all(archiver_of(broker, tmp_path, orders, payments))
    for attempt, at in ((1, shared_retry), (2, retry)):
        origin = f"{orders}/0/4/{THEN_MS}"
        error = f"TimeoutError: card {attempt}"
        headers: dict[str, Any] = {"penstock_attempt": attempt, "penstock_origin": origin, "penstock_error": error}
        sender.send(at, attempt * 1000, **headers, penstock_deliver_at=THEN_MS + attempt * 1000 - 3)
    sender.send(dead, 5000, penstock_attempt=3, penstock_origin=origin, penstock_error="TimeoutError: gave up")
    sender.send(dead, 6000, penstock_settled="resent 0")
    sender.send(dead, 6000, penstock_origin=f"other/0/4/{THEN_MS}", penstock_error="KeyError: no")
    sender.send(payments, 100, penstock_correlation="c1", penstock_reply_to="replies/0")
    sender.send(orders, 350, partition=1, penstock_correlation="c1")
    sender.flush()
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(orders, 0, 88), TopicPartition(orders, 1, 11)], asynchronous=False)
    consumer.close()

    pair = parse_pair(f"{orders}:{payments}:order-")
    made, found = reported(spark, broker, tmp_path, orders, payments, pairs=(pair,))

    hour = datetime.fromtimestamp(THEN_MS / 1000, UTC)
    by_producer = {
        (row["partition"], row["producer"]): (row["hour"], row["messages"])
        for row in found["volume"]
        if row["topic"] == orders
    }
    assert by_producer == {
        (0, "shop"): (hour, 54),
        (0, "app"): (hour, 36),
        (1, "shop"): (hour, 6),
        (1, "app"): (hour, 4),
        (1, "unknown"): (hour, 1),
    }
    ways = {(row["way"], row["from_topic"], row["to_topic"]): row for row in found["latency"]}
    hop = ways["biz-id", orders, payments]
    assert (hop["messages"], hop["p50_ms"], hop["p90_ms"], hop["max_ms"], hop["negative"]) == (97, 40, 40, 60_000, 0)
    assert ways["request and reply", payments, orders]["p50_ms"] == 250
    assert ways["retries", orders, retry]["max_ms"] == 2000
    assert ways["retries", orders, dead]["max_ms"] == 5000
    (lag,) = [row for row in found["lag_now"] if row["group"] == group]
    # Two of partition 0 wait, and none of partition 1; the older was sent 98 ms after the beginning.
    assert (lag["lag"], lag["messages"], lag["waiting_ms"]) == (2, 2, 10 * HOUR_MS - 98)
    failures = {
        (row["group"], row["kind"], row["error_kind"]): row for row in found["failures"] if row["group"] == group
    }
    assert {key: row["messages"] for key, row in failures.items()} == {
        (group, "retry", "TimeoutError"): 2,
        (group, "dead", "TimeoutError"): 1,
        (group, "resent", None): 1,
    }
    assert failures[group, "retry", "TimeoutError"]["last_error"] == "TimeoutError: card 2"
    partitions = {
        row["partition"]: (row["messages"], row["ratio"]) for row in found["partitions"] if row["topic"] == orders
    }
    assert partitions == {0: (90, 2.6733), 1: (11, 0.3267), 2: (0, 0.0)}
    assert [(row["key"], row["messages"], row["share"]) for row in found["hot_keys"] if row["topic"] == orders] == [
        ("hot", 90, 0.9),
        ("cold", 10, 0.1),
    ]
    assert sorted((row["topic"], row["messages"], row["late_max_ms"]) for row in found["delays"]) == sorted(
        [(retry, 1, 3), (shared_retry, 1, 3)]
    )
    sizes = next(row for row in found["sizes"] if row["topic"] == orders)
    assert (sizes["messages"], sizes["p50"]) == (101, 100 + 3 + len("penstock-biz-idorder-000penstock-sendershop"))
    counted = {row["outcome"]: row["biz_ids"] for row in found["reconciliation"]}
    assert counted == {"equal": 96, "missing": 3, "doubled": 1}
    assert [
        (row["outcome"], row["biz_id"], row["sent"], row["seen"]) for row in found["reconciliation_differences"]
    ] == [
        ("doubled", "order-007", 1, 2),
        *(("missing", f"order-{number:03d}", 1, 0) for number in (97, 98, 99)),
    ]
    _page_stands_alone(made)


def _page_stands_alone(made: Report) -> None:
    from penstock.pipeline.reports.page import as_json, page

    text = page(made)
    assert not re.search(r"<(script|link|img|iframe)|https?:|url\(|@import", text)
    assert "prefers-color-scheme: dark" in text

    class Names(HTMLParser):
        open: list[str]
        seen: list[str]

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.seen.append(tag)
            if tag not in ("meta", "line", "rect", "circle", "polyline"):
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in ("meta", "line", "circle", "polyline") and not (tag == "rect" and self.open[-1] != tag):
                assert self.open.pop() == tag

    names = Names()
    names.open, names.seen = [], []
    names.feed(text)
    assert names.open == []
    assert names.seen.count("section") == 8
    assert names.seen.count("svg") >= 8
    assert [each["name"] for each in as_json(made)["sections"]][-1] == "reconciliation"


def test_what_lies_outside_the_window_counts_for_what_arrived_later_only(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, topic: str
) -> None:
    from penstock.pipeline.reports.reconciliation import parse_pair

    one, other = make_topic(), make_topic(name=f"{topic}-b")
    sender = Sender(broker)
    for hour in (-1, 0, 1, 2):
        sender.send(one, hour * HOUR_MS, penstock_biz_id=f"id-{hour}")
    # It arrives an hour later each, and the last has not arrived yet; two came without a biz-id.
    for hour in (0, 1, 2):
        sender.send(other, hour * HOUR_MS, penstock_biz_id=f"id-{hour - 1}")
    sender.send(one, 10)
    sender.flush()
    window = TimeWindow(*(datetime.fromtimestamp((THEN_MS + hour * HOUR_MS) / 1000, UTC) for hour in (0, 2)))
    _, found = reported(
        spark,
        broker,
        None,
        one,
        other,
        window=window,
        names=("volume", "reconciliation"),
        pairs=(parse_pair(f"{one}:{other}"),),
    )
    assert sum(row["messages"] for row in found["volume"] if row["topic"] in (one, other)) == 5
    counted = {row["outcome"]: (row["biz_ids"], row["sent"], row["seen"]) for row in found["reconciliation"]}
    assert counted == {"equal": (2, 2, 2), "unasked": (1, 0, 1), "without biz-id": (0, 1, 0)}


def test_results_are_tables_in_the_lake_that_every_run_adds_to(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    from penstock.pipeline.reports.report_tables import SAMPLES, files_of, store

    topic = make_topic()
    sender = Sender(broker)
    sender.send(topic)
    sender.flush()
    archive_all(archiver_of(broker, tmp_path, topic))
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": topic, "enable.auto.commit": False})
    location = LakeLocation(str(tmp_path))
    for number in (0, 1):
        consumer.commit(offsets=[TopicPartition(topic, 0, number)], asynchronous=False)
        now = datetime.fromtimestamp((THEN_MS + number * HOUR_MS) / 1000, UTC)
        made, found = reported(spark, broker, tmp_path, topic, now=now, names=("lag", "sizes"))
        store(location, made.results, now)
    consumer.close()
    lags = [(row["at"].hour, row["lag"]) for row in found["lag_over_time"] if row["group"] == topic]
    first = datetime.fromtimestamp(THEN_MS / 1000, UTC).hour
    assert lags == [(first, 1), ((first + 1) % 24, 0)]
    # What vacuum of the records deletes is never a report, however old.
    assert not [path for path in open_lake(location).vacuum(0, is_rehearsal=True) if "_reports" in path]
    read = spark.read.parquet(*(f"{location.uri}/{file.path}" for file in files_of(location, "sizes"))).collect()
    assert len({row.run_at for row in read}) == 2
    assert {row.messages for row in read if row.topic == topic} == {1}
    assert len(files_of(location, SAMPLES)) == 2


def test_reports_of_what_is_not_there_are_refused(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic
) -> None:
    from penstock.pipeline.reports.reconciliation import parse_pair

    topic = make_topic()
    with pytest.raises(PipelineError, match="there is no topic nothing-like-it"):
        reported(spark, broker, None, topic, "nothing-like-it")
    with pytest.raises(PipelineError, match="--reconcile names other, which is none of the topics"):
        reported(spark, broker, None, topic, pairs=(parse_pair(f"{topic}:other"),))
    with pytest.raises(PipelineError, match="'orders' names no two topics"):
        parse_pair("orders")


def test_a_cluster_without_groups_and_messages_has_an_empty_report(
    spark: SparkSession, new_broker: Callable[..., BrokerProcess]
) -> None:
    from penstock.pipeline.reports.page import page

    broker = new_broker()
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic("empty", 1, 1)])["empty"].result(30)
    made, found = reported(spark, broker, None, "empty")
    assert not any(found.values())
    assert page(made).count("Nothing of the kind in this window.") == 7
