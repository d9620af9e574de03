"""`penstock serve` and `penstock config` as they are run: starting, refusing to start, stopping."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from support.broker_process import BrokerProcess
from support.programs import PENSTOCK, dying_with_us, environment, run
from support.waiting import until
from support.wire import Wire, batch_of

BrokerFactory = Callable[..., BrokerProcess]


def complaint(done: CompletedProcess[bytes]) -> str:
    assert done.returncode == 1, (done.stdout, done.stderr)
    text = done.stderr.decode()
    assert "Traceback" not in text
    return text


def serve(data: Path, *options: str, listen: str = "127.0.0.1:0", http: str = "127.0.0.1:0") -> CompletedProcess[bytes]:
    """Runs a broker that is expected not to start."""
    return run([PENSTOCK, "serve", "--data", str(data), "--listen", listen, "--http", http, *options])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_broker_cleanly(new_broker: BrokerFactory, topic: str, number: signal.Signals) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"kept"))
        broker.signal(number)
        assert broker.stop() == 0
    assert "stopped" in broker.log
    broker.start()
    with Wire(broker.address) as wire:
        assert b"kept" in wire.fetch(topic, 0)["records"]


def test_a_broker_that_waits_for_its_cluster_can_be_stopped(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        coordinator = f"zk://127.0.0.1:{mute.getsockname()[1]}/penstock"
        command = [PENSTOCK, "serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0", "--coordinator", coordinator]
        process = subprocess.Popen(dying_with_us(command), stderr=subprocess.PIPE, env=environment())
        until((tmp_path / "lock").exists, "the broker holds its folder")
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0
    assert b"stopped before the broker was ready" in said


def test_the_welcome_names_what_can_be_tried(broker: BrokerProcess) -> None:
    assert broker.output.startswith("Penstock is ready.\n")
    assert f'penstock send orders "hello" -b {broker.kafka}' in broker.output


def test_a_data_folder_in_use_is_refused(broker: BrokerProcess) -> None:
    text = complaint(serve(broker.data))
    assert str(broker.data) in text
    assert "use" in text


def test_a_data_folder_of_another_broker_is_refused(new_broker: BrokerFactory) -> None:
    broker = new_broker()
    broker.stop()
    assert str(broker.data) in complaint(serve(broker.data, "--id", "2"))


def test_a_port_in_use_is_named(broker: BrokerProcess, tmp_path: Path) -> None:
    assert f"broker.listen = '{broker.kafka}' cannot be listened on" in complaint(serve(tmp_path, listen=broker.kafka))
    assert f"broker.http = '{broker.http}' cannot be listened on" in complaint(serve(tmp_path, http=broker.http))


def test_a_broker_that_could_not_start_leaves_its_folder_free(new_broker: BrokerFactory, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        complaint(serve(tmp_path / "data", http=f"127.0.0.1:{taken.getsockname()[1]}"))
    process = BrokerProcess(tmp_path)
    try:
        process.start()
        assert process.stop() == 0
    finally:
        process.kill()


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert str(tmp_path / "file") in complaint(serve(tmp_path / "file"))


@pytest.mark.parametrize(
    ("setting", "nearest"),
    [("limits.frame_byte=5", "limits.frame_bytes"), ("topic.retention.msec=5", "retention.ms")],
)
def test_an_unknown_setting_is_refused_with_the_nearest(tmp_path: Path, setting: str, nearest: str) -> None:
    assert nearest in complaint(serve(tmp_path, "--set", setting))


def test_an_unknown_setting_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[limits]\nconections = 5\n")
    text = complaint(serve(tmp_path / "data", "--config", str(file)))
    assert str(file) in text
    assert "limits.connections" in text
    done = run([PENSTOCK, "serve"], env={"PENSTOCK_LIMITS_CONECTIONS": "5"})
    assert "PENSTOCK_LIMITS_CONNECTIONS" in complaint(done)


def test_a_value_out_of_bounds_says_what_is_allowed(tmp_path: Path) -> None:
    text = complaint(serve(tmp_path, "--set", "limits.connections=0"))
    assert "limits.connections" in text
    assert "allowed" in text


def test_settings_of_a_file_reach_the_broker(new_broker: BrokerFactory, tmp_path: Path, topic: str) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[broker]\ndefault_partitions = 4\nid = 7\n[topic]\n"max.message.bytes" = 500\n')
    broker = new_broker(options=["--config", str(file)])
    done = run([PENSTOCK, "topic", "create", topic, "--json", "-b", broker.kafka])
    assert json.loads(done.stdout)["partitions"] == 4
    with Wire(broker.address) as wire:
        assert wire.metadata(topic)["partitions"][0]["leader_id"] == 7
        assert wire.produce(topic, batch_of(b"x" * 600))["error_code"] == 10


def test_config_shows_values_with_their_origin(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[limits]\nconnections = 5\n[topic]\n"retention.ms" = 1000\n')
    done = run([PENSTOCK, "config", "--config", str(file), "--json"], env={"PENSTOCK_BROKER_ID": "9"})
    shown = {each["key"]: (each["value"], each["origin"]) for each in json.loads(done.stdout)}
    assert shown["limits.connections"] == ("5", f"file {file}")
    assert shown["topic.retention.ms"] == ("1000", f"file {file}")
    assert shown["broker.id"] == ("9", "environment PENSTOCK_BROKER_ID")
    assert shown["broker.listen"] == ("127.0.0.1:9092", "default")


def test_config_check_judges_a_file(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[limits]\nconnections = 5\n")
    assert run([PENSTOCK, "config", "check", str(file)]).stdout.decode() == f"{file} is valid: 1 setting\n"
    file.write_text("[limits]\nconnections = 'many'\n")
    assert "limits.connections" in complaint(run([PENSTOCK, "config", "check", str(file)]))
    file.write_text("[limits\n")
    assert str(file) in complaint(run([PENSTOCK, "config", "check", str(file)]))


def test_config_topic_lists_what_a_topic_can_be_told() -> None:
    listed = json.loads(run([PENSTOCK, "config", "topic", "--json"]).stdout)
    assert "retention.ms" in {each["key"] for each in listed}
