"""A database server and one that replicates from it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from support.stores import DatabaseServer, MariaDbProcess, PostgresProcess
from support.waiting import until


class Pair(Protocol):
    """`primary` takes writes and `replica` does not, until `promote`."""

    is_promoted: bool

    @property
    def primary(self) -> DatabaseServer: ...
    @property
    def replica(self) -> DatabaseServer: ...
    def start(self) -> Pair: ...

    def restart(self) -> None:
        """Both run again, and are equal; not if the replica was promoted."""
        ...

    def kill(self) -> None:
        """Ends both for good."""
        ...

    def create_database(self, name: str) -> tuple[str, str]:
        """Its address on both servers."""
        ...

    def until_equal(self) -> None:
        """Waits until the replica has all that the primary has."""
        ...

    def until_received(self) -> None:
        """Waits until the replica has got all that the primary has, applied or not."""
        ...

    def stop_applying(self) -> None:
        """From now on the replica is behind, but gets what it needs to go on."""
        ...

    def go_on_applying(self) -> None: ...

    def stop_receiving(self) -> None:
        """From now on the replica gets nothing."""
        ...

    def promote(self) -> None:
        """What the replica has not got by now is lost."""
        ...


class MariaDbPair:
    """`primary` takes writes and `replica` does not, until `promote`. `kill` ends both."""

    def __init__(self, folder: Path) -> None:
        self.primary = MariaDbProcess(folder / "1", options=_options(1))
        self.replica = MariaDbProcess(folder / "2", options=[*_options(2), "--read-only"])
        self.is_promoted = False

    def restart(self) -> None:
        """Both run again, and are equal; not if the replica was promoted."""
        for server in (self.primary, self.replica):
            server.kill()
            server.start()
        self.until_equal()

    def start(self) -> MariaDbPair:
        for server in (self.primary.start(), self.replica.start()):
            server.administer("reset master")
        self.primary.administer("create user repl@'127.0.0.1' identified by 'r'")
        self.primary.administer("grant replication slave on *.* to repl@'127.0.0.1'")
        self.replica.administer("set global gtid_slave_pos = ''")
        self.replica.administer(
            f"change master to master_host='127.0.0.1', master_port={self.primary.port}, master_user='repl',"
            " master_password='r', master_use_gtid=slave_pos, master_connect_retry=1"
        )
        self.replica.administer("start slave")
        self.until_equal()
        return self

    def kill(self) -> None:
        self.replica.kill()
        self.primary.kill()

    def create_database(self, name: str) -> tuple[str, str]:
        """Its address on both servers."""
        url = self.primary.create_database(name)
        self.until_equal()
        return url, url.replace(f":{self.primary.port}/", f":{self.replica.port}/")

    def until_equal(self) -> None:
        """Waits until the replica has all that the primary has now; brokers may write more meanwhile."""
        written = self._written()
        until(
            lambda: _number(self.replica.administer("select @@gtid_slave_pos")[0][0]) >= written,
            "the replica has everything",
        )

    def until_received(self) -> None:
        written = self._written()
        until(
            lambda: _number(self.replica.replication_status()["Gtid_IO_Pos"]) >= written,
            "the replica has got everything",
        )

    def _written(self) -> int:
        return _number(self.primary.administer("select @@gtid_binlog_pos")[0][0])

    def until_applied(self) -> None:
        """Waits until the replica has applied all that it was sent."""

        def is_applied() -> bool:
            names = ("Gtid_IO_Pos", "Read_Master_Log_Pos", "Exec_Master_Log_Pos", "Slave_SQL_Running_State")
            status = self.replica.replication_status()
            received, read, executed, doing = (status[name] for name in names)
            return read == executed and "has read all relay log" in str(doing) and bool(received)

        until(is_applied, "the replica has applied everything")

    def stop_applying(self) -> None:
        """From now on the replica is behind."""
        self.replica.administer("stop slave sql_thread")

    def go_on_applying(self) -> None:
        self.replica.administer("start slave sql_thread")

    def stop_replication(self) -> None:
        self.replica.administer("stop slave")

    def resume_replication(self) -> None:
        self.replica.administer("start slave")

    def promote_replica(self) -> None:
        """Fences the primary, and has the replica take writes."""
        self.primary.administer("set global read_only = on")
        self.replica.administer("stop slave")
        self.replica.administer("set global read_only = off")

    def stop_receiving(self) -> None:
        self.replica.administer("stop slave io_thread")

    def promote(self) -> None:
        """What the replica has not applied by now is lost."""
        self.is_promoted = True
        self.replica.administer("stop slave")
        self.replica.administer("reset slave all")
        self.replica.administer("set global read_only = off")

    def be_semi_synchronous(self, timeout_ms: int) -> None:
        """The primary commits only with the replica, unless that does not answer in time."""
        self.replica.administer("set global rpl_semi_sync_slave_enabled = on")
        self.replica.administer("stop slave io_thread")
        self.replica.administer("start slave io_thread")
        self.primary.administer(f"set global rpl_semi_sync_master_timeout = {timeout_ms}")
        self.primary.administer("set global rpl_semi_sync_master_wait_point = after_sync")
        self.primary.administer("set global rpl_semi_sync_master_enabled = on")
        until(self.is_semi_synchronous, "the replica acknowledges")

    def is_semi_synchronous(self) -> bool:
        ((_, clients),) = self.primary.administer("show status like 'Rpl_semi_sync_master_clients'")
        return int(clients) == 1


class PostgresPair:
    """By streaming replication."""

    def __init__(self) -> None:
        self.primary = PostgresProcess()
        self.replica = PostgresProcess()
        self.is_promoted = False

    def start(self) -> PostgresPair:
        self.primary.start()
        self.replica.follow(self.primary)
        self.until_equal()
        return self

    def restart(self) -> None:
        for server in (self.primary, self.replica):
            server.kill()
            server.start()
        self.until_equal()

    def kill(self) -> None:
        self.replica.remove()
        self.primary.remove()

    def create_database(self, name: str) -> tuple[str, str]:
        url = self.primary.create_database(name)
        self.until_equal()
        return url, url.replace(f":{self.primary.port}/", f":{self.replica.port}/")

    def until_equal(self) -> None:
        ((position,),) = self.primary.administer("select pg_current_wal_lsn()::text")
        reached = f"select pg_last_wal_replay_lsn() >= '{position}'"
        until(lambda: self.replica.administer(reached)[0][0], "the replica has everything")

    def until_received(self) -> None:
        ((position,),) = self.primary.administer("select pg_current_wal_lsn()::text")
        reached = f"select pg_last_wal_receive_lsn() >= '{position}'"
        until(lambda: self.replica.administer(reached)[0][0], "the replica has got everything")

    def stop_applying(self) -> None:
        self.replica.administer("select pg_wal_replay_pause()")
        paused = "select pg_get_wal_replay_pause_state() = 'paused'"
        until(lambda: self.replica.administer(paused)[0][0], "the replica applies nothing")

    def go_on_applying(self) -> None:
        self.replica.administer("select pg_wal_replay_resume()")

    def stop_receiving(self) -> None:
        self.replica.administer("alter system set primary_conninfo = ''")
        self.replica.administer("select pg_reload_conf()")
        until(lambda: not self.replica.administer("select 1 from pg_stat_wal_receiver"), "the replica gets nothing")

    def promote(self) -> None:
        self.is_promoted = True
        self.replica.administer("select pg_promote()")


def _number(position: str) -> int:
    """How many transactions a position has behind it: 17 of 0-1-17."""
    return int(position.rpartition("-")[2] or 0)


def _options(number: int) -> list[str]:
    return [f"--server-id={number}", "--log-bin=binlog", "--binlog-format=ROW", "--log-slave-updates"]
