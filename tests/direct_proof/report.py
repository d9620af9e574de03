"""What was done, what came of it, and whether that is good."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .verdict import Verdict

_SHOWN = 10


@dataclass(slots=True)
class Report:
    seed: int
    database: str
    brokers: int
    kafka_producers: int
    producers: int
    consumers: int
    partitions: int
    faults: Counter[str] = field(default_factory=Counter)
    processes: int = 0
    """Clients without a broker that were started, those that followed on killed ones included."""
    slowest: tuple[float, str] = (0.0, "")
    """The longest time from the end of a fault until everything went on, and the fault."""
    verdict: Verdict | None = None
    readers: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Consumers of brokers: messages read, skipped, repeated."""
    complaints: list[str] = field(default_factory=list)
    """Of readers, and lines of logs that nobody expects."""
    stuck: str = ""
    """What did not come back; nothing is judged then."""

    @property
    def is_good(self) -> bool:
        if self.verdict is None or self.stuck or self.complaints:
            return False
        readers_agree = all(not (skipped or repeated) for _, skipped, repeated in self.readers.values())
        return self.verdict.is_good and readers_agree

    def __str__(self) -> str:
        beside = f", {self.brokers} brokers with {self.kafka_producers} producers of Kafka" if self.brokers else ""
        lines = [
            f"seed {self.seed}, {self.database}: {self.producers} producers and {self.consumers} consumers without a"
            f" broker{beside}, partitions: {self.partitions}",
            f"faults injected: {self.faults.total()}; processes of clients: {self.processes}",
            *(f"  {count:3}  {fault}" for fault, count in sorted(self.faults.items())),
        ]
        found = self.verdict
        if found is None or self.stuck:
            return "\n".join([*lines, f"STUCK: {self.stuck}", *self.complaints[:_SHOWN]])
        lines += [
            f"acknowledged {found.acknowledged}, of these delayed {found.delayed}; in the tables {found.rows}, handled"
            f" {found.handled}",
            f"in the tables: lost {found.lost}, doubled {found.doubled}, out of order by key {found.out_of_order}, at"
            f" another offset {found.moved}, of no producer {found.ghosts}, sent anew by librdkafka {found.resent}",
            f"handled: missing {found.not_handled}, twice {found.handled_twice}, out of order by key"
            f" {found.handled_out_of_order}, not in a table {found.handled_ghosts}, early {found.early}",
            *(
                f"{name}: read {read}, skipped {passed}, came again {repeated}"
                for name, (read, passed, repeated) in self.readers.items()
            ),
            f"longest time until all went on after a fault: {self.slowest[0]:.1f} s ({self.slowest[1]})",
            f"all: {found.lost + found.not_handled} lost, {found.doubled + found.handled_twice} doubled,"
            f" {found.out_of_order + found.handled_out_of_order} out of order",
            f"verdict: {'good' if self.is_good else 'NOT GOOD'}",
            *found.examples[:_SHOWN],
            *self.complaints[:_SHOWN],
        ]
        return "\n".join(lines)
