"""A standalone cluster of Spark on loopback: a master and workers, from the pip package."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pyspark

from support.class_archive import quick_jvm
from support.programs import dying_with_us, environment
from support.waiting import until

_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_PATIENCE_S = 90
_LOOPBACK = "127.0.0.1"


class SparkCluster:
    """Workers run a Python that has the libraries but not the package: what is shipped is what is run."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers = workers
        self.master = ""
        # Without site no .pth file is looked at, and the package is installed by one.
        self.python = folder / "python"
        self.python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
        self.python.chmod(0o755)
        self.library = sysconfig.get_path("purelib")

    def start(self) -> SparkCluster:
        log = self._launch("master.Master", "--host", _LOOPBACK, "--port", "0", "--webui-port", "0")
        started = until(lambda: _MASTER.search(log.read_text()), "the master is up", _PATIENCE_S)
        assert started is not None
        self.master = started[1]
        options = ["--host", _LOOPBACK, "--webui-port", "0", "--cores", "1", "--memory", "600m"]
        logs = [self._launch("worker.Worker", *options, self.master) for _ in range(self._workers)]
        until(
            lambda: all("Successfully registered" in each.read_text() for each in logs), "workers are up", _PATIENCE_S
        )
        return self

    def close(self) -> None:
        for process in self._processes:
            # Executors are children of their worker.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def kill_an_executor(self) -> int:
        """As a crash would; gives its process id once there is one."""

        def found() -> int | None:
            for process in self._processes[1:]:
                for child in _children(process.pid):
                    if b"CoarseGrainedExecutorBackend" in _command(child):
                        return child
            return None

        victim = until(found, "there is an executor", _PATIENCE_S)
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        return victim

    def _launch(self, name: str, *options: str) -> Path:
        log = self._folder / f"{len(self._processes)}.log"
        env = environment(
            {
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": quick_jvm(),
                "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            }
        )
        env |= {"SPARK_WORKER_DIR": str(self._folder / "work"), "SPARK_LOCAL_IP": _LOOPBACK, "SPARK_NO_DAEMONIZE": "1"}
        with log.open("wb") as output:
            command = [str(_CLASS), f"org.apache.spark.deploy.{name}", *options]
            process = subprocess.Popen(
                dying_with_us(command), stdout=output, stderr=output, env=env, start_new_session=True
            )
        self._processes.append(process)
        return log


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(each) for each in task.read_text().split()]
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
