"""Commands that need no broker: settings, usage errors, a broker that is not there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.main import run
from penstock.cli.serve.welcome import welcome
from penstock.config.broker import BROKER_SETTINGS
from penstock.config.topic import TOPIC_SETTINGS

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)


def failed(capsys: Captured, *arguments: str, code: int = 1) -> str:
    """The one line a failing command says."""
    assert run(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("penstock: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("penstock: ").rstrip("\n")


def test_config_shows_every_setting_with_origin_and_meaning(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[limits]\nconnections = 5\n[topic]\nretention.ms = 7\n")
    monkeypatch.setenv("PENSTOCK_BROKER_ID", "3")
    assert run(["config", "--config", str(file), "--json"]) == 0
    shown = {each["key"]: each for each in json.loads(capsys.readouterr().out)}
    assert set(shown) == {*BROKER_SETTINGS, *(f"topic.{name}" for name in TOPIC_SETTINGS)}
    assert all(each["doc"] for each in shown.values())
    picked = {
        key: (shown[key]["value"], shown[key]["origin"])
        for key in ("limits.connections", "topic.retention.ms", "broker.id", "broker.listen", "broker.rack")
    }
    assert picked == {
        "limits.connections": ("5", f"file {file}"),
        "topic.retention.ms": ("7", f"file {file}"),
        "broker.id": ("3", "environment PENSTOCK_BROKER_ID"),
        "broker.listen": ("127.0.0.1:9092", "default"),
        "broker.rack": ("", "default"),
    }


def test_config_as_a_table_is_not_cut_in_a_pipe(capsys: Captured) -> None:
    assert run(["config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["KEY", "VALUE", "ORIGIN", "MEANING"]
    assert len(lines) == 1 + len(BROKER_SETTINGS) + len(TOPIC_SETTINGS)
    assert any(line.rstrip().endswith(BROKER_SETTINGS["limits.frame_bytes"].doc) for line in lines)


def test_config_topic_lists_every_topic_setting(capsys: Captured) -> None:
    assert run(["config", "topic", "--json"]) == 0
    shown = {each["key"]: each for each in json.loads(capsys.readouterr().out)}
    assert set(shown) == set(TOPIC_SETTINGS)
    assert shown["retention.ms"]["default"] == "1209600000"
    assert run(["config", "topic"]) == 0
    assert "cleanup.policy" in capsys.readouterr().out


def test_config_check_says_whether_a_file_is_right(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[broker]\nid = 3\n")
    assert run(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file} is valid: 1 setting\n"
    file.write_text("[broker]\nidd = 3\n")
    assert "the nearest known one is broker.id" in failed(capsys, "config", "check", str(file))


def test_config_check_leaves_the_environment_out(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("")
    monkeypatch.setenv("PENSTOCK_BROKER_ID", "many")
    assert run(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file} is valid: 0 settings\n"
    assert "environment PENSTOCK_BROKER_ID" in failed(capsys, "config")


def test_serve_refuses_bad_settings_before_it_starts_anything(capsys: Captured, tmp_path: Path) -> None:
    data = tmp_path / "data"
    serve = ("serve", "--data", str(data))
    assert "broker.listen = 'nowhere'" in failed(capsys, *serve, "--listen", "nowhere")
    assert "limits.frame_bytes" in failed(capsys, *serve, "--set", "limits.frame_byte=1")
    assert "topic setting retention.m" in failed(capsys, *serve, "--set", "topic.retention.m=1")
    assert "logging.level = 'loud'" in failed(capsys, *serve, "--log-level", "loud")
    assert "cannot be read" in failed(capsys, *serve, "--config", str(tmp_path / "absent.toml"))
    assert not data.exists()


def test_one_key_given_twice_is_refused(capsys: Captured) -> None:
    twice = ("--set", "broker.id=2")
    assert "is given by its own option too" in failed(capsys, "serve", "--id", "1", *twice, code=2)
    assert "broker.id is given twice" in failed(capsys, "serve", *twice, *twice, code=2)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--nope",), "No such option: --nope"),
        (("nope",), "nope"),
        (("topic", "create"), "Missing argument"),
        (("topic", "create", "t", "--config", "retention.ms"), "'retention.ms' is not NAME=VALUE"),
        (("topic", "alter", "t"), "give --set or --unset"),
        (("topic", "alter", "t", "--set", "a=1", "--unset", "a"), "a is given twice"),
        (("topic", "add-partitions", "t"), "either --total or --add"),
        (("topic", "add-partitions", "t", "--total", "3", "--add", "1"), "either --total or --add"),
        (("topic", "create", "t", "--partitions", "0"), "'--partitions'"),
        (("send", "t", "m", "--header", "=x"), "'=x' is not NAME=VALUE"),
        (("send", "t", "m", "--size", "3"), "--size"),
        (("send", "t", "m", "--file", "f"), "messages or --file"),
        (("send", "t", "m", "--key", "k", "--key-separator", ":"), "--key-separator"),
        (("send", "t", "m", "--compression", "brotli"), "brotli"),
        (("tail", "t", "--from", "soon"), "'soon': expected beginning, end"),
        (("tail", "t", "--format", "lien"), "'lien': expected line, json"),
    ],
)
def test_a_wrong_call_exits_with_two_and_says_what_is_wrong(
    capsys: Captured, arguments: tuple[str, ...], complaint: str
) -> None:
    assert complaint in failed(capsys, *arguments, code=2)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nothing listens, and nothing else will while the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "list"),
        ("topic", "create", "t"),
        ("topic", "describe", "t"),
        ("topic", "alter", "t", "--unset", "retention.ms"),
        ("topic", "delete", "t", "--yes"),
        ("topic", "add-partitions", "t", "--add", "1"),
        ("send", "t", "m"),
        ("tail", "t"),
    ],
)
def test_an_absent_broker_is_said_in_one_line_with_how_to_start_one(
    capsys: Captured, nobody: str, command: tuple[str, ...]
) -> None:
    expected = f"no broker answers ({nobody}: Connection refused); start one with: penstock serve --listen {nobody}"
    assert failed(capsys, *command, "--bootstrap", nobody) == expected
    assert failed(capsys, "-b", nobody, *command) == expected


def test_the_broker_can_be_named_by_the_environment(
    capsys: Captured, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", nobody)
    assert nobody in failed(capsys, "topic", "list")
    assert "127.0.0.1:x" in failed(capsys, "topic", "list", "-b", "127.0.0.1:x")


def test_version_and_help_are_printed(capsys: Captured) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("penstock ")
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in ("serve", "topic", "send", "tail", "config"))


def test_the_command_starts_without_the_heavy_libraries() -> None:
    program = (
        "import sys, penstock.cli.main; "
        "print([name for name in ('confluent_kafka', 'uvloop', 'rich.table', 'rich.progress') "
        "if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"


def test_no_garbage_is_collected_while_a_command_is_loaded() -> None:
    program = (
        "import gc, penstock.cli.main as main; "
        "collections = []; "
        "gc.callbacks.append(lambda phase, info: collections.append(phase)); "
        "main.build_app(['serve']); "
        "print(collections, gc.isenabled())"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[] True"


def test_the_welcome_names_addresses_folder_and_what_to_try() -> None:
    text = welcome("127.0.0.1:9092", "127.0.0.1:8092", "/var/lib/penstock")
    for part in ("127.0.0.1:9092", "http://127.0.0.1:8092", "/var/lib/penstock"):
        assert part in text
    for command in ("penstock topic create", "penstock send", "penstock tail", "kcat -b 127.0.0.1:9092"):
        assert command in text
    assert " -b " not in text.replace("kcat -b", "")


def test_the_commands_to_try_reach_a_broker_on_another_port() -> None:
    text = welcome("127.0.0.1:19092", "127.0.0.1:8092", "data", "mysql://me@db:3306/orders")
    assert "  data            data\n  database        mysql://me@db:3306/orders\n" in text
    assert 'penstock send orders "hello" -b 127.0.0.1:19092' in text
