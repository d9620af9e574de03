"""However many look, the poller asks as often as it is told to."""

from __future__ import annotations

import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from starlette.testclient import TestClient

from penstock.admin import GroupPause, TopicPartition
from penstock.console.console import Console
from penstock.console.polling.cluster_view import ClusterView
from penstock.console.polling.snapshot import ClusterSnapshot
from support.broker_process import BrokerProcess
from support.waiting import until

from .conftest import BASE, CLUSTER, app_of, console_settings, sign_in_once

_SAMPLE = re.compile(r"^penstock_requests_total\{.*\} ([\d.]+)$", re.MULTILINE)
_ROUNDS = 5


def requests_of(broker: BrokerProcess) -> int:
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=30) as answer:
        return round(sum(float(each) for each in _SAMPLE.findall(answer.read().decode())))


def test_fifty_viewers_cost_the_broker_no_more_than_one(broker: BrokerProcess, tmp_path: Path) -> None:
    console = Console(console_settings(broker.kafka, tmp_path))
    with TestClient(app_of(console), base_url=BASE) as client:
        sign_in_once(console, client)
        poller = console.clusters[CLUSTER].poller
        paths = [f"/api/clusters/{CLUSTER}", f"/api/clusters/{CLUSTER}/topics", f"/api/clusters/{CLUSTER}/groups"]

        def look(_: int) -> None:
            for path in paths:
                assert client.get(path).status_code == 200

        def requests_per_round(viewers: int) -> float:
            """While viewers look all the time."""
            first_round, first_count = poller.snapshot.round, requests_of(broker)
            with ThreadPoolExecutor(10) as pool:
                while poller.snapshot.round < first_round + _ROUNDS:
                    list(pool.map(look, range(viewers)))
            return (requests_of(broker) - first_count) / (poller.snapshot.round - first_round)

        until(lambda: poller.snapshot.round > 2, "the poller has begun")
        one, fifty = requests_per_round(1), requests_per_round(50)
        assert one > 0
        # A round that is under way at either end is counted by half.
        assert fifty <= one * 1.5


def _group(view: ClusterView, name: str, committed: int, at_ms: int) -> None:
    view.take_group(name, at_ms, 1, {TopicPartition("t", 0): committed}, GroupPause())


def test_groups_take_turns_the_longest_unread_first() -> None:
    view = ClusterView("c")
    view.take_states(dict.fromkeys(("a", "b", "c", "d"), "STABLE"))
    turns = []
    for now_ms in (1, 2, 3):
        chosen = view.groups_to_read(2)
        turns.append(chosen)
        for name in chosen:
            _group(view, name, 0, now_ms)
    assert turns == [["a", "b"], ["c", "d"], ["a", "b"]]


def test_a_group_that_is_gone_is_forgotten() -> None:
    view = ClusterView("c")
    view.take_states({"a": "STABLE"})
    _group(view, "a", 3, 1)
    view.take_states({})
    snapshot: ClusterSnapshot = view.snapshot(1, 1, 0)
    assert snapshot.groups == {} and view.readings == {}
