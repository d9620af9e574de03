"""What is in `deploy/`: written from the metrics' definitions, and right by the tools that read it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.broker_process import BrokerProcess
from support.deploy import DEPLOY, PROMETHEUS, ROOT, RULES, panels, rules
from support.programs import PENSTOCK, environment, required_program, run
from support.waiting import PATIENCE_S

UNIT = DEPLOY / "systemd" / "penstock.service"
CONTAINERFILE = DEPLOY / "Containerfile"
SETTINGS = DEPLOY / "penstock.toml"
MOST_EXPOSED = 20
"""In tenths, by `systemd-analyze security`: 0 is a service that can do nothing, 100 one that can do everything."""


def test_generated_files_follow_the_definitions() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deploy", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with the command of this environment, which has to exist."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/penstock/bin/penstock", PENSTOCK))
    assert PENSTOCK in copy.read_text()
    return copy


def test_systemd_finds_nothing_wrong_with_the_unit(unit: Path) -> None:
    done = run([required_program("systemd-analyze"), "verify", str(unit)])
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()


def test_the_service_can_do_little_beside_its_work(unit: Path) -> None:
    command = [required_program("systemd-analyze"), "security", "--offline=true", "--no-pager"]
    done = run([*command, f"--threshold={MOST_EXPOSED}", str(unit)])
    assert done.returncode == 0, done.stdout.decode()


def test_the_settings_of_the_service_are_right() -> None:
    done = run([PENSTOCK, "config", "check", str(SETTINGS)])
    assert done.returncode == 0, done.stderr
    command = next(line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart="))
    assert command.endswith(f"serve --config /etc/penstock/{SETTINGS.name}")


def test_a_broker_tells_the_service_manager_that_it_is_ready_alive_and_stopping(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE_S)
        watched = {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "200000"}
        broker = BrokerProcess(tmp_path / "broker", env=watched)
        broker.launch()
        try:

            def told(word: str) -> list[str]:
                """What comes, up to the first that says so."""
                found: list[str] = []
                while not found or word not in found[-1]:
                    found.append(systemd.recv(1000).decode())
                return found

            # It is alive before it is ready: recovery may take long.
            *before, ready = told("READY=1")
            assert set(before) <= {"WATCHDOG=1"}
            broker.wait_until_ready()
            assert broker.kafka in ready
            assert told("WATCHDOG=1") and told("WATCHDOG=1")
            broker.signal(signal.SIGTERM)
            told("STOPPING=1")
            assert broker.stop() == 0
        finally:
            broker.kill()


def test_prometheus_takes_the_rules_and_the_configuration() -> None:
    promtool = required_program("promtool")
    for what in (["rules", str(RULES)], ["config", str(PROMETHEUS)]):
        done = run([promtool, "check", *what])
        assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"} and all(rule["annotations"].values())


JOB = 'job="penstock"'
ONE = f'{{{JOB},instance="b1"}}'
TWO = f'{{{JOB},instance="b2"}}'
LOOP = "penstock_event_loop_lag_seconds"
PLACE = 'topic="orders",partition="0"'

# The alert, series that make it fire by the 90th minute (values a minute), series that do not.
CASES: list[tuple[str, dict[str, str], dict[str, str]]] = [
    ("PenstockBrokerDown", {f"up{ONE}": "1 0x90"}, {f"up{ONE}": "1x90"}),
    (
        "PenstockRestarts",
        {f"process_start_time_seconds{ONE}": "1x80 2 3 4 5 6 7x5"},
        {f"process_start_time_seconds{ONE}": "1x80 2x10"},
    ),
    (
        "PenstockOfflinePartitions",
        {f"penstock_offline_partitions{ONE}": "0x85 3x5", f"penstock_offline_partitions{TWO}": "0x85 3x5"},
        {f"penstock_offline_partitions{ONE}": "0x90"},
    ),
    (
        "PenstockUnderMinIsrPartitions",
        {f"penstock_under_min_isr_partitions{ONE}": "0x85 1x5"},
        {f"penstock_under_min_isr_partitions{ONE}": "0x90"},
    ),
    (
        "PenstockUnderReplicatedPartitions",
        {f"penstock_under_replicated_partitions{ONE}": "0x80 1x10"},
        # A restart that is over within the time is nobody's business.
        {f"penstock_under_replicated_partitions{ONE}": "0x87 1x3"},
    ),
    (
        "PenstockNoActiveController",
        {f"penstock_active_controller{ONE}": "0x90", f"penstock_active_controller{TWO}": "1x85 0x5"},
        {f"penstock_active_controller{ONE}": "0x90", f"penstock_active_controller{TWO}": "1x90"},
    ),
    (
        "PenstockSeveralControllers",
        {f"penstock_active_controller{ONE}": "1x90", f"penstock_active_controller{TWO}": "1x90"},
        {f"penstock_active_controller{ONE}": "1x90", f"penstock_active_controller{TWO}": "0x90"},
    ),
    (
        "PenstockUncleanLeaderElection",
        {f"penstock_unclean_leader_elections_total{ONE}": "0x85 1x5"},
        {f"penstock_unclean_leader_elections_total{ONE}": "1x90"},
    ),
    (
        "PenstockDatabaseServerDown",
        {f"penstock_database_server_up{ONE}": "0x90", f"penstock_database_server_up{TWO}": "0x90"},
        {f"penstock_database_server_up{ONE}": "0x90", f"penstock_database_server_up{TWO}": "1x90"},
    ),
    (
        "PenstockDatabaseReplicaBehind",
        {f"penstock_database_replication_lag_seconds{ONE}": "31x90"},
        {f"penstock_database_replication_lag_seconds{ONE}": "29x90"},
    ),
    (
        "PenstockDatabaseLostRecords",
        {f"penstock_database_lost_records_total{ONE}": "0x85 1x5"},
        {f"penstock_database_lost_records_total{ONE}": "1x90"},
    ),
    (
        "PenstockIsrFlapping",
        {f"penstock_isr_shrinks_total{ONE}": "0+2x90", f"penstock_isr_expands_total{ONE}": "0+2x90"},
        {f"penstock_isr_shrinks_total{ONE}": "0x60 8x30", f"penstock_isr_expands_total{ONE}": "0x60 8x30"},
    ),
    ("PenstockOfflineLogs", {f"penstock_offline_logs{ONE}": "1x90"}, {f"penstock_offline_logs{ONE}": "0x90"}),
    (
        "PenstockEventLoopStalled",
        {
            f"{LOOP}_count{ONE}": "0+600x90",
            f'{LOOP}_bucket{{{JOB},instance="b1",le="0.5"}}': "0+600x87 52799+600x3",
        },
        {f"{LOOP}_count{ONE}": "0+600x90", f'{LOOP}_bucket{{{JOB},instance="b1",le="0.5"}}': "0+600x90"},
    ),
    (
        "PenstockDiskLow",
        {f"penstock_disk_free_bytes{ONE}": "9x90", f"penstock_disk_size_bytes{ONE}": "100x90"},
        {f"penstock_disk_free_bytes{ONE}": "11x90", f"penstock_disk_size_bytes{ONE}": "100x90"},
    ),
    (
        "PenstockDiskVeryLow",
        {f"penstock_disk_free_bytes{ONE}": "2x90", f"penstock_disk_size_bytes{ONE}": "100x90"},
        {f"penstock_disk_free_bytes{ONE}": "9x90", f"penstock_disk_size_bytes{ONE}": "100x90"},
    ),
    (
        "PenstockDiskFullSoon",
        {f"penstock_disk_free_bytes{ONE}": "1000-5x90"},
        {f"penstock_disk_free_bytes{ONE}": "100000-5x90"},
    ),
    (
        "PenstockFileDescriptors",
        {f"process_open_fds{ONE}": "90x90", f"process_max_fds{ONE}": "100x90"},
        {f"process_open_fds{ONE}": "70x90", f"process_max_fds{ONE}": "100x90"},
    ),
    (
        "PenstockRequestsFailing",
        {
            f'penstock_requests_total{{{JOB},instance="b1",api="Produce"}}': "0+600x90",
            f'penstock_request_errors_total{{{JOB},instance="b1",api="Produce"}}': "0+60x90",
        },
        {
            f'penstock_requests_total{{{JOB},instance="b1",api="Produce"}}': "0+600x90",
            f'penstock_request_errors_total{{{JOB},instance="b1",api="Produce"}}': "0+6x90",
        },
    ),
    (
        # The partition is on another broker than the group's coordinator.
        "PenstockConsumerLagGrowing",
        {
            f'penstock_log_end_offset{{{JOB},instance="b1",{PLACE}}}': "0+100x90",
            f'penstock_group_committed_offset{{{JOB},instance="b2",group="billing",{PLACE}}}': "0+50x90",
        },
        {
            f'penstock_log_end_offset{{{JOB},instance="b1",{PLACE}}}': "5000+100x90",
            f'penstock_group_committed_offset{{{JOB},instance="b2",group="billing",{PLACE}}}': "0+120x90",
        },
    ),
    (
        "PenstockDelayedMessagesLate",
        {f"penstock_delayed_overdue_seconds{ONE}": "0x80 40+60x10"},
        {f"penstock_delayed_overdue_seconds{ONE}": "0x80 1x10"},
    ),
    (
        "PenstockDelayedMessagesDamaged",
        {f"penstock_delayed_damaged_total{ONE}": "0x80 1x10"},
        {f"penstock_delayed_damaged_total{ONE}": "0x90"},
    ),
    (
        "PenstockArchiveBehind",
        {f'penstock_archive_lag_records{{{JOB},instance="b1",{PLACE}}}': "100000+1000x90"},
        {f'penstock_archive_lag_records{{{JOB},instance="b1",{PLACE}}}': "300000-1000x90"},
    ),
    (
        "PenstockArchiveLost",
        {f"penstock_archive_lost_bytes_total{ONE}": "0x85 1000x5"},
        {f"penstock_archive_lost_bytes_total{ONE}": "0x90"},
    ),
    (
        "PenstockTransactionsHanging",
        {f"penstock_transactions_oldest_open_seconds{ONE}": "0+60x90"},
        {f"penstock_transactions_oldest_open_seconds{ONE}": "60x90"},
    ),
    (
        "PenstockTransactionMarkersPending",
        {f"penstock_transaction_markers_pending{ONE}": "3x90"},
        {f"penstock_transaction_markers_pending{ONE}": "3 0x89"},
    ),
]


def test_every_alert_has_a_case() -> None:
    assert {name for name, _, _ in CASES} == {rule["alert"] for rule in rules() if "alert" in rule}


def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    def fires(series: dict[str, str], name: str, expected: Sequence[object]) -> dict[str, object]:
        return {
            "interval": "1m",
            "input_series": [{"series": each, "values": values} for each, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count by (alertname) (ALERTS{{alertname="{name}",alertstate="firing"}})',
                    "eval_time": "90m",
                    "exp_samples": expected,
                }
            ],
        }

    tests = []
    for name, bad, good in CASES:
        tests.append(fires(bad, name, [{"labels": f'{{alertname="{name}"}}', "value": 1}]))
        tests.append(fires(good, name, []))
    cases = tmp_path / "cases.yml"
    cases.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = run([required_program("promtool"), "test", "rules", str(cases)])
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_the_dashboard_is_well_formed() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "penstock.json").read_text())
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells), "panels lie on each other"
    assert max(x for x, _ in cells) < 24
    declared = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)", json.dumps(dashboard))) - {"__rate_interval"}
    assert used <= declared
    for panel in panels():
        assert panel["targets"][0]["expr"].count("(") == panel["targets"][0]["expr"].count(")")


def instructions() -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n\s*", " ", CONTAINERFILE.read_text())
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_containerfile_copies_what_is_there_and_does_not_run_as_root() -> None:
    found = instructions()
    others = {"ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    known = {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "LABEL", *others}
    assert {word for word, _ in found} <= known
    sent = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    stages = {rest.split(" AS ")[1] for word, rest in found if word == "FROM" and " AS " in rest}
    for word, rest in found:
        if word == "COPY":
            *sources, _ = shlex.split(rest)
            if sources[0].startswith("--from="):
                assert sources[0].removeprefix("--from=") in stages
                continue
            for source in sources:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in sent, f"{source} is not sent to the builder"
    last = max(index for index, (word, _) in enumerate(found) if word == "FROM")
    final = dict(found[last:])
    uid, _, gid = final["USER"].partition(":")
    assert int(uid) > 0 and int(gid) > 0
    assert f"--uid {uid}" in final["RUN"] and f"--gid {gid}" in final["RUN"]
    assert json.loads(final["VOLUME"]) == ["/var/lib/penstock"]


def test_the_settings_of_the_container_start_a_broker_that_its_health_check_finds(tmp_path: Path) -> None:
    """The environment and the health check as they stand in the file, with the ports and the folder of a test."""
    final = dict(instructions())
    variables = dict(pair.split("=", 1) for pair in shlex.split(final["ENV"]) if pair.startswith("PENSTOCK_"))
    assert variables["PENSTOCK_BROKER_DATA"] in json.loads(final["VOLUME"])
    assert final["EXPOSE"].split() == [
        variables[name].rpartition(":")[2] for name in ("PENSTOCK_BROKER_LISTEN", "PENSTOCK_BROKER_HTTP")
    ]
    check = json.loads(final["HEALTHCHECK"].partition("CMD ")[2])
    assert check[0] == "python"
    assert [json.loads(final["ENTRYPOINT"]), json.loads(final["CMD"])] == [["penstock"], ["serve"]]
    kept = {name: variables[name] for name in ("PENSTOCK_LOGGING_FORMAT", "PENSTOCK_BROKER_ADVERTISED")}
    broker = BrokerProcess(tmp_path, env=kept)
    try:
        broker.start()
        port = variables["PENSTOCK_BROKER_HTTP"].rpartition(":")[2]
        command = [sys.executable, *check[1:-1], check[-1].replace(f"127.0.0.1:{port}", broker.http)]
        assert broker.http in command[-1]
        assert subprocess.run(command, env=environment(), check=False).returncode == 0
        assert json.loads(broker.log.splitlines()[0])["level"] == "info"
        broker.stop()
        assert subprocess.run(command, env=environment(), capture_output=True, check=False).returncode != 0
    finally:
        broker.kill()
    assert os.path.commonpath([broker.data, tmp_path]) == str(tmp_path)
