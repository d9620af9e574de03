"""`penstock user`, and every other command with --command-config, against a broker that asks for a login."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from conftest import running_broker
from support.broker_process import BrokerProcess
from support.programs import PENSTOCK, run
from support.sasl import ADMIN, PASSWORD, sasl_settings


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    with running_broker(folder, sasl_settings(folder)) as process:
        yield process


def config(tmp_path: Path, user: str = ADMIN, password: str = PASSWORD) -> Path:
    file = tmp_path / f"{user}.properties"
    file.write_text(
        f"# how {user} connects\nsecurity.protocol=sasl_plaintext\nsasl.mechanism=SCRAM-SHA-512\n"
        f"sasl.username={user}\nsasl.password={password}\n"
    )
    return file


def penstock(broker: BrokerProcess, file: Path | None, *words: str, stdin: str = "") -> CompletedProcess[bytes]:
    options = [] if file is None else ["--command-config", str(file)]
    return run([PENSTOCK, "-b", broker.kafka, *options, *words], stdin.encode())


def done(broker: BrokerProcess, file: Path, *words: str, stdin: str = "") -> str:
    result = penstock(broker, file, *words, stdin=stdin)
    assert result.returncode == 0, result.stderr
    return result.stdout.decode()


def test_users(broker: BrokerProcess, tmp_path: Path, topic: str) -> None:
    admin = config(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("first\n")
    assert done(broker, admin, "user", "add", "alice", "--password-file", str(secret)) == "added user alice\n"
    again = penstock(broker, admin, "user", "add", "alice", stdin="x\n")
    assert again.returncode == 1 and b"already exists" in again.stderr
    listed = json.loads(done(broker, admin, "user", "list", "--json"))
    assert listed == [
        {"user": name, "iterations": {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}} for name in (ADMIN, "alice")
    ]
    first = config(tmp_path, "alice", "first")
    assert "@0" in done(broker, first, "send", topic, "hello")
    assert "hello" in done(broker, first, "tail", topic, "--from", "start")
    # Requests that the client library lacks go over a connection of our own.
    assert penstock(broker, first, "dbnode", "list").returncode == 0
    done(broker, admin, "user", "password", "alice", stdin="second\n")
    assert penstock(broker, first, "topic", "list").returncode == 1
    done(broker, config(tmp_path, "alice", "second"), "topic", "list")
    assert done(broker, admin, "user", "remove", "alice", "--yes") == "deleted user alice\n"
    assert penstock(broker, config(tmp_path, "alice", "second"), "topic", "list").returncode == 1
    gone = penstock(broker, admin, "user", "remove", "alice", "--yes")
    assert gone.returncode == 1 and b"no such user" in gone.stderr


def test_mistakes(broker: BrokerProcess, tmp_path: Path) -> None:
    admin = config(tmp_path)
    for words, reason in [
        (("user", "add", "carol", "--mechanism", "PLAIN"), "SCRAM-SHA-256"),
        (("user", "add", "carol"), "the password is empty"),
        (("user", "password", "carol"), "there is no user carol"),
        (("user", "add", "carol", "--password-file", str(tmp_path / "missing")), "cannot be read"),
    ]:
        result = penstock(broker, admin, *words)
        assert result.returncode in (1, 2) and reason in result.stderr.decode()
    broken = tmp_path / "broken"
    broken.write_text("no separator\n")
    assert b"line 1 is not NAME=VALUE" in penstock(broker, broken, "topic", "list").stderr
    assert penstock(broker, None, "topic", "list").returncode == 1


def test_the_first_password_may_come_from_the_environment(tmp_path: Path) -> None:
    settings = {name: value for name, value in sasl_settings(tmp_path).items() if "password" not in name}
    process = BrokerProcess(tmp_path, settings, env={"PENSTOCK_ADMIN_PASSWORD": "from outside"})
    try:
        process.start()
        users = "user", "list"
        assert ADMIN in done(process, config(tmp_path, ADMIN, "from outside"), *users)
        # Of a cluster that has users it says nothing.
        process.env = {"PENSTOCK_ADMIN_PASSWORD": "another one"}
        process.restart()
        assert ADMIN in done(process, config(tmp_path, ADMIN, "from outside"), *users)
        assert penstock(process, config(tmp_path, ADMIN, "another one"), *users).returncode == 1
        assert process.stop() == 0
    finally:
        process.kill()
