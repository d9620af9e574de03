"""`penstock pipeline sql` and `report` as commands."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.broker_process import BrokerProcess
from support.commands import complaint
from support.lake import archive_all, archiver_of
from support.programs import PENSTOCK, environment, run
from support.spark import send, small_spark

MakeTopic = Callable[..., str]
JVM_S = 300

pytestmark = pytest.mark.usefixtures("java")


def pipeline(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [PENSTOCK, "pipeline", *arguments, *small_spark()]
    return subprocess.run(command, capture_output=True, timeout=JVM_S, env=environment(), check=False)


def test_a_query_is_answered_as_csv_up_to_a_limit(broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic()
    send(broker, topic, [b"a", b"b"], key=b"k\xff", headers=[("h", b"1"), ("penstock-tags", b"x,y")])
    archive_all(archiver_of(broker, tmp_path, topic))
    send(broker, topic, [b"c", b"d"])
    query = f"select offset, key, value, tags, headers from `{topic}` order by offset"
    options = ["--lake", str(tmp_path), "--bootstrap", broker.kafka, "--format", "csv", "--limit", "3"]
    done = pipeline("sql", query, *options)
    assert done.returncode == 0, done.stderr.decode()
    assert list(csv.reader(io.StringIO(done.stdout.decode()))) == [
        ["offset", "key", "value", "tags", "headers"],
        ["0", "k\\xff", "a", "x, y", "h=1, penstock-tags=x,y"],
        ["1", "k\\xff", "b", "x, y", "h=1, penstock-tags=x,y"],
        ["2", "", "c", "", ""],
    ]
    assert b"more than 3 rows" in done.stderr


def test_a_report_is_a_page_and_json_and_tables(broker: BrokerProcess, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic()
    send(broker, topic, [b"a", b"b"])
    lake, page = tmp_path / "lake", tmp_path / "report.html"
    archive_all(archiver_of(broker, lake, topic))
    options = ["--lake", str(lake), "--lake-only", "--topics", topic, "--only", "sizes,volume"]
    done = pipeline("report", *options, "--html", str(page), "--json")
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    assert [each["name"] for each in told["sections"]] == ["volume", "sizes"]
    assert told["sections"][1]["tables"][0]["rows"][0]["messages"] == 2
    assert topic in page.read_text()
    assert sorted(each.name for each in (lake / "_reports").iterdir()) == ["size_spread", "sizes", "volume"]


def test_commands_that_make_no_sense_are_refused_before_anything_is_started(broker: BrokerProcess) -> None:
    ask = [PENSTOCK, "pipeline", "sql", "select 1"]
    assert "--lake-only needs --lake" in complaint(run([*ask, "--lake-only"]))
    assert "exclude each other" in complaint(run([*ask, "--lake", "x", "--lake-only", "--live-only"]))
    assert "--since" in complaint(run([*ask, "-b", broker.kafka, "--since", "yesterday"]), 2)
    report = [PENSTOCK, "pipeline", "report", "--bootstrap", broker.kafka]
    assert "no output: give --html" in complaint(run(report))
    assert "there is no report 'sises'" in complaint(run([*report, "--json", "--only", "sises"]), 2)
