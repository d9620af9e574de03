"""`penstock dbnode` as it is run: database groups of a real broker, with real databases."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.admin import AdminError, Cluster
from penstock.sql.passwords import new_key
from support.broker_process import BrokerProcess
from support.commands import complaint, said, told
from support.programs import PENSTOCK, environment, in_terminal, run
from support.replicated import MariaDbPair
from support.stores import NewDatabase
from support.waiting import PATIENCE_S, until

from .conftest import NewSqlBroker

Penstock = Callable[..., CompletedProcess[bytes]]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(new_key())
    path.chmod(0o600)
    return path


@pytest.fixture
def url(new_database: NewDatabase) -> str:
    """Of the database that the brokers have."""
    return new_database("sqlite")


@pytest.fixture
def broker(sql_broker: NewSqlBroker, url: str, key_file: Path) -> BrokerProcess:
    return sql_broker(url, **{"sql.key_file": str(key_file)})


@pytest.fixture
def penstock(broker: BrokerProcess) -> Penstock:
    def call(*arguments: str, **env: str) -> CompletedProcess[bytes]:
        return run([PENSTOCK, *arguments, "-b", broker.kafka], env=env)

    return call


def groups(penstock: Penstock) -> dict[str, dict[str, Any]]:
    return {each["group"]: each for each in told(penstock("dbnode", "list", "--json"))}


def create(broker: BrokerProcess, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_S)


class TestFiles:
    def test_a_group_is_added_listed_drained_and_removed(
        self, penstock: Penstock, broker: BrokerProcess, new_database: NewDatabase
    ) -> None:
        url = new_database("sqlite")
        path = url.removeprefix("sqlite:///")
        assert said(penstock("dbnode", "add", "orders", "--primary", url)) == (
            f"added database group orders: primary {path}, no replicas\n"
        )
        listed = said(penstock("dbnode", "list"))
        assert listed.splitlines()[0].split() == ["GROUP", "SERVER", "ROLE", "STATE", "LAG", "PARTITIONS", "DRAINING"]
        assert set(groups(penstock)) == {"default", "orders"}
        create(broker, "t", 4)
        assert [groups(penstock)[name]["partitions"] for name in ("default", "orders")] == [2, 2]
        refused = complaint(penstock("dbnode", "remove", "orders"))
        assert "database group orders was not removed: The group 'orders' has 2 partitions (t-" in refused
        assert "penstock dbnode drain orders" in refused
        drained = told(penstock("dbnode", "drain", "orders", "--json"))
        assert drained["draining"] is True
        assert said(penstock("dbnode", "drain", "orders", "--undo")) == "database group orders takes partitions again\n"
        said(penstock("topic", "delete", "t", "--yes"))
        assert said(penstock("dbnode", "drain", "orders", "--wait")) == (
            "database group orders is empty; remove it with: penstock dbnode remove orders\n"
        )
        assert said(penstock("dbnode", "remove", "orders")) == "removed database group orders\n"
        assert set(groups(penstock)) == {"default"}

    def test_a_group_is_there_after_a_restart_and_can_be_added_again_after_its_removal(
        self, penstock: Penstock, broker: BrokerProcess, new_database: NewDatabase
    ) -> None:
        url = new_database("sqlite")
        said(penstock("dbnode", "add", "orders", "--primary", url))
        broker.stop()
        broker.start()
        assert set(groups(penstock)) == {"default", "orders"}
        said(penstock("dbnode", "remove", "orders"))
        said(penstock("dbnode", "add", "billing", "--primary", url))
        assert set(groups(penstock)) == {"default", "billing"}

    def test_what_cannot_be_added_is_said_in_a_line(
        self, penstock: Penstock, new_database: NewDatabase, tmp_path: Path
    ) -> None:
        url, other = new_database("sqlite"), new_database("sqlite")
        said(penstock("dbnode", "add", "orders", "--primary", url))
        for arguments, words in (
            (["orders", "--primary", other], "there is a database group orders already"),
            (["default", "--primary", other], "there is a database group default already"),
            (["Billing", "--primary", other], "cannot be the name"),
            (["billing", "--primary", url], "is a server of the group 'orders' already"),
            (["billing", "--primary", other, "--replica", url], "is a server of the group"),
            (["billing", "--primary", f"sqlite:///{tmp_path}/no/folder/a.db"], "cannot be used"),
        ):
            assert words in complaint(penstock("dbnode", "add", *arguments))
        for arguments, words in (
            (["billing"], "give the address of the primary"),
            (["billing", "--primary", "oracle://x"], "a database address begins with"),
            (["billing", "--primary", "mysql://me:s3cr3t@host"], "name one database"),
            (["billing", "--primary", url, "--primary-file", str(tmp_path)], "both given"),
        ):
            text = complaint(penstock("dbnode", "add", *arguments), code=2)
            assert words in text
            assert "s3cr3t" not in text
        assert set(groups(penstock)) == {"default", "orders"}

    def test_what_is_not_there_is_said_in_a_line(self, penstock: Penstock) -> None:
        for arguments in (
            ["test", "orders"],
            ["drain", "orders"],
            ["remove", "orders"],
            ["promote", "orders", "host:3306", "--yes"],
            ["alter", "orders", "--primary", "sqlite:///a.db"],
        ):
            assert "There is no database group 'orders'" in complaint(penstock("dbnode", *arguments))

    def test_a_broker_without_the_key_adds_nothing(
        self, sql_broker: NewSqlBroker, new_database: NewDatabase, tmp_path: Path
    ) -> None:
        broker = sql_broker(new_database("sqlite"))
        done = run([PENSTOCK, "dbnode", "add", "orders", "--primary", new_database("sqlite"), "-b", broker.kafka])
        assert "set sql.key_file on all brokers" in complaint(done)

    def test_a_broker_without_a_database_has_no_groups(self, sql_broker: NewSqlBroker, tmp_path: Path) -> None:
        broker = BrokerProcess(tmp_path / "plain", {"broker.id": 1}).start()
        try:
            done = run([PENSTOCK, "dbnode", "list", "-b", broker.kafka])
            assert (done.returncode, done.stdout) == (0, b"")
            assert b"no database groups" in done.stderr
        finally:
            broker.kill()

    def test_another_key_is_found_out_at_the_start_and_can_be_taken_into_use(
        self, penstock: Penstock, broker: BrokerProcess, new_database: NewDatabase, key_file: Path
    ) -> None:
        orders = new_database("sqlite")
        said(penstock("dbnode", "add", "orders", "--primary", orders))
        broker.stop()
        key_file.write_text(new_key())
        broker.start()
        assert "cannot use database groups" in broker.log
        create(broker, "t", 4)
        assert [groups(penstock)[name]["partitions"] for name in ("default", "orders")] == [4, 0]
        # The passwords are given again, with the new key.
        said(penstock("dbnode", "alter", "orders", "--primary", orders))
        broker.stop()
        broker.start()
        create(broker, "u", 4)
        assert [groups(penstock)[name]["partitions"] for name in ("default", "orders")] == [6, 2]

    def test_brokers_with_different_keys_add_nothing_and_one_without_a_key_leads_nothing_in_a_group(
        self,
        penstock: Penstock,
        broker: BrokerProcess,
        sql_broker: NewSqlBroker,
        url: str,
        new_database: NewDatabase,
        tmp_path: Path,
    ) -> None:
        (tmp_path / "other").write_text(new_key())
        second = sql_broker(url, 2, **{"sql.key_file": str(tmp_path / "other")})
        orders = new_database("sqlite")
        assert "Broker 2 has another key" in complaint(penstock("dbnode", "add", "orders", "--primary", orders))
        second.stop()
        third = sql_broker(url, 3)
        said(penstock("dbnode", "add", "orders", "--primary", orders))
        create(broker, "t", 6)
        assert [groups(penstock)[name]["partitions"] for name in ("default", "orders")] == [3, 3]

        def leaders() -> list[int]:
            (described,) = told(penstock("topic", "describe", "t", "--json"))
            return sorted(each["leader"] for each in described["partitions"])

        # The controller evens out what other topics have made uneven.
        until(lambda: leaders() == [1, 1, 1, 3, 3, 3], "the broker without a key leads what is in the default group")
        # Asked by anybody, all brokers tell the same.
        assert {group.name for group in Cluster(third.kafka).databases.list()} == {"default", "orders"}

    def test_a_key_file_that_is_wrong_keeps_the_broker_from_starting(
        self, sql_broker: NewSqlBroker, new_database: NewDatabase, tmp_path: Path
    ) -> None:
        (tmp_path / "wrong").write_text("no key")
        settings = {"sql.key_file": str(tmp_path / "wrong"), "sql.url": new_database("sqlite")}
        options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        data = str(tmp_path / "data")
        done = run([PENSTOCK, "serve", "--data", data, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *options])
        assert "sql.key_file" in complaint(done)
        assert "penstock dbnode key" in done.stderr.decode()

    def test_a_new_key_is_printed(self) -> None:
        one, other = (said(run([PENSTOCK, "dbnode", "key"])) for _ in range(2))
        assert one != other
        assert len(one.strip()) == 44


class TestAddresses:
    def test_files_and_a_variable_hold_addresses_too(
        self, penstock: Penstock, new_database: NewDatabase, tmp_path: Path
    ) -> None:
        one, other = new_database("sqlite"), new_database("sqlite")
        (tmp_path / "url").write_text(f"{one}\n")
        said(penstock("dbnode", "add", "one", "--primary-file", str(tmp_path / "url")))
        said(penstock("dbnode", "add", "other", PENSTOCK_DATABASE_SERVERS=other))
        assert set(groups(penstock)) == {"default", "one", "other"}
        assert "cannot be read" in complaint(penstock("dbnode", "add", "x", "--primary-file", str(tmp_path / "gone")))

    def test_a_password_does_not_stay_on_the_command_line(self, broker: BrokerProcess) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"mysql://penstock:s3cr3t@127.0.0.1:{silent.getsockname()[1]}/db"
            command = [PENSTOCK, "dbnode", "add", "orders", "--primary", url, "-b", broker.kafka]
            with subprocess.Popen(
                command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as process:
                # The broker has connected: the command waits for its answer.
                connection, _ = silent.accept()
                line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
                connection.close()
                _, errors = process.communicate(timeout=PATIENCE_S)
        assert b"dbnode" in line
        assert b"s3cr3t" not in line
        assert b"s3cr3t" not in errors
        assert b"database group orders was not added" in errors
        assert "s3cr3t" not in broker.log


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[MariaDbPair]:
    pair = MariaDbPair(tmp_path / "pair")
    try:
        yield pair.start()
    finally:
        pair.kill()


def test_a_primary_and_its_replica_change_places(penstock: Penstock, broker: BrokerProcess, pair: MariaDbPair) -> None:
    primary, replica = pair.create_database("orders")
    here, there = (f"127.0.0.1:{server.port}" for server in (pair.primary, pair.replica))
    assert said(penstock("dbnode", "add", "orders", "--primary", primary, "--replica", replica)) == (
        f"added database group orders: primary {here}, replicas {there}\n"
    )
    listed = said(penstock("dbnode", "list"))
    assert "penstock:penstock" not in listed
    assert f"no server other:1; it has {here}, {there}" in complaint(
        penstock("dbnode", "promote", "orders", "other:1", "--yes")
    )
    # What takes no writes is not made the primary by mistake.
    assert "takes no writes" in complaint(penstock("dbnode", "promote", "orders", there, "--yes"))
    assert "pass --yes" in complaint(penstock("dbnode", "promote", "orders", there))
    pair.promote_replica()
    code, screen = in_terminal([PENSTOCK, "dbnode", "promote", "orders", there, "-b", broker.kafka], "y\n")
    assert code == 0, screen
    assert f"{there} is the primary of database group orders" in screen
    found = groups(penstock)["orders"]
    assert found["generation"] == 1
    assert [(each["server"], each["role"]) for each in found["servers"]] == [(here, "replica"), (there, "primary")]
    # Now the servers are these, and the former primary does not replicate from the new one.
    text = complaint(penstock("dbnode", "alter", "orders", "--primary", replica, "--replica", primary))
    assert "does not replicate from" in text
    assert said(penstock("dbnode", "alter", "orders", "--primary", replica)) == (
        f"changed database group orders: primary {there}, no replicas\n"
    )
    with pytest.raises(AdminError, match="have to include its primary"):
        Cluster(broker.kafka).databases.set_servers("orders", [primary])
