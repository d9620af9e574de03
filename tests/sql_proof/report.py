"""What was done, what came of it, and whether that is good."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .ledger import Verdict

_SHOWN = 10


@dataclass(slots=True)
class Report:
    seed: int
    database: str
    brokers: int
    producers: int
    direct: int
    faults: Counter[str] = field(default_factory=Counter)
    leaders: int = 0
    """Leader epochs that the partition had."""
    slowest: tuple[float, str] = (0.0, "")
    """The longest time from the end of a fault until every writer and every reader went on, and the fault."""
    verdict: Verdict | None = None
    readers: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """By reader: messages read, skipped, repeated."""
    complaints: list[str] = field(default_factory=list)
    """Of readers, and lines of the brokers' logs that nobody expects."""
    stuck: str = ""
    """What did not come back; nothing is judged then."""

    @property
    def is_good(self) -> bool:
        if self.verdict is None or self.stuck or self.complaints or not self.readers:
            return False
        are_whole = all(read == self.verdict.rows and not (skipped or back) for read, skipped, back in self._read)
        return self.verdict.is_good and are_whole

    @property
    def _read(self) -> list[tuple[int, int, int]]:
        return list(self.readers.values())

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}, {self.database}, {self.brokers} brokers, {self.producers} producers,"
            f" {self.direct} writers without a broker, one partition",
            f"faults injected: {self.faults.total()}; leader epochs: {self.leaders}",
            *(f"  {count:3}  {fault}" for fault, count in sorted(self.faults.items())),
        ]
        found = self.verdict
        if found is None or self.stuck:
            return "\n".join([*lines, f"STUCK: {self.stuck}", *self.complaints[:_SHOWN]])
        skipped = found.skipped + found.lost + sum(skipped for _, skipped, _ in self._read)
        doubled = found.doubled + sum(repeated for _, _, repeated in self._read)
        lines += [
            f"rows {found.rows}: acknowledged {found.acknowledged}, of unknown outcome {found.unknown}"
            f" ({found.unknown_stored} are there); rolled back {found.rolled_back}",
            f"in the table: ids skipped {found.skipped}, lost {found.lost}, doubled {found.doubled},"
            f" out of order {found.out_of_order}, at another offset {found.moved}, must not be there {found.ghosts},"
            f" sent anew by the client {found.resent}",
            *(
                f"{name}: read {read}, skipped {passed}, came again {repeated}"
                for name, (read, passed, repeated) in self.readers.items()
            ),
            f"longest time until all went on after a fault: {self.slowest[0]:.1f} s ({self.slowest[1]})",
            f"all: {skipped} skipped, {doubled} doubled, {found.out_of_order + found.moved} out of order",
            f"verdict: {'good' if self.is_good else 'NOT GOOD'}",
            *found.examples[:_SHOWN],
            *self.complaints[:_SHOWN],
        ]
        return "\n".join(lines)
