"""Apache Kafka as the benchmark runs it, with a small heap: one KRaft node on free loopback ports."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
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

from bench.servers.kafka import KafkaServer  # noqa: E402
from bench.servers.process import ServerError, ServerProcess  # noqa: E402

CACHE = ROOT / ".cache" / "bench"
_HEAP = ("-Xmx320m", "-Xms128m")
_START_S = 90.0


@contextmanager
def apache_kafka(folder: Path) -> Iterator[str]:
    """The address of a running node. Without Java, or Maven for the first time, the test is skipped, in CI it fails."""
    required_program("java")
    server = KafkaServer(CACHE)
    if not (CACHE / f"kafka-{server.version}" / "libs").exists():
        required_program("mvn")
        try:
            server.obtain()
        except ServerError as error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(str(error))
    launch = server.prepare(folder)
    launch = replace(launch, command=server.command(folder / "server.properties", _HEAP))
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
