"""The benchmark of clusters counts right, leaves nothing behind when a node cannot start, and works as a whole."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from bench.cases.recovery import Recovery
from bench.client.pulse import longest_gaps_s
from bench.clusters import plan
from bench.clusters.cluster import Nodes, start_cluster
from bench.clusters.node import Node
from bench.measure import Measure, Results
from bench.report.table import rows
from bench.servers.penstock import PenstockServer
from bench.servers.process import Launch, ServerError, free_ports
from bench.target import Target

from support.programs import required_program

ROOT = Path(__file__).parent.parent.parent
LISTENS = "import socket, sys\ns = socket.create_server(('127.0.0.1', int(sys.argv[1])))\nwhile True: s.accept()"
ENDS = "import sys; sys.exit('no room left here')"


class Broken:
    """A cluster of which one node listens and the other ends at once."""

    name = "broken"
    protocol = "kafka"
    version = "0"

    def obtain(self) -> None: ...

    def prepare(self, folder: Path) -> Launch:
        raise NotImplementedError

    def prepare_cluster(self, folder: Path) -> Nodes:
        folder.mkdir()
        ports = free_ports(2)
        nodes = tuple(
            Node(
                f"node {number}",
                Launch(
                    address=f"127.0.0.1:{port}",
                    command=(sys.executable, "-c", script, str(port), str(folder)),
                    folder=folder,
                ),
            )
            for number, (port, script) in enumerate(zip(ports, (LISTENS, ENDS), strict=True), start=1)
        )
        return Nodes(brokers=nodes)


def test_a_gap_belongs_to_the_phase_in_which_it_ends() -> None:
    moments = [0.0, 1.0, 1.5, 4.5, 5.0, 5.1, 7.1]
    assert longest_gaps_s(moments, [2.0, 4.8]) == [3.0, 2.0]
    assert longest_gaps_s(moments, [8.0]) == [0.0]


def test_a_node_that_cannot_start_is_named_and_none_is_left_running(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="node 2: server exited with 1: no room left here"):
        start_cluster(Broken(), tmp_path / "cluster")
    assert processes_with(str(tmp_path)) == []
    assert not (tmp_path / "cluster").exists()


def test_recovery_asks_for_room_on_the_disk_before_it_writes(tmp_path: Path) -> None:
    target = Target(name="Penstock", protocol="kafka", address="", server=PenstockServer())
    with pytest.raises(ServerError, match="GB of free disk are needed"):
        Recovery(folder=tmp_path, megabytes=10**9, rounds=1).run(target)
    assert list(tmp_path.iterdir()) == []


def test_a_bound_is_kept_by_the_worst_round_and_shown_beside_the_median() -> None:
    gap = Measure(key="g", label="gap", unit="ms", higher_is_better=False, bound=500, shows_worst=True)
    results = Results(measures={"g": gap}, values={"g": {"Penstock": [100.0, 501.0, 120.0]}})
    (row,) = rows(results, ["Penstock"])
    assert (row.cells, row.goal, row.met) == (("120 (501)",), "≤ 500 ms", False)
    results.values["g"]["Penstock"][1] = 500.0
    (row,) = rows(results, ["Penstock"])
    assert row.met is True


def test_ports_stay_free_because_no_outgoing_connection_is_given_one() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert max(ports) < lowest
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize("make", [plan.full, plan.smoke])
def test_no_two_cases_of_a_run_with_clusters_share_a_row(
    make: Callable[[Path], plan.ClusterPlans], tmp_path: Path
) -> None:
    plans = make(tmp_path)
    cases = [*plans.three.cases, *plans.one.cases]
    assert {case.kind for case in cases} == plan.KINDS
    keys = [measure.key for case in cases for measure in case.measures()]
    assert len(keys) == len(set(keys))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not Path("/usr/share/java/zookeeper.jar").exists():
        required_program("zookeeper")
    folder = tmp_path_factory.mktemp("clusters")
    command = [sys.executable, "-m", "bench.clusters", "--smoke"]
    command += ["--out", str(folder / "out"), "--data", str(folder / "data")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def test_every_case_of_a_cluster_yields_figures(report: Path) -> None:
    document = json.loads((report / "out" / "cluster.json").read_text())
    assert document["failures"] == []
    assert [figure["measure"] for figure in document["figures"] if "Penstock" not in figure["targets"]] == []
    # CPU is counted in hundredths of a second, of which a run this small may take none.
    counted = [
        figure for figure in document["figures"] if "CPU" not in figure["unit"] and "cores" not in figure["unit"]
    ]
    assert all(figure["targets"]["Penstock"]["median"] > 0 for figure in counted)


def test_nobody_leads_before_the_lease_of_a_killed_leader_is_over(report: Path) -> None:
    figures = json.loads((report / "out" / "cluster.json").read_text())["figures"]
    (killed,) = [f for f in figures if f["measure"] == "kill -9 of a leader: interruption, worst partition"]
    assert killed["targets"]["Penstock"]["median"] > 3000


def test_report_of_a_cluster_names_neither_host_nor_folder(report: Path) -> None:
    for name in ("cluster.json", "cluster.md"):
        text = (report / "out" / name).read_text()
        assert str(report) not in text
        assert str(ROOT) not in text


def test_brokers_zookeeper_and_their_data_are_gone_afterwards(report: Path) -> None:
    assert list((report / "data").iterdir()) == []
    assert processes_with(str(report / "data")) == []


def processes_with(text: str) -> list[int]:
    return [
        process.pid for process in psutil.process_iter(["cmdline"]) if text in " ".join(process.info["cmdline"] or ())
    ]
