"""Apache Kafka as the benchmark runs it, with a small heap: one KRaft node on free loopback ports."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from support.programs import required_program
from support.waiting import until

ROOT = Path(__file__).parents[2]
# The benchmark is a program beside the package; only its parent is missing on the path.
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from bench.servers.jars import fetch_jars  # noqa: E402
from bench.servers.kafka import DEFAULT_VERSION, KafkaServer  # noqa: E402
from bench.servers.process import ServerError, ServerProcess  # noqa: E402

CACHE = ROOT / ".cache" / "bench"
LIBS = CACHE / f"kafka-{DEFAULT_VERSION}" / "libs"
TOOLS = CACHE / f"kafka-tools-{DEFAULT_VERSION}"
"""What the server does not need."""
_TOOLS_PACKAGE = "org.apache.kafka.tools."
_SHORT_LIVED = ("-Xmx320m", "-Xms128m", "-XX:TieredStopAtLevel=1")
"""Compiling what runs for seconds costs more than it saves: half of the CPU of a start."""
_START_S = 90.0


def kafka_tool(main: str) -> tuple[str, ...]:
    """The command that runs one of Kafka's own tools, by its main class; skipped as `apache_kafka` is."""
    _obtained()
    folders = [LIBS]
    if main.startswith(_TOOLS_PACKAGE):
        _obtain(
            TOOLS / "libs", lambda: fetch_jars(TOOLS, [f"org.apache.kafka:kafka-tools:{DEFAULT_VERSION}"], alone=True)
        )
        folders.append(TOOLS / "libs")
    return ("java", *_SHORT_LIVED, "-cp", ":".join(f"{folder}/*" for folder in folders), main)


def _obtained() -> KafkaServer:
    required_program("java")
    server = KafkaServer(CACHE)
    _obtain(LIBS, server.obtain)
    return server


def _obtain(libs: Path, obtain: Callable[[], object]) -> None:
    if libs.exists():
        return
    required_program("mvn")
    try:
        obtain()
    except ServerError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@contextmanager
def apache_kafka(folder: Path) -> Iterator[str]:
    """The address of a running node. Without Java, or Maven for the first time, the test is skipped, in CI it fails."""
    server = _obtained()
    launch = server.prepare(folder)
    launch = replace(launch, command=server.command(folder / "server.properties", _SHORT_LIVED))
    process = ServerProcess(launch)
    try:
        until(lambda: _answers(launch.address, process), "Kafka answers", _START_S)
        yield launch.address
    finally:
        process.stop()


def _answers(address: str, process: ServerProcess) -> bool:
    process.check()
    try:
        return bool(AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=2).brokers)
    except KafkaException:
        return False
