"""Pipeline work as jobs: real commands with a real Spark, their bounds, and who may ask for what."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.console.settings import ClusterSettings, PipelineSettings
from support.broker_process import BrokerProcess
from support.console_process import ConsoleProcess
from support.waiting import until

from .archived import LATE, SOLD, lake_beside
from .conftest import CLUSTER, RoleClient, RunningConsole, console_settings, running_console, token_of

WORK = f"/clusters/{CLUSTER}/pipeline"
REPLAYS = f"/clusters/{CLUSTER}/topics/{LATE}/replays"
PASSWORD = "never-in-sight-4711"
SMALL = PipelineSettings(memory="700m", lake_ttl_ms=200)

pytestmark = pytest.mark.usefixtures("java")


@pytest.fixture(scope="module")
def lake(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with lake_beside(broker, tmp_path_factory.mktemp("lake") / "lake") as folder:
        yield folder


@pytest.fixture(scope="module")
def running(broker: BrokerProcess, lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    settings = console_settings(broker.kafka, tmp_path_factory.mktemp("console"), pipeline=SMALL)
    secret = {"sasl.username": "console", "sasl.password": PASSWORD}
    cluster = ClusterSettings(CLUSTER, broker.kafka, secret, lake=str(lake))
    with running_console(replace(settings, clusters=(cluster,))) as running:
        running.until_round(lambda snapshot: SOLD in snapshot.topics, "the topics are known")
        yield running


def over(caller: RoleClient, job: dict[str, Any]) -> dict[str, Any]:
    """A job once it has ended."""

    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = caller.get(f"{WORK}/jobs/{job['id']}")["job"]
        return found if found["state"] not in ("waiting", "running") else None

    ended = until(look, "the job is over", 300)
    assert ended is not None
    return ended


def result(caller: RoleClient, job: dict[str, Any]) -> dict[str, Any]:
    ended = over(caller, job)
    assert ended["state"] == "done", caller.get(f"{WORK}/jobs/{job['id']}")
    found: dict[str, Any] = caller.get(f"{WORK}/jobs/{job['id']}/result")
    return found


def test_a_query_reads_lake_and_log_for_who_may_read_everything(running: RunningConsole) -> None:
    sql = (
        f"select count(*) rows, sum(offset) offsets, min(cast(value as string)) least, 9007199254740993L as large,"
        f" double('nan') as none from `{SOLD}`"
    )
    operator, admin = running.as_role("operator"), running.as_role("admin")
    job = operator.post(f"{WORK}/queries", {"sql": sql}, status=202)
    answer = result(operator, job)["query"]
    assert answer["columns"] == ["rows", "offsets", "least", "large", "none"]
    assert answer["rows"] == [[60, 870, '{"number": 0, "card": "4711-0"}', "9007199254740993", "NaN"]]
    # What others have asked is not shown, but to admins.
    other = RoleClient(running.client, token_of(running, "other-operator", "operator"))
    for caller in (other, running.as_role("viewer")):
        assert caller.call("GET", f"{WORK}/jobs/{job['id']}").status_code == 404
        assert caller.call("GET", f"{WORK}/jobs/{job['id']}/result").status_code == 404
        assert job["id"] not in {each["id"] for each in caller.get(f"{WORK}/jobs")}
    assert admin.get(f"{WORK}/jobs/{job['id']}/result")["query"] == answer
    # Rights are checked again when the answer is looked at.
    rule = {"part": "key", "topic_prefix": "any", "visible_from": "admin"}
    made = admin.post("/masking-rules", rule, status=201)
    try:
        for path, method in ((f"{WORK}/jobs/{job['id']}/result", "GET"), (f"{WORK}/queries", "POST")):
            refused = operator.call(method, path, json={"sql": "select 1"} if method == "POST" else None)
            assert refused.status_code == 403 and "masking rules" in refused.json()["detail"]
    finally:
        admin.call("DELETE", f"/masking-rules/{made['id']}")
    (entry,) = [each for each in admin.get("/audit", operation="pipeline.query")["items"] if job["id"] in each["after"]]
    assert entry["user"] == "operator-user" and SOLD in entry["params"]


def test_a_query_of_files_is_refused_by_the_command_itself(running: RunningConsole) -> None:
    operator = running.as_role("operator")
    job = operator.post(f"{WORK}/queries", {"sql": "select * from text.`/etc/passwd`"}, status=202)
    ended = over(operator, job)
    assert ended["state"] == "failed" and ended["problem"].startswith("refused: text./etc/passwd is no topic")
    assert operator.call("GET", f"{WORK}/jobs/{job['id']}/result").status_code == 409


def test_a_report_is_kept_and_shown_without_what_masks_hide(running: RunningConsole, lake: Path) -> None:
    operator, viewer, admin = (running.as_role(role) for role in ("operator", "viewer", "admin"))
    asked = {"topics": [SOLD], "only": ["volume", "sizes", "skew", "lag"]}
    job = operator.post(f"{WORK}/reports", asked, status=202)
    told = result(operator, job)["report"]
    assert [each["name"] for each in told["sections"]] == ["volume", "lag", "skew", "sizes"]
    sizes = next(each for each in told["sections"] if each["name"] == "sizes")
    # Dead letters of all topics are in it, too, and so those of other files on the same broker.
    (sold,) = (row for row in sizes["tables"][0]["rows"] if row["topic"] == SOLD)
    assert sold["messages"] == 60 and sizes["figures"]
    assert viewer.get(f"{WORK}/jobs/{job['id']}/result")["report"] == told
    assert viewer.get(f"{WORK}/jobs/{job['id']}")["log"] == ""
    rule = {"part": "key", "topic_prefix": SOLD, "visible_from": "admin"}
    made = admin.post("/masking-rules", rule, status=201)
    try:
        less = viewer.get(f"{WORK}/jobs/{job['id']}/result")["report"]
        assert [each["name"] for each in less["sections"]] == ["lag", "sizes"] and len(less["left_out"]) == 2
        assert "k3" not in json.dumps(less)
    finally:
        admin.call("DELETE", f"/masking-rules/{made['id']}")
    kept = {each["name"]: each for each in viewer.get(f"/clusters/{CLUSTER}/lake/tables")["tables"]}
    assert kept["volume"]["kind"] == "report" and kept["volume"]["rows"] > 0
    assert (lake / "_reports" / "sizes").is_dir()


def test_a_replay_sends_what_a_dry_run_has_counted_and_once(running: RunningConsole) -> None:
    admin, operator = running.as_role("admin"), running.as_role("operator")
    wanted = {"source": SOLD, "tags": ["big"], "partitions": [0, 1], "end": 20}
    plan = operator.post(REPLAYS, wanted, status=202)
    counted = result(operator, plan)["replay"]
    # LATE has one partition: what is of another one is sent by key.
    assert counted["rows"] == 8 and counted["partitions"] == [
        {"partition": 0, "target": 0, "rows": 4},
        {"partition": 1, "target": None, "rows": 4},
    ]
    run = f"{REPLAYS}/run"
    assert admin.call("POST", run, json={"dry_run": plan["id"]}).status_code == 400, "it is not the admin's dry run"
    assert operator.call("POST", run, json={"dry_run": "absent"}).status_code == 404
    before = running.console.clusters[CLUSTER].snapshot.topics[LATE].end_total
    started = operator.post(run, {"dry_run": plan["id"]}, status=202)
    assert result(operator, started)["replay"]["rows"] == 8
    running.until_round(lambda seen: seen.topics[LATE].end_total >= before + 8, "the copies are there")
    page = operator.get(f"/clusters/{CLUSTER}/topics/{LATE}/messages", limit=100)
    origins = [each["value"]["text"] for row in page["rows"] for each in row["headers"] if "replay-of" in each["name"]]
    assert sorted(origins) == sorted(f"{SOLD}/{part}/{offset}" for part in (0, 1) for offset in (0, 5, 10, 15))
    (entry,) = admin.get("/audit", operation="pipeline.replay_ended")["items"]
    assert (entry["user"], entry["resource"]) == ("operator-user", LATE) and '"sent": "8"' in entry["after"]


def test_who_may_not_read_the_source_or_write_the_target_replays_nothing(running: RunningConsole) -> None:
    wanted = {"source": SOLD}
    assert running.as_role("viewer").call("POST", REPLAYS, json=wanted).status_code == 403
    grants = [{"kind": "topic", "prefix": LATE, "role": "admin"}]
    team = RoleClient(running.client, token_of(running, "late-team", "none", "admin", grants=grants))
    refused = team.call("POST", REPLAYS, json=wanted)
    assert refused.status_code == 403 and "needs the role viewer there" in refused.json()["detail"]
    admin = running.as_role("admin")
    for body, words in (
        ({"source": LATE}, "cannot be replayed to itself"),
        ({"source": "__consumer_offsets"}, "internal topics are not replayed"),
        ({"source": SOLD, "since_ms": 2, "until_ms": 1}, "ends before it begins"),
    ):
        answer = admin.call("POST", REPLAYS, json=body)
        assert answer.status_code == 400 and words in answer.json()["detail"], answer.text
    absent = admin.call("POST", f"/clusters/{CLUSTER}/topics/absent/replays", json=wanted)
    assert absent.status_code == 404 and "no topic absent" in absent.json()["detail"]


def test_a_job_is_ended_with_all_its_processes_and_tells_no_passwords(running: RunningConsole) -> None:
    operator = running.as_role("operator")
    asked = operator.post(f"{WORK}/queries", {"sql": "--=x\nselect 1"}, status=202)
    second = operator.post(f"{WORK}/queries", {"sql": "select 2"}, status=202)
    job = running.console.pipeline_jobs.find(CLUSTER, asked["id"])
    processes = until(lambda: processes_of(job.folder), "the command runs")
    assert processes and operator.get(f"{WORK}/jobs/{second['id']}")["job"]["state"] == "waiting"
    secrets = job.folder / "client.properties"
    assert PASSWORD in secrets.read_text() and stat.S_IMODE(secrets.stat().st_mode) == 0o600
    assert stat.S_IMODE(job.folder.stat().st_mode) == 0o700
    seen = "".join(text for pid in processes for text in (_proc(pid, "cmdline"), _proc(pid, "environ")))
    assert PASSWORD not in seen and "--restricted" in seen
    viewer = running.as_role("viewer").call("DELETE", f"{WORK}/jobs/{asked['id']}")
    assert viewer.status_code == 403
    for each in (second, asked):
        ended = operator.call("DELETE", f"{WORK}/jobs/{each['id']}")
        assert ended.status_code == 200 and ended.json()["state"] == "cancelled", ended.text
    until(lambda: not processes_of(job.folder), "all its processes have ended")
    assert not secrets.exists() and not (job.folder / "tmp").exists()
    assert operator.call("DELETE", f"{WORK}/jobs/{asked['id']}").status_code == 409
    audit = running.as_role("admin").call("GET", "/audit/export").text
    assert PASSWORD not in audit and asked["id"] in audit


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"job_ms": 300}, "took longer than"),
        ({"scratch_bytes": 0, "job_ms": 120_000}, "for temporary files"),
    ],
)
def test_a_job_past_a_bound_is_ended_and_says_which(
    broker: BrokerProcess, lake: Path, tmp_path: Path, bounds: dict[str, Any], words: str
) -> None:
    settings = console_settings(broker.kafka, tmp_path, str(lake), pipeline=replace(SMALL, **bounds))
    with running_console(settings) as running:
        operator = running.as_role("operator")
        ended = over(operator, operator.post(f"{WORK}/queries", {"sql": "select 1"}, status=202))
        assert ended["state"] == "failed" and words in ended["problem"] and "it was ended" in ended["problem"]


def test_jobs_end_with_a_console_that_is_killed(broker: BrokerProcess, lake: Path, tmp_path: Path) -> None:
    console = ConsoleProcess(tmp_path, CLUSTER, broker.kafka, ["--lake", f"{CLUSTER}={lake}"]).start()
    try:
        with httpx.Client(base_url=console.address, follow_redirects=False) as client:
            assert client.post("/login", data={"token": console.token}).status_code == 303
            csrf = {"x-csrf-token": client.get("/api/account").json()["csrf"]}
            asked = client.post(f"/api{WORK}/queries", json={"sql": "select 1"}, headers=csrf)
            assert asked.status_code == 202, asked.text
        folder = tmp_path / "data" / "pipeline" / asked.json()["id"]
        until(lambda: processes_of(folder), "the command runs")
    finally:
        console.kill()
    until(lambda: not processes_of(folder), "the command has ended with the console")


def processes_of(folder: Path) -> list[int]:
    """Those that work in a job's folder."""
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and str(folder) in _proc(int(pid), "environ")]


def _proc(pid: int, what: str) -> str:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""
