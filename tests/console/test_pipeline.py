"""The pipeline page through the API: a real broker, and a real lake that is made once for the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import BrokerFactory
from support.broker_process import BrokerProcess
from support.waiting import until

from .archived import LATE, PAID, SOLD, lake_beside
from .conftest import CLUSTER, RoleClient, RunningConsole, console_settings, running_console, token_of

LAKE = f"/clusters/{CLUSTER}/lake"


@pytest.fixture(scope="module")
def lake(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with lake_beside(broker, tmp_path_factory.mktemp("lake") / "lake") as folder:
        yield folder


@pytest.fixture(scope="module")
def running(broker: BrokerProcess, lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    settings = console_settings(broker.kafka, tmp_path_factory.mktemp("console"), str(lake))
    with running_console(settings) as running:
        running.until_round(lambda snapshot: SOLD in snapshot.topics, "the topics are known")
        yield running


def test_the_lag_of_the_archive_is_that_of_its_own_metadata(running: RunningConsole) -> None:
    viewer = running.as_role("viewer")
    page = viewer.get(f"{LAKE}/lag", sort="behind", descending=True)
    assert [row["topic"] for row in page["items"]] == [SOLD, PAID]
    sold = page["items"][0]
    assert (sold["behind"], sold["lost"], sold["rows"]) == (20, 0, 40)
    assert (sold["partitions"], sold["archived_partitions"]) == (2, 2)
    rows = viewer.get(f"{LAKE}/lag/{SOLD}")
    wanted = {"start": 10, "archived": 20, "end": 30, "behind": 10, "lost": 0}
    assert rows == [{"index": index, **wanted} for index in range(2)]
    summary = viewer.get(LAKE)
    assert summary["problem"] == "" and summary["rows"] == 45 and summary["behind"] == 20
    assert LATE in summary["not_archived"]
    tables = viewer.get(f"{LAKE}/tables")
    assert {(each["name"], each["kind"], each["rows"]) for each in tables["tables"]} >= {(SOLD, "topic", 40)}
    assert "biz_id" in {each["name"] for each in tables["columns"]}


def searched(caller: RoleClient, topic: str, **wanted: Any) -> dict[str, Any]:
    """A search to its end, with all its hits."""
    told = caller.post(f"/clusters/{CLUSTER}/topics/{topic}/searches", wanted, status=202)

    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = caller.get(f"/searches/{told['id']}")
        return found if found["state"] != "running" else None

    ended = until(look, "the search is over")
    assert ended is not None
    return ended


def offsets_of(found: dict[str, Any]) -> list[tuple[int, int, bool]]:
    return sorted((row["partition"], row["offset"], row["is_archived"]) for row in found["rows"])


def test_a_search_goes_on_in_the_lake_where_the_log_begins(running: RunningConsole) -> None:
    viewer = running.as_role("viewer")
    whole = searched(viewer, SOLD, text="number")
    assert whole["state"] == "done" and (whole["total"], whole["archived"]) == (60, 20) and whole["scanned"] >= 60
    assert offsets_of(whole) == [(index, offset, offset < 10) for index in range(2) for offset in range(30)]
    assert offsets_of(searched(viewer, SOLD, biz_id=f"{SOLD}-1-3")) == [(1, 3, True)]
    assert offsets_of(searched(viewer, SOLD, key="k4", partitions=[0])) == [(0, 4, True)]
    tagged = searched(viewer, SOLD, tag="big", partitions=[1])
    assert offsets_of(tagged) == [(1, offset, offset < 10) for offset in range(0, 30, 5)]
    assert offsets_of(searched(viewer, SOLD, json_path="$.number", json_value="7", partitions=[0])) == [(0, 7, True)]
    assert offsets_of(searched(viewer, SOLD, text="number", at="offset", value=8, partitions=[0]))[:3] == [
        (0, 8, True),
        (0, 9, True),
        (0, 10, False),
    ]
    assert searched(viewer, SOLD, text="number", at="offset", value=10)["archived"] == 0


def test_a_message_that_only_the_lake_has_is_shown_and_sent_again(running: RunningConsole) -> None:
    home = f"/clusters/{CLUSTER}/topics/{SOLD}/messages"
    row = running.as_role("viewer").get(f"{home}/0/3")
    assert row["is_archived"] and json.loads(row["value"]["text"])["number"] == 3 and row["key"]["text"] == "k3"
    assert {each["name"] for each in row["headers"]} == {"penstock-biz-id", "penstock-tags"}
    assert not running.as_role("viewer").get(f"{home}/0/12")["is_archived"]
    body = {"messages": [{"partition": 0, "offset": 3}], "to": LATE}
    (sent,) = running.as_role("operator").post(f"{home}/resend", body)
    copy = running.as_role("viewer").get(f"/clusters/{CLUSTER}/topics/{LATE}/messages/0/{sent['offset']}")
    assert copy["value"] == row["value"]


def test_the_lake_shows_no_more_than_masks_allow(running: RunningConsole) -> None:
    admin, viewer = running.as_role("admin"), running.as_role("viewer")
    rule = {"part": "json", "path": "$.card", "topic_prefix": SOLD, "visible_from": "operator"}
    made = admin.post("/masking-rules", rule, status=201)
    try:
        assert searched(viewer, SOLD, text="4711-3")["rows"] == []
        (hit,) = searched(viewer, SOLD, biz_id=f"{SOLD}-0-3")["rows"]
        assert hit["is_masked"] and "4711" not in json.dumps(hit)
        shown = viewer.get(f"/clusters/{CLUSTER}/topics/{SOLD}/messages/0/3")
        assert shown["is_masked"] and "4711" not in json.dumps(shown)
        seen = searched(running.as_role("operator"), SOLD, text='4711-3"', partitions=[0])
        assert offsets_of(seen) == [(0, 3, True)]
    finally:
        admin.call("DELETE", f"/masking-rules/{made['id']}")


def test_without_grants_nothing_of_the_lake_is_seen(running: RunningConsole) -> None:
    grants = [{"kind": "topic", "prefix": PAID, "role": "operator"}]
    granted = RoleClient(running.client, token_of(running, "paid-team", "none", "operator", grants=grants))
    assert [row["topic"] for row in granted.get(f"{LAKE}/lag")["items"]] == [PAID]
    assert [each["name"] for each in granted.get(f"{LAKE}/tables")["tables"]] == [PAID]
    summary = granted.get(LAKE)
    assert (summary["topics"], summary["rows"], summary["not_archived_count"]) == (1, 5, 0)
    lake = running.console.clusters[CLUSTER].lake
    assert lake is not None and lake.uri not in json.dumps(summary)
    assert granted.call("GET", f"{LAKE}/lag/{SOLD}").status_code == 403
    assert granted.call("GET", f"/clusters/{CLUSTER}/topics/{SOLD}/messages/0/3").status_code == 403


def test_a_lake_that_cannot_be_read_says_why(broker: BrokerProcess, lake: Path, tmp_path: Path) -> None:
    with running_console(console_settings(broker.kafka, tmp_path / "one", str(tmp_path / "nowhere"))) as running:
        viewer = running.as_role("viewer")
        assert "penstock pipeline archive makes one" in viewer.get(LAKE)["problem"]
        assert viewer.call("GET", f"{LAKE}/lag").status_code == 503
        ended = searched(viewer, SOLD, text="number")
        assert ended["state"] == "done" and ended["hits"] == 40 and "the lake was not searched" in ended["problem"]
    with running_console(console_settings(broker.kafka, tmp_path / "two")) as running:
        viewer = running.as_role("viewer")
        assert viewer.get(LAKE)["uri"] == ""
        refused = viewer.call("GET", f"{LAKE}/lag")
        assert refused.status_code == 404 and "--lake local=PATH" in refused.json()["detail"]


def test_the_lake_of_another_cluster_is_refused(new_broker: BrokerFactory, lake: Path, tmp_path: Path) -> None:
    other = new_broker()
    with running_console(console_settings(other.kafka, tmp_path, str(lake))) as running:
        assert "is the archive of cluster" in running.as_role("viewer").get(LAKE)["problem"]
        assert running.as_role("viewer").call("GET", f"{LAKE}/lag").status_code == 409
