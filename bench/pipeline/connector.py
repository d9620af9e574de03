"""Spark's own Kafka connector, by its coordinates through Maven.

Not every version of Spark has its connector published; then the newest that is takes its place. Nor does every mirror
of Maven Central have the part of it that deals with delegation tokens; then a stand-in does.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pyspark

from bench.pipeline.no_tokens import compile_stand_in
from bench.servers.jars import fetch_jars
from bench.servers.process import ServerError

NAME = "Spark's Kafka connector"
_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_NEWEST_KNOWN = "4.2.0"
# What the connector needs besides the tokens, in the versions that its newest known one names.
_NEEDED = ("org.apache.kafka:kafka-clients:3.9.2", "org.apache.commons:commons-pool2:2.13.1")


class Connector:
    """The connector's jars."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self.version = pyspark.__version__
        self.jars: list[Path] = []
        self.note = ""

    def obtain(self) -> None:
        """The connector of this Spark; else the newest known; else that one in parts."""
        parts = self._cache / f"spark-kafka-{_NEWEST_KNOWN}-parts"
        if not parts.exists():
            for version in dict.fromkeys((pyspark.__version__, _NEWEST_KNOWN)):
                with suppress(ServerError):
                    self.jars = _jars(fetch_jars(self._cache / f"spark-kafka-{version}", [f"{_CONNECTOR}:{version}"]))
                    self.version = version
                    return
        found = _jars(fetch_jars(parts, [f"{_CONNECTOR}:{_NEWEST_KNOWN}", *_NEEDED], alone=True))
        stand_in = parts / "no-tokens.jar"
        if not stand_in.exists():
            compile_stand_in(stand_in, Path(pyspark.__file__).parent / "jars")
        self.jars, self.version = [*found, stand_in], _NEWEST_KNOWN
        self.note = (
            f"The connector is {_NEWEST_KNOWN}, unchanged, on Spark {pyspark.__version__}; its part for delegation "
            "tokens, which Maven did not have, is a stand-in that hands settings on."
        )


def _jars(folder: Path) -> list[Path]:
    """Without those that Spark brings itself."""
    brought = {path.name.rpartition("-")[0] for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    return sorted(path for path in folder.glob("*.jar") if path.name.rpartition("-")[0] not in brought)
