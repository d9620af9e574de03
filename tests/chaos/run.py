"""The whole story of one run."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from support.cluster import Cluster
from support.crew import SETTINGS as GROUP_SETTINGS
from support.secured import Secured, let_in, wait_until_let_in
from support.zookeeper import Ensemble, ZooKeeperProcess

from .disks import Disks
from .faults import Saboteur
from .load import RACKS, Load
from .report import Report

SETTINGS = {
    **GROUP_SETTINGS,
    # librdkafka gives up a heartbeat, and its connection, after the interval: shorter than a commit takes at times.
    "groups.consumer_heartbeat_interval_ms": 3_000,
    "groups.consumer_session_timeout_ms": 9_000,
    "cluster.lag_time_max_ms": 3_000,
    "transactions.state_partitions": 4,
    "log.checkpoint_ms": 300,
    # Segments are rolled, and synced then, while things happen.
    "topic.segment.bytes": 256 * 1024,
    # One copy of what was acknowledged is always on a broker that did not fail.
    "topic.min.insync.replicas": 2,
}
SESSIONS = {
    # Shorter than most faults: clients and brokers log in again while they are hurt.
    "security.max_session_ms": 5_000,
}
"""Of brokers that ask for logins. The links between them are cut by who is calling, which TLS would hide: there they
log in without it (`support/links.py`).
"""
_PATIENCE_S = 120.0


def run(
    folder: Path,
    seconds: float,
    seed: int,
    *,
    lease_s: float = 2.0,
    brokers: int = 3,
    zookeepers: int = 3,
    only: Sequence[str] = (),
    overlap: int = 3,
    is_small: bool = False,
    is_secured: bool = False,
    says: bool = False,
) -> Report:
    """At least one fault is injected; none begins after `seconds`. At most `overlap` happen at a time. What does not
    come back is in the report. Brokers that are secured encrypt, and ask for logins and permissions.
    """
    report = Report(seed, brokers, zookeepers)
    with ExitStack() as held:
        members = _started(folder / "zookeeper", zookeepers, held)
        disks = held.enter_context(Disks(folder))
        coordinator = ",".join(member.address for member in members) + "/chaos"
        # A broker may be started while ZooKeeper is away, and on a busy machine that lasts.
        settings: dict[str, object] = {
            **SETTINGS,
            "cluster.lease_ms": int(lease_s * 1000),
            "cluster.connect_timeout_ms": 120_000,
        }
        secured = Secured(folder / "secrets") if is_secured else None
        if secured is not None:
            settings |= {**secured.settings(inter_broker="SASL_PLAINTEXT"), **SESSIONS}
        racks = [RACKS[number % len(RACKS)] for number in range(brokers)]
        cluster = Cluster(
            folder,
            coordinator,
            size=brokers,
            settings=settings,
            racks=racks,
            gates=True,
            access=None if secured is None else secured.admin,
            env=disks.prepare,
        )
        held.enter_context(cluster)
        if secured is not None:
            _log_in(cluster, secured)
        report.left_out = disks.missing
        load = held.enter_context(Load(cluster, folder, seed, is_small=is_small))
        saboteur = Saboteur(cluster, members, disks, lease_s, random.Random(seed), only, overlap)
        try:
            _hurt(cluster, saboteur, load, seconds, report, says)
            load.finish(report)
            for number in cluster.numbers:
                cluster.stop(number)
        except AssertionError as error:
            report.stuck = f"{error} (after {report.strikes[-1][1] if report.strikes else 'the start'})"
            print(cluster.logs, file=sys.stderr)
        report.complaints = cluster.complaints
        if not report.is_good:
            disks.keep()
    return report


def _log_in(cluster: Cluster, secured: Secured) -> None:
    """From now on everything that is asked of brokers is asked by a user that ACLs allow it."""
    user = secured.user("load", "of the load")
    let_in(cluster.kafka, user)
    wait_until_let_in([user], [broker.address for broker in cluster.brokers.values()])
    cluster.access = user


def _started(folder: Path, count: int, held: ExitStack) -> list[ZooKeeperProcess]:
    if count == 1:
        alone = ZooKeeperProcess(folder)
        held.callback(alone.kill)
        return [alone.start()]
    assert count == 3
    ensemble = Ensemble(folder)
    held.callback(ensemble.kill)
    return ensemble.start().members


def _hurt(cluster: Cluster, saboteur: Saboteur, load: Load, seconds: float, report: Report, says: bool) -> None:
    load.wait_until_it_goes_on()
    started = time.monotonic()
    while not report.faults or time.monotonic() < started + seconds:
        struck = time.monotonic()
        plan = saboteur.next()
        what = " + ".join(map(str, plan.faults))
        report.strikes.append((struck, what))
        report.faults.update(map(str, plan.faults))
        plan.strike()
        report.hung_zookeepers = saboteur.hung_zookeepers
        healed = time.monotonic()
        slowest = load.wait_until_it_goes_on()
        goes_on = time.monotonic()
        cluster.wait_until_whole(_PATIENCE_S)
        if says:
            gaps = ", ".join(f"{pulse.longest_gap_s(struck):.1f} s ({topic})" for topic, pulse in load.pulses.items())
            print(
                f"{struck - started:6.1f} s  {what}: {healed - struck:.1f} s,"
                f" all goes on {goes_on - healed:.1f} s later ({slowest}),"
                f" whole {time.monotonic() - healed:.1f} s later, longest gap {gaps}",
                flush=True,
            )
