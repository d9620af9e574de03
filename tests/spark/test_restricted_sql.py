"""Queries that others have written: they read topics, and nothing of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline.failure import PipelineError
from penstock.pipeline.querying.frames import HistoryReader
from penstock.pipeline.querying.history import TimeWindow, open_history
from penstock.pipeline.querying.restriction import MOST_CHARS, check
from penstock.pipeline.querying.sql import Tables
from support.broker_process import BrokerProcess
from support.lake import archive_all, archiver_of, lake_of
from support.spark import send

from .test_replay import MakeTopic

REFUSED = [
    "select * from text.`/etc/passwd`",
    "select * from parquet.`/etc`",
    "select * from csv.`file:///etc/passwd`",
    "select (select max(value) from text.`/etc/passwd`)",
    "select * from (select 1) where exists (select * from binaryFile.`/etc/passwd`)",
    "with a as (select * from json.`/etc/passwd`) select * from a",
    "select * from a union all select * from text.`/etc/passwd`",
    "select * from a join text.`/etc/passwd` using (value)",
    "select * from a, lateral (select * from text.`/etc/passwd`)",
    "select max((select first(value) from orc.`/x`)) over (order by b) from a",
    "select case when (select 1 from text.`/x`) = 1 then 1 end",
    "select named_struct('x', array((select 1 from text.`/x`)))",
    "select * from values ((select 1 from text.`/x`))",
    "select * from a order by (select 1 from text.`/x`)",
    "select * from a limit (select 1 from text.`/x`)",
    "from a |> join text.`/etc/passwd` using (value)",
    "select * from identifier('text.`/etc/passwd`')",
    "select identifier('reflect')('java.lang.System', 'getenv', 'HOME')",
    "select transform(a) using 'cat /etc/passwd' from b",
    "select * from (select transform(a) using 'sh' as (x) from b)",
    "from b map a using 'sh'",
    "select reflect('java.lang.System', 'getenv', 'HOME')",
    "select java_method('java.lang.System', 'exit', 1)",
    "select try_reflect('java.lang.System', 'exit', 1)",
    "select builtin.reflect('java.lang.System', 'getenv', 'HOME')",
    "select system.builtin.reflect('java.lang.System', 'getenv', 'HOME')",
    "select * from a where reflect('java.lang.System', 'exit', 1) is null",
    "select transform(array(1), x -> reflect('java.lang.System', 'exit', x))",
    "select sum(a) filter (where reflect('java.lang.System', 'exit', 1) = 1) from b",
    "select * from b lateral view explode(array(reflect('a', 'b'))) t as c",
    "select xpath_string('<!DOCTYPE r [<!ENTITY x SYSTEM \"file:///etc/passwd\">]><r>&x;</r>', '/r')",
    "select from_xml('<a/>', 'a int', map('rowValidationXSDPath', '/etc/passwd'))",
    "select from_protobuf(value, 'm', '/etc/passwd') from b",
    "select from_avro(value, '{}', map('avroSchemaUrl', 'file:///etc/passwd')) from b",
    "select input_file_name() from b",
    "select current_user()",
    "select nothing_known(1)",
    "select * from python_worker_logs()",
    "select * from b with (path = '/etc/passwd')",
    "select * from b version as of 1",
    "set spark.sql.runSQLOnFiles=true",
    "set",
    "reset spark.sql.runSQLOnFiles",
    "insert overwrite directory '/tmp/x' using parquet select 1",
    "from b insert overwrite directory '/tmp/x' select *",
    "insert into b values (1)",
    "create table x using csv location '/etc' as select 1",
    "create temporary view x using text options (path '/etc/passwd')",
    "create temporary function x as 'java.lang.System' using jar '/tmp/x.jar'",
    "add jar '/tmp/x.jar'",
    "list files",
    "cache table x as select 1",
    "load data inpath '/etc/passwd' into table x",
    "execute immediate 'select 1'",
    "begin select 1; end",
    "show tables",
    "explain select 1",
    "describe b",
    "drop table b",
    "declare variable x = 1",
    "call system.x()",
    "refresh '/etc'",
]
ALLOWED = [
    "select * from orders",
    "table `orders.eu`",
    "select topic, count(*) c from `*` where date >= '2026-01-01' group by topic having c > 1 order by c desc limit 3",
    "with a as (select key, value from b) select a.key, c.value from a left join c using (key) where a.key in (1, 2)",
    "select explode(tags) tag, count(*) from b group by all",
    "select *, row_number() over (partition by key order by offset desc) n from b qualify n = 1",
    "select get_json_object(cast(value as string), '$.a'), date_trunc('hour', timestamp) from b where key like 'x%'",
    "select filter(headers, x -> x.key = 'a')[0].value, size(headers), element_at(map('a', 1), 'a') from b",
    "select * from b lateral view explode(tags) t as tag",
    "select * from b pivot (count(1) for partition in (0, 1))",
    "select percentile_approx(length(value), array(0.5, 0.9)), min_by(key, offset), approx_count_distinct(key) from b",
    "select case when key is null then 1 else 2 end, coalesce(biz_id, ''), interval 1 day, date '2026-01-01' from b",
    "from b |> where partition = 1 |> aggregate count(*) group by topic",
    "select * except (value) from b tablesample (10 rows)",
    "select a from b union select c from d except select e from f intersect select g from h",
    "select * from range(3), (values (1, 'a')) as t(x, y)",
    "with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) select * from r",
    "select /*+ broadcast(a) */ * from a cross join b offset 2",
]


@pytest.mark.parametrize("text", REFUSED)
def test_everything_but_a_query_of_topics_is_refused(spark: SparkSession, text: str) -> None:
    with pytest.raises(PipelineError, match="refused: "):
        check(spark, text)


def test_queries_of_topics_are_allowed(spark: SparkSession) -> None:
    for text in ALLOWED:
        check(spark, text)


def test_a_query_that_is_too_long_to_be_checked_is_refused(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="at most"):
        check(spark, "select 1 -- " + "x" * MOST_CHARS)
    with pytest.raises(PipelineError, match="too long"):
        check(spark, f"select {', '.join(['1'] * 3000)}")
    with pytest.raises(PipelineError, match="brackets in each other"):
        check(spark, f"select {'(' * 20_000}1{')' * 20_000}")


def test_a_restricted_query_finds_what_is_in_lake_and_log(
    spark: SparkSession, broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    send(broker, topic, [b"a", b"b"])
    archive_all(archiver_of(broker, tmp_path, topic))
    send(broker, topic, [b"c"])
    location, kafka = lake_of(tmp_path).location, {"bootstrap.servers": broker.kafka}
    history, reader = open_history(location, kafka), HistoryReader(spark, location, kafka)
    tables = Tables(spark, history, reader, TimeWindow(), is_restricted=True)
    rows = tables.query(f"select offset, cast(value as string) v from `{topic}` order by offset").collect()
    assert [tuple(row) for row in rows] == [(0, "a"), (1, "b"), (2, "c")]
    with pytest.raises(PipelineError, match=r"refused: .* is no topic"):
        tables.query("select * from text.`/etc/passwd`")
    with pytest.raises(PipelineError, match="there is no topic __consumer_offsets"):
        tables.query("select * from __consumer_offsets")
