"""Groups through the API, against a real broker."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from support.broker_process import BrokerProcess

from .conftest import CLUSTER, RunningConsole

HOME = f"/clusters/{CLUSTER}/groups"


@pytest.fixture
def group(broker: BrokerProcess, running: RunningConsole) -> str:
    """One that has read 4 of 10 messages and has no members."""
    name = f"g-{uuid.uuid4().hex[:10]}"
    running.as_role("admin").post(f"/clusters/{CLUSTER}/topics", {"name": name, "partitions": 1}, status=201)
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(10):
        producer.produce(name, str(number))
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": name})
    consumer.commit(offsets=[TopicPartition(name, 0, 4)], asynchronous=False)
    consumer.close()
    return name


def test_a_group_shows_its_lag_and_that_it_needs_attention(running: RunningConsole, group: str) -> None:
    running.until_round(
        lambda snapshot: group in snapshot.groups and snapshot.groups[group].lag == 6, "the lag is known"
    )
    viewer = running.as_role("viewer")
    (row,) = viewer.get(HOME, text=group)["items"]
    assert (row["lag"], row["members"], row["topics"]) == (6, 0, [group])
    assert group in {each["name"] for each in viewer.get(f"/clusters/{CLUSTER}")["findings"]}
    detail = viewer.get(f"{HOME}/{group}")
    assert detail["partitions"] == [
        {"topic": group, "partition": 0, "committed": 4, "end": 10, "lag": 6, "member": None, "problem": ""}
    ]
    assert viewer.get(f"/clusters/{CLUSTER}/topics/{group}")["readers"][0]["group"] == group


@pytest.mark.parametrize(
    ("to", "value", "after", "repeated", "skipped"),
    [("earliest", 0, 0, 4, 0), ("latest", 0, 10, 0, 6), ("offset", 7, 7, 0, 3), ("shift", -2, 2, 2, 0)],
)
def test_a_reset_does_what_its_preview_says(
    running: RunningConsole, group: str, to: str, value: int, after: int, repeated: int, skipped: int
) -> None:
    operator, wish = running.as_role("operator"), {"to": to, "value": value}
    preview = operator.post(f"{HOME}/{group}/reset-preview", wish)
    assert not preview["is_applied"]
    assert operator.get(f"{HOME}/{group}")["partitions"][0]["committed"] == 4
    done = operator.post(f"{HOME}/{group}/reset", wish)
    assert done["is_applied"] and done["rows"] == preview["rows"]
    (row,) = done["rows"]
    assert (row["before"], row["after"], row["repeated"], row["skipped"]) == (4, after, repeated, skipped)
    assert operator.get(f"{HOME}/{group}")["partitions"][0]["committed"] == after
    entries = running.as_role("admin").get("/audit", resource=group, operation="groups.reset")["items"]
    assert entries[0]["outcome"] == "done" and entries[0]["user"] == "operator-user"
    assert entries[0]["before"] == f'{{"{group}-0": 4}}' and entries[0]["after"] == f'{{"{group}-0": {after}}}'


def test_a_group_is_paused_and_resumed(running: RunningConsole, group: str) -> None:
    operator = running.as_role("operator")
    assert operator.post(f"{HOME}/{group}/pause", {"topics": [group]})["topics"] == [group]
    assert operator.get(f"{HOME}/{group}")["paused_topics"] == [group]
    assert operator.post(f"{HOME}/{group}/resume", {})["topics"] == []


def test_offsets_are_deleted_and_then_the_group(running: RunningConsole, group: str) -> None:
    admin = running.as_role("admin")
    (done,) = admin.post(f"{HOME}/{group}/offset-deletion", {"partitions": [{"topic": group, "partition": 0}]})
    assert done["is_done"], done
    assert admin.get("/audit", resource=group, operation="groups.delete_offsets")["items"][0]["before"]
    # Without offsets and members nothing is left of a group.
    running.until_round(lambda snapshot: group not in snapshot.groups, "the group is gone")


def test_a_group_is_deleted_once_its_name_is_typed(running: RunningConsole, group: str) -> None:
    admin = running.as_role("admin")
    assert admin.call("POST", f"{HOME}/{group}/deletion", json={"confirm": ""}).status_code == 409
    assert admin.call("POST", f"{HOME}/{group}/deletion", json={"confirm": group}).status_code == 204
    running.until_round(lambda snapshot: group not in snapshot.groups, "the group is gone")
