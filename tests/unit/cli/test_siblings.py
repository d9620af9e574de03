"""What each of several brokers of one host is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.cli.serve.siblings import Given, children, siblings
from penstock.cli.serve.supervisor import Pauses
from penstock.config.loader import load
from penstock.errors import ConfigError

COORDINATOR = {"cluster.coordinator": "zk://127.0.0.1:2181/penstock"}


@pytest.fixture(autouse=True)
def _no_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is `data` where the command runs: in a checkout, after `make run`, that of a single broker."""
    monkeypatch.chdir(tmp_path)


def told(count: int, flags: Mapping[str, str], env: Mapping[str, str] | None = None) -> list[dict[str, str]]:
    return siblings(load(None, env or {}, COORDINATOR | dict(flags)), count, "this-host")


def refusal(count: int, flags: Mapping[str, str]) -> str:
    with pytest.raises(ConfigError) as refused:
        told(count, flags)
    return str(refused.value)


def test_numbers_ports_and_folders_count_up() -> None:
    flags = {"broker.id": "5", "broker.listen": "[::1]:9000", "broker.http": "127.0.0.1:8000", "broker.data": "there"}
    assert told(2, flags) == [
        {
            "broker.id": "5",
            "broker.data": "there/broker-5",
            "broker.listen": "[::1]:9000",
            "broker.http": "127.0.0.1:8000",
            "broker.rack": "this-host",
        },
        {
            "broker.id": "6",
            "broker.data": "there/broker-6",
            "broker.listen": "[::1]:9001",
            "broker.http": "127.0.0.1:8001",
            "broker.rack": "this-host",
        },
    ]


def test_the_first_of_them_may_come_from_the_environment() -> None:
    env = {"PENSTOCK_BROKER_ID": "7", "PENSTOCK_BROKER_LISTEN": "127.0.0.1:9500"}
    assert [(each["broker.id"], each["broker.listen"]) for each in told(2, {}, env)] == [
        ("7", "127.0.0.1:9500"),
        ("8", "127.0.0.1:9501"),
    ]


def test_the_ports_of_all_listeners_count_up() -> None:
    flags = {"broker.listen": "CLIENT://0.0.0.0:9092,INTER_BROKER://10.0.0.1:9192", "broker.advertised": "CLIENT://h:1"}
    assert [(each["broker.listen"], each["broker.advertised"]) for each in told(2, flags)] == [
        ("CLIENT://0.0.0.0:9092,INTER_BROKER://10.0.0.1:9192", "CLIENT://h:1"),
        ("CLIENT://0.0.0.0:9093,INTER_BROKER://10.0.0.1:9193", "CLIENT://h:2"),
    ]
    assert "overlap" in refusal(4, {"broker.listen": "A://127.0.0.1:9092,INTER_BROKER://127.0.0.1:9095"})


def test_advertised_ports_count_up() -> None:
    flags = {"broker.listen": "0.0.0.0:9092", "broker.advertised": "example.org:30000"}
    assert [each["broker.advertised"] for each in told(3, flags)] == [
        "example.org:30000",
        "example.org:30001",
        "example.org:30002",
    ]


def test_free_ports_stay_free_ports() -> None:
    assert [each["broker.listen"] for each in told(2, {"broker.listen": "127.0.0.1:0"})] == ["127.0.0.1:0"] * 2


@pytest.mark.parametrize("rack", ["zone-1", ""])
def test_a_rack_that_was_set_stays(rack: str) -> None:
    assert all("broker.rack" not in each for each in told(2, {"broker.rack": rack}))


def test_without_a_coordinator_there_is_one_broker() -> None:
    with pytest.raises(ConfigError, match=r"3 brokers need a ZooKeeper or a database.*--coordinator"):
        siblings(load(None, {}, {}), 3, "this-host")


@pytest.mark.parametrize("key", ["broker.listen", "broker.http", "broker.advertised"])
def test_ports_beyond_the_last_are_refused(key: str) -> None:
    assert told(2, {key: "127.0.0.1:65534"})
    assert f"{key} = '127.0.0.1:65534': 3 brokers" in refusal(3, {key: "127.0.0.1:65534"})


def test_ports_that_meet_are_refused() -> None:
    assert told(3, {"broker.listen": "127.0.0.1:8095", "broker.http": "127.0.0.1:8092"})
    assert told(4, {"broker.listen": "127.0.0.2:8095", "broker.http": "127.0.0.1:8092"})
    assert "overlap" in refusal(4, {"broker.listen": "127.0.0.1:8095", "broker.http": "127.0.0.1:8092"})
    assert "overlap" in refusal(4, {"broker.listen": "127.0.0.1:8092", "broker.http": "0.0.0.0:8095"})


def test_the_folder_of_a_single_broker_is_refused(tmp_path: Path) -> None:
    assert told(2, {"broker.data": str(tmp_path)})
    (tmp_path / "meta.json").write_text("{}")
    assert f"move its content to {tmp_path / 'broker-3'}" in refusal(
        2, {"broker.data": str(tmp_path), "broker.id": "3"}
    )


def test_what_is_common_to_all_is_on_every_command_line_and_their_own_wins() -> None:
    flags = COORDINATOR | {"broker.id": "1", "limits.connections": "5"}
    loaded = load(None, {"PENSTOCK_BROKER_RACK": "secret"}, flags)
    brokers = children(Given(Path("some.toml"), flags), siblings(loaded, 2, "this-host"))
    assert [broker.name for broker in brokers] == ["broker 1", "broker 2"]
    for number, broker in enumerate(brokers, start=1):
        words = " ".join(broker.command)
        assert "--config some.toml" in words
        assert "--set limits.connections=5" in words
        assert [word for word in broker.command if word.startswith("broker.id=")] == [f"broker.id={number}"]
        assert "secret" not in words


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_good_while() -> None:
    pauses, pause_s, seen = Pauses(first_s=1, longest_s=30, steady_ms=60_000), 0.0, []
    for _ in range(7):
        pause_s = pauses.next_s(pause_s, up_ms=500)
        seen.append(pause_s)
    assert seen == [1, 2, 4, 8, 16, 30, 30]
    assert pauses.next_s(pause_s, up_ms=60_000) == 1
