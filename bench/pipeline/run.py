"""What is asked: reading, keeping, keeping more and more, and keeping up with one partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.measure import Measure, Results
from bench.pipeline import topics
from bench.pipeline.connector import NAME
from bench.pipeline.engines import Engine
from bench.report.table import OURS

READ_GOAL = 0.7
KEEP_GOAL = 1.0
KEEPS_UP = 1.0
PARTITIONS = 2
SIZES = {"1 KiB": 1024, "100 B": 100}
ROW = 100
_SUSTAINED = {"1 KiB": 16, "100 B": 8}
"""How many times as many messages show what a producer and the archive can do for long. By default 8 million of each:
those of 1 KiB are more than the kernel keeps from the disk.
"""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Question:
    """One row of the report."""

    measure: Measure
    rounds: int = 1
    title: str = "pipeline"
    kind: str = "pipeline"
    partitions: int = PARTITIONS

    def measures(self) -> Sequence[Measure]:
        return (self.measure,)


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """How much is asked."""

    rows: Mapping[str, int]
    """Messages of each size."""
    rounds: int
    growth: Sequence[int]
    """Rows of the archives whose cost is compared."""

    def run(self, address: str, engines: Mapping[str, Engine], results: Results, tell: Tell) -> None:
        for name, size in SIZES.items():
            topic, rows = f"read-{size}", self.rows[name]
            tell(f"{rows:,} messages of {name}")
            topics.create(address, topic, PARTITIONS)
            topics.fill(address, topic, PARTITIONS, rows, size)
            read = _rate(f"read {size}", f"read a topic of {name} messages, all columns", READ_GOAL)
            keep = _rate(f"keep {size}", f"topic of {name} messages to disk: archive beside Parquet", KEEP_GOAL)
            self._compare(read, engines, lambda engine, t=topic, n=rows: engine.read_s(t, n), rows, results, tell)
            self._compare(keep, engines, lambda engine, t=topic, n=rows: engine.keep_s(t, n), rows, results, tell)
            topics.delete(address, topic)
        self._grow(address, engines[OURS], results, tell)
        self._keep_up(address, engines[OURS], results, tell)

    def _compare(
        self,
        measure: Measure,
        engines: Mapping[str, Engine],
        work: Callable[[Engine], float],
        rows: int,
        results: Results,
        tell: Tell,
    ) -> None:
        """In turns, after one round that does not count: a JVM is slow before it has compiled."""
        for number in range(self.rounds + 1):
            for name, engine in engines.items():
                tell(f"{measure.label}: {name}, {f'round {number} of {self.rounds}' if number else 'warming up'}")
                took = work(engine)
                if number:
                    results.add(Question(measure, self.rounds), name, {measure.key: rows / took})

    def _grow(self, address: str, engine: Engine, results: Results, tell: Tell) -> None:
        for rows in self.growth:
            topic = f"grow-{rows}"
            measure = _rate(f"grow {rows}", f"archive of {rows:,} messages of {ROW} B", None)
            tell(f"{measure.label}: sending")
            topics.create(address, topic, PARTITIONS)
            topics.fill(address, topic, PARTITIONS, rows, ROW)
            tell(measure.label)
            results.add(Question(measure), OURS, {measure.key: rows / engine.keep_s(topic, rows)})
            topics.delete(address, topic)

    def _keep_up(self, address: str, engine: Engine, results: Results, tell: Tell) -> None:
        """One partition: how fast a producer can send, and how fast the archive takes it."""
        for name, size in SIZES.items():
            rows = _SUSTAINED[name] * self.rows[name]
            sent = _rate(f"sent {size}", f"one partition, {name}: a producer sends", None)
            kept = _rate(f"kept {size}", f"one partition, {name}: the archive takes", None)
            share = Measure(
                key=f"share {size}",
                label=f"one partition, {name}: the archive's rate to the producer's",
                unit="",
                higher_is_better=True,
                bound=KEEPS_UP,
            )
            for number in range(self.rounds):
                topic = f"single-{size}-{number}"
                tell(f"one partition, {name}: round {number + 1} of {self.rounds}")
                topics.create(address, topic, 1)
                took = topics.fill(address, topic, 1, rows, size)
                archived = engine.keep_s(topic, rows)
                for measure, value in ((sent, rows / took), (kept, rows / archived), (share, took / archived)):
                    results.add(Question(measure), OURS, {measure.key: value})
                topics.delete(address, topic)


def _rate(key: str, label: str, goal: float | None) -> Measure:
    return Measure(key=key, label=label, unit="rows/s", higher_is_better=True, goal=goal)


PEER = NAME
