"""What a figure is, and which goal it has.

A goal is a ratio of Penstock's median to Apache Kafka's in the same run, because absolute figures on a shared
machine say more about the machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.target import Target

THROUGHPUT_GOAL = 1.5
LATENCY_GOAL = 0.5
UNBATCHED_GOAL = 1.0
BARE_PRODUCE_GOAL = 2.0
BARE_FETCH_GOAL = 1.5
PLAIN_BOUND = 0.7
CPU_GOAL = 0.5
MEMORY_GOAL = 0.15
START_GOAL = 0.1
REBALANCE_GOAL = 1.0
COMMIT_GOAL = 1.0
TRANSACTION_GOAL = 1.0
KILL_BOUND_MS = 9000.0  # a lease of 6 s, and 3 s
RESTART_BOUND_MS = 500.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One row of the report."""

    key: str
    label: str
    unit: str
    higher_is_better: bool
    goal: float | None = None
    bound: float | None = None  # what Penstock's worst round must stay within, whatever Kafka does
    shows_worst: bool = False  # the worst round is worth knowing, not the best
    detail: bool = False  # only in the JSON file

    def meets(self, ratio: float) -> bool | None:
        """Whether the ratio to Kafka reaches the goal; None without a goal."""
        if self.goal is None:
            return None
        return ratio >= self.goal if self.higher_is_better else ratio <= self.goal

    def keeps_bound(self, worst: float) -> bool:
        """Whether the worst round is within the bound."""
        return self.bound is None or (worst >= self.bound if self.higher_is_better else worst <= self.bound)

    def best(self, values: Sequence[float]) -> float:
        return max(values) if self.higher_is_better else min(values)

    def worst(self, values: Sequence[float]) -> float:
        return min(values) if self.higher_is_better else max(values)


def client_cores(title: str) -> Measure:
    """How busy the clients were: where they are the limit, the server is not what was measured."""
    return Measure(
        key=f"{title}, client_cores", label=title, unit="client cores busy", higher_is_better=False, detail=True
    )


class Measured(Protocol):
    """Something that yields rows of the report."""

    def measures(self) -> Sequence[Measure]: ...


class Case(Measured, Protocol):
    """One question, asked of each target in turn, `rounds` times."""

    @property
    def title(self) -> str: ...

    @property
    def kind(self) -> str:
        """A word by which `--only` chooses it."""
        ...

    @property
    def rounds(self) -> int: ...

    @property
    def partitions(self) -> int:
        """More than one partition: only for brokers that have such a thing."""
        ...

    def run(self, target: Target) -> Mapping[str, float]:
        """Figures by measure key; a figure that cannot be had is left out."""
        ...


@dataclass(slots=True)
class Results:
    """Every figure of a run: by measure key, then by target name, in the order of the rounds."""

    measures: dict[str, Measure] = field(default_factory=dict)
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, case: Measured, target: str, figures: Mapping[str, float]) -> None:
        for measure in case.measures():
            self.measures.setdefault(measure.key, measure)
            if measure.key in figures:
                rows = self.values.setdefault(measure.key, {})
                rows.setdefault(target, []).append(figures[measure.key])

    def median(self, key: str, target: str) -> float | None:
        values = self.values.get(key, {}).get(target)
        return statistics.median(values) if values else None

    def best(self, key: str, target: str) -> float | None:
        values = self.values.get(key, {}).get(target)
        return self.measures[key].best(values) if values else None

    def worst(self, key: str, target: str) -> float | None:
        values = self.values.get(key, {}).get(target)
        return self.measures[key].worst(values) if values else None

    def ratio(self, key: str, target: str, base: str) -> float | None:
        """Median to median."""
        own, other = self.median(key, target), self.median(key, base)
        return own / other if own is not None and other else None
