"""A lake on a server that speaks S3: everything that a lake on a disk does, and what goes wrong only there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from penstock.pipeline.archive.archiver import ArchiveOptions, Archiver, ArchiverReplacedError
from penstock.pipeline.failure import OptionError, PipelineError
from penstock.pipeline.lake.compaction import compact
from penstock.pipeline.lake.delta import Change, Lake, LakeLocation, open_for_archive, open_lake
from penstock.pipeline.lake.object_store import for_hadoop
from penstock.pipeline.lake.record_files import opened
from penstock.pipeline.lake.selection import Selection
from penstock.pipeline.lake.upkeep import expire
from penstock.pipeline.replay.replay import Replay, ReplayOptions
from penstock.pipeline.topics.options import TopicSelection
from penstock.pipeline.workers import SparkWorkers
from support.broker_process import BrokerProcess
from support.commands import complaint, told
from support.lake import HereWorkers, archive_all
from support.programs import PENSTOCK, run
from support.s3 import MEETING, S3Process, objects_of
from support.spark import send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.querying.sql import Tables

MakeTopic = Callable[..., str]
SENT_MS = 1_700_000_000_000
SOON_S = 30


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Process]:
    server = S3Process(tmp_path_factory.mktemp("s3"))
    yield server
    server.kill()


@pytest.fixture
def location(s3: S3Process) -> LakeLocation:
    return new_place(s3)


def new_place(s3: S3Process, prefix: str = "") -> LakeLocation:
    """In a bucket of its own."""
    bucket = f"{prefix}{uuid4()}"
    s3.make_bucket(bucket)
    return LakeLocation(f"s3://{bucket}/deep/lake", s3.storage())


def archiver_to(location: LakeLocation, broker: BrokerProcess, *topics: str, **more: Any) -> Archiver:
    workers, after = more.pop("workers", HereWorkers()), more.pop("after", None)
    options = ArchiveOptions({"bootstrap.servers": broker.kafka}, TopicSelection(topics=topics), location, **more)
    return Archiver(options, workers, after)


def values_in(location: LakeLocation) -> list[bytes]:
    """By partition and offset; each is there once."""
    filesystem, root = opened(location)
    rows = {}
    for file in open_lake(location).files():
        for row in pq.ParquetFile(f"{root}/{file.path}", filesystem=filesystem).read().to_pylist():
            where = (row["topic_id"], row["partition"], row["offset"])
            assert where not in rows, f"{where} is doubled"
            rows[where] = row["value"]
    return [rows[where] for where in sorted(rows)]


def numbers(count: int, begin: int = 0) -> list[bytes]:
    return [b"%04d" % number for number in range(begin, begin + count)]


def test_an_archive_goes_on_where_it_stopped_or_died(
    location: LakeLocation, broker: BrokerProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    for number in range(2):
        send(broker, topic, numbers(200), number, timestamp=SENT_MS)
    first = archiver_to(location, broker, topic, max_offsets=100)
    batch = first.run_batch()
    assert batch is not None and batch.rows == 100

    def die(step: str) -> None:
        raise RuntimeError(step)

    with pytest.raises(RuntimeError, match="files"):
        archiver_to(location, broker, topic, max_offsets=100, after=die).run_batch()
    batches = archive_all(archiver_to(location, broker, topic, max_offsets=100))
    assert sum(batch.rows for batch in batches) == 300
    assert values_in(location) == numbers(200) * 2
    known = {file.path for file in open_lake(location).files()}
    left = [path for path in objects_of(location) if path not in known]
    assert len(left) == 1
    lake = open_lake(location)
    assert lake.vacuum(24, is_rehearsal=False) == []
    assert sorted(path.rpartition("/")[2] for path in lake.vacuum(0, is_rehearsal=False)) == sorted(
        path.rpartition("/")[2] for path in left
    )
    assert objects_of(location) == sorted(known)


def test_of_two_archivers_the_later_goes_on_and_nothing_is_doubled(
    location: LakeLocation, broker: BrokerProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    send(broker, topic, numbers(100))
    first = archiver_to(location, broker, topic, max_offsets=30)
    assert first.run_batch() is not None
    later: list[Archiver] = []

    def overtake(step: str) -> None:
        if step == "files":
            later.append(archiver_to(location, broker, topic, max_offsets=30))
            later[0].run_batch()

    slow = archiver_to(location, broker, topic, max_offsets=30, after=overtake)
    with pytest.raises(ArchiverReplacedError, match="number 2, this one is 1"):
        first.run_batch()
    with pytest.raises(ArchiverReplacedError, match="number 3, this one is 2"):
        slow.run_batch()
    archive_all(later[0])
    assert values_in(location) == numbers(100)


def test_of_two_that_put_the_same_version_at_once_one_is_refused_and_looks_again(s3: S3Process) -> None:
    location = new_place(s3, MEETING)
    open_for_archive(location, "cluster")
    together = Barrier(2, timeout=SOON_S)

    def add(name: str) -> tuple[int, list[int]]:
        lake = open_lake(location)
        seen: list[int] = []

        def look() -> bool:
            seen.append(lake.version)
            if len(seen) == 1:
                together.wait()
            return True

        assert lake.commit(Change(marks={name: 1}), look)
        return lake.version, seen

    with ThreadPoolExecutor(2) as pool:
        outcomes = sorted(pool.map(add, ("one", "other")))
    assert outcomes == [(1, [0]), (2, [0, 1])]
    lake = open_lake(location)
    assert (lake.version, lake.mark("one"), lake.mark("other")) == (2, 1, 1)


def test_compaction_expiry_and_vacuum(
    location: LakeLocation, broker: BrokerProcess, make_topic: MakeTopic, topic: str
) -> None:
    topic, other = make_topic(2), make_topic(name=f"{topic}-old")
    archiver = archiver_to(location, broker, topic, other)
    now_ms = time.time_ns() // 1_000_000
    send(broker, other, [b"over"], timestamp=SENT_MS)
    for step in range(3):
        for number in range(2):
            send(broker, topic, numbers(50, 50 * step), number, timestamp=now_ms)
        archive_all(archiver)
    lake = open_lake(location)
    before = len(lake.files())
    done = compact(lake, HereWorkers())
    assert done.files_before > done.files_after
    assert sorted(values_in(location)) == sorted([*numbers(150) * 2, b"over"])
    (gone,) = expire(lake, (datetime.now(UTC) - timedelta(days=30)).date())
    assert gone.topic == other
    assert values_in(location) == numbers(150) * 2
    assert len(objects_of(location)) > len(lake.files())
    assert len(lake.vacuum(0, is_rehearsal=False)) == before
    assert objects_of(location) == sorted(file.path for file in lake.files())
    assert values_in(location) == numbers(150) * 2
    assert archive_all(archiver_to(location, broker, topic, other)) == []


def test_history_that_brokers_no_longer_have_is_replayed_once(
    location: LakeLocation, broker: BrokerProcess, make_topic: MakeTopic, topic: str, admin: AdminClient
) -> None:
    source, target = make_topic(), make_topic(name=f"{topic}-again")
    send(broker, source, numbers(100))
    archive_all(archiver_to(location, broker, source))
    delete_below(admin, source, 100)
    kafka = {"bootstrap.servers": broker.kafka}
    replay = Replay(ReplayOptions(kafka, Selection(topic=source), target), open_lake(location), HereWorkers())
    assert [each.rows for each in replay.count()] == [100]
    sent = []
    for _ in range(2):
        replay = Replay(ReplayOptions(kafka, Selection(topic=source), target), open_lake(location), HereWorkers())
        sent.append(sum(each.rows for each in replay.run()))
    assert sent == [100, 0]
    archive_all(archiver_to(location, broker, target))
    assert values_in(location) == numbers(100) * 2


def test_tasks_of_spark_write_the_lake_and_a_query_reads_it_with_the_live_rest(
    spark: SparkSession, location: LakeLocation, broker: BrokerProcess, make_topic: MakeTopic, admin: AdminClient
) -> None:
    topic = make_topic(2)
    for number in range(2):
        headers = [("penstock-biz-id", b"id-%d" % number), ("penstock-tags", b"a,b"), ("x", None)]
        send(broker, topic, numbers(500), number, headers=headers, key=b"k", timestamp=SENT_MS)
    archive_all(archiver_to(location, broker, topic, workers=SparkWorkers(spark.sparkContext)))
    for number in range(2):
        delete_below(admin, topic, 500, number)
    send(broker, topic, [b"live"], 1, headers=[("penstock-biz-id", b"id-1")])
    tables = tables_of(spark, location, broker)
    found = tables.query(f"select * from `{topic}` where offset >= 0 order by partition, offset").collect()
    assert [bytes(row.value) for row in found] == [*numbers(500) * 2, b"live"]
    row = found[7]
    assert (row.topic, row.tags, row.biz_id, row.due, row.timestamp_type) == (topic, ["a", "b"], "id-0", None, 0)
    assert [(each.key, each.value) for each in row.headers][2] == ("x", None)
    assert (row.timestamp.timestamp() * 1000, row.date) == (SENT_MS, datetime.fromtimestamp(SENT_MS / 1000, UTC).date())
    # Each mention of a topic has its own filters, whatever the other is narrowed to.
    joined = f"""select count(*), max(b.offset) from `{topic}` a join `{topic}` b on a.biz_id = b.biz_id
        where a.biz_id = 'id-1' and a.offset = 3 and a.topic = '{topic}'"""
    assert tuple(tables.query(joined).collect()[0]) == (501, 500)


def test_samples_of_reports_are_kept_on_s3_and_read_again(spark: SparkSession, location: LakeLocation) -> None:
    from penstock.pipeline.querying.stored_files import frame_of
    from penstock.pipeline.reports.report_tables import SAMPLES, append, files_of

    moments = [datetime.fromtimestamp(SENT_MS / 1000 + step, UTC) for step in range(2)]
    for moment in moments:
        rows = pa.table({"at": pa.array([moment], pa.timestamp("us", tz="UTC")), "lag": pa.array([5], pa.int64())})
        append(location, SAMPLES, rows, "at")
    schema = StructType([StructField("at", TimestampType()), StructField("lag", LongType())])
    found = frame_of(spark, location, files_of(location, SAMPLES), schema).orderBy("at").collect()
    assert [(row["at"].astimezone(UTC), row["lag"]) for row in found] == [(moment, 5) for moment in moments]


def delete_below(admin: AdminClient, topic: str, offset: int, partition: int = 0) -> None:
    (deleted,) = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
    deleted.result(30)


def tables_of(spark: SparkSession, location: LakeLocation, broker: BrokerProcess) -> Tables:
    from penstock.pipeline.querying.frames import HistoryReader
    from penstock.pipeline.querying.history import TimeWindow, open_history
    from penstock.pipeline.querying.sql import Tables

    kafka = {"bootstrap.servers": broker.kafka}
    return Tables(spark, open_history(location, kafka), HistoryReader(spark, location, kafka), TimeWindow())


def test_hadoop_is_told_of_the_store_for_its_bucket_alone() -> None:
    storage = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": "https://h:9"}
    assert for_hadoop("s3://b/l", storage) == {
        "fs.s3a.bucket.b.access.key": "k",
        "fs.s3a.bucket.b.secret.key": "s",
        "fs.s3a.bucket.b.endpoint": "https://h:9",
        "fs.s3a.bucket.b.connection.ssl.enabled": "true",
        "fs.s3a.bucket.b.path.style.access": "true",
    }
    assert for_hadoop("s3://b/l", {}) == {}


def test_files_are_shared_out_by_their_sizes() -> None:
    from penstock.pipeline.querying.stored_files import StoredFile, shares

    files = [StoredFile(str(number), size) for number, size in enumerate((40, 40, 40, 500, 1, 1))]
    assert [[file.size for file in each] for each in shares(files, 100)] == [[40, 40], [40], [500], [1, 1]]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"AWS_ACCESS_KEY_ID": "AKIANOBODY"}, r"Access Key Id you provided does not exist .*\(InvalidAccessKeyId\)$"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, r"signature .* does not match .*\(SignatureDoesNotMatch\)$"),
        # A port that nobody can listen on without being asked.
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, r"lake at http://127.0.0.1:1: Connection refused"),
    ],
)
def test_a_store_that_cannot_be_used_is_told_in_one_line(
    location: LakeLocation, wrong: dict[str, str], why: str
) -> None:
    for reach in (open_lake, lambda at: open_for_archive(at, "cluster")):
        with pytest.raises(PipelineError, match=rf"^{location.uri} at http://127.0.0.1:\d+: ") as told_:
            reach(LakeLocation(location.uri, dict(location.storage) | wrong))
        assert told_.match(why)
        assert "\n" not in str(told_.value)


def test_a_bucket_that_is_not_there_and_one_without_a_lake_are_told_apart(location: LakeLocation) -> None:
    with pytest.raises(PipelineError, match=r"^s3://nowhere/lake at .*: The specified bucket does not exist"):
        open_for_archive(LakeLocation("s3://nowhere/lake", location.storage), "cluster")
    with pytest.raises(PipelineError, match=f"there is no lake at {location.uri}; penstock pipeline archive makes one"):
        open_lake(location)


def test_who_may_not_write_can_read_and_nothing_else(s3: S3Process, location: LakeLocation) -> None:
    open_for_archive(location, "cluster")
    lake: Lake = open_lake(LakeLocation(location.uri, s3.storage("reader")))
    assert lake.files() == []
    with pytest.raises(PipelineError, match=r"Access Denied \(AccessDenied\)$"):
        lake.commit(Change(marks={"x": 1}), lambda: True)
    with pytest.raises(PipelineError, match=r"Access Denied \(AccessDenied\)$"):
        open_for_archive(LakeLocation(f"{location.uri}-other", s3.storage("reader")), "cluster")


@pytest.mark.parametrize(
    ("uri", "storage", "why"),
    [
        ("s3://b/l", {"AWS_REGOIN": "x"}, "there is no --storage AWS_REGOIN; did you mean AWS_REGION?"),
        ("s3://b/l", {"colour": "x"}, "there is no --storage colour; known are AWS_ACCESS_KEY_ID, "),
        ("s3://b/l", {"AWS_ALLOW_HTTP": "yes"}, "--storage AWS_ALLOW_HTTP is true or false, not 'yes'"),
        ("s3://b/l", {"AWS_ACCESS_KEY_ID": "x"}, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY go together"),
        ("s3://b/l", {"aws_endpoint_url": "host:9"}, "is an address such as https://host:port, not 'host:9'"),
        ("s3://b/l", {"AWS_ENDPOINT_URL": "http://h"}, "http://h is not encrypted; AWS_ALLOW_HTTP=true allows that"),
        ("/folder", {"AWS_REGION": "x"}, "/folder takes no --storage AWS_REGION: only a lake on S3 has such options"),
    ],
)
def test_options_that_cannot_be_followed_are_named(uri: str, storage: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError) as told_:
        LakeLocation(uri, storage)
    assert why in str(told_.value)


def test_commands_take_the_options_of_the_store(
    location: LakeLocation, broker: BrokerProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    send(broker, topic, [b"over"], timestamp=SENT_MS)
    archive_all(archiver_to(location, broker, topic))

    def options(storage: dict[str, str]) -> list[str]:
        return [word for name, value in storage.items() for word in ("--storage", f"{name}={value}")]

    command = [PENSTOCK, "pipeline", "expire", "--lake", location.uri, "--days", "30"]
    wrong = dict(location.storage) | {"AWS_SECRET_ACCESS_KEY": "wrong"}
    assert "(SignatureDoesNotMatch)" in complaint(run([*command, *options(wrong)]))
    assert "there is no --storage AWS_REGIN" in complaint(run([*command, "--storage", "AWS_REGIN=x"]))
    archive = [PENSTOCK, "pipeline", "archive", "--lake", location.uri, "--topics", topic, "-b", broker.kafka]
    assert "there is no --storage AWS_REGIN" in complaint(run([*archive, "--storage", "AWS_REGIN=x"]))
    by_small_names = {name.lower(): value for name, value in location.storage.items()}
    assert told(run([*command, "--json", *options(by_small_names)]))["rows"] == 1
