"""What is asked: reading, keeping, keeping more and more, and keeping up with one partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from bench.measure import Measure, Results
from bench.pipeline import topics
from bench.pipeline.connector import NAME
from bench.pipeline.engines import Engine, OurSource, RunningArchive
from bench.report.table import OURS

READ_GOAL = 0.7
KEEP_GOAL = 1.0
KEEPS_UP = 1.0
PARTITIONS = 2
SIZES = {"1 KiB": 1024, "100 B": 100}
ROW = 100
_TURN = {"1 KiB": 8, "100 B": 4}
"""How many times as many messages a turn has that shows what a producer and the archive can do for long. By default
those of 1 KiB are 20 GB in all, which is more than disks and those who lend them take in at once.
"""

Tell = Callable[[str], None]


Work = Callable[[Engine], float]
"""Gives the seconds that it took."""


def _reading(topic: str, rows: int) -> Work:
    return lambda engine: engine.read_s(topic, rows)


def _keeping(topic: str, rows: int) -> Work:
    return lambda engine: engine.keep_s(topic, rows)


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
    turns: int
    """Of a producer and the archive that has to keep up with it."""

    def run(self, address: str, ours: OurSource, peers: Mapping[str, Engine], results: Results, tell: Tell) -> None:
        engines = {OURS: ours, **peers}
        for name, size in SIZES.items():
            topic, rows = f"read-{size}", self.rows[name]
            tell(f"{rows:,} messages of {name}")
            topics.create(address, topic, PARTITIONS)
            topics.fill(address, topic, PARTITIONS, rows, size)
            read = _rate(f"read {size}", f"read a topic of {name} messages, all columns", READ_GOAL)
            keep = _rate(f"keep {size}", f"topic of {name} messages to disk: archive beside Parquet", KEEP_GOAL)
            self._compare(read, engines, _reading(topic, rows), rows, results, tell)
            self._compare(keep, engines, _keeping(topic, rows), rows, results, tell)
            topics.delete(address, topic)
        self._grow(address, ours, results, tell)
        self._keep_up(address, ours, results, tell)

    def _compare(
        self,
        measure: Measure,
        engines: Mapping[str, Engine],
        work: Work,
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

    def _keep_up(self, address: str, engine: OurSource, results: Results, tell: Tell) -> None:
        """How fast a producer can fill one partition, and how fast the archive takes it."""
        for name, size in SIZES.items():
            topic = f"single-{size}"
            topics.create(address, topic, 1)
            rows = _TURN[name] * self.rows[name]
            with engine.archiving(topic) as archive:
                self._in_turns(address, topic, name, rows, archive, results, tell)
                self._at_once(address, topic, name, self.turns * rows // 2, archive, results, tell)
            topics.delete(address, topic)

    def _in_turns(
        self, address: str, topic: str, name: str, rows: int, archive: RunningArchive, results: Results, tell: Tell
    ) -> None:
        """Each has the machine for itself. The first turn does not count: who archives for long begins once."""
        sent = _rate(f"sent {name}", f"one partition, {name}, in turns: a producer sends", None)
        kept = _rate(f"kept {name}", f"one partition, {name}, in turns: the archive takes", None)
        share = Measure(
            key=f"share {name}",
            label=f"one partition, {name}: the archive's rate to the producer's",
            unit="",
            higher_is_better=True,
            bound=KEEPS_UP,
        )
        turns: list[tuple[float, float]] = []
        for number in range(self.turns + 1):
            tell(f"one partition, {name}: {f'turn {number} of {self.turns}' if number else 'warming up'}")
            took = topics.fill(address, topic, 1, rows, SIZES[name])
            archived = archive.take(rows).seconds
            if number:
                turns.append((took, archived))
                results.add(Question(sent, self.turns), OURS, {sent.key: rows / took})
                results.add(Question(kept, self.turns), OURS, {kept.key: rows / archived})
        # Of all turns together: what else the machine does meets now the one, now the other.
        whole = sum(took for took, _ in turns) / sum(archived for _, archived in turns)
        results.add(Question(share), OURS, {share.key: whole})

    def _at_once(
        self, address: str, topic: str, name: str, rows: int, archive: RunningArchive, results: Results, tell: Tell
    ) -> None:
        """A producer that sends as fast as it can has to share its cores with the archive."""
        sent = _rate(f"sent at once {name}", f"one partition, {name}, at once: a producer sends", None)
        behind = Measure(
            key=f"behind {name}",
            label=f"one partition, {name}, at once: archived after the last was sent",
            unit="s",
            higher_is_better=False,
        )
        left = Measure(
            key=f"left {name}",
            label=f"one partition, {name}, at once: of all messages, most that a batch left for the next",
            unit="",
            higher_is_better=False,
        )
        tell(f"one partition, {name}: sending and archiving at once")
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as sender:
            sending = sender.submit(topics.fill, address, topic, 1, rows, SIZES[name])
            taken, took = archive.take(rows), sending.result()
        results.add(Question(sent), OURS, {sent.key: rows / took})
        results.add(Question(behind), OURS, {behind.key: taken.seconds - took})
        results.add(Question(left), OURS, {left.key: taken.most_left / rows})


def _rate(key: str, label: str, goal: float | None) -> Measure:
    return Measure(key=key, label=label, unit="rows/s", higher_is_better=True, goal=goal)


PEER = NAME
