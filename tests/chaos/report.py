"""What was done to a cluster, what came of it, and whether that is good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from support.exactly_once import Verdict
from support.pulse import Tally

_SHOWN = 10


@dataclass(slots=True)
class Report:
    seed: int
    brokers: int
    zookeepers: int
    faults: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, str] = field(default_factory=dict)
    """Faults that this machine does not allow, and why."""
    strikes: list[tuple[float, str]] = field(default_factory=list)
    """When something was done, and what."""
    gaps: dict[str, tuple[float, str]] = field(default_factory=dict)
    """The longest time for which something did not go on, and what was done then."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    """Messages that a producer was not told of in two minutes, or that were refused."""
    group_faults: list[str] = field(default_factory=list)
    seen_by_groups: int = 0
    passage: Verdict | None = None
    passed: int = 0
    """Messages that went through a transaction."""
    committed: int = 0
    aborted: int = 0
    ends_told: int = 0
    """Answers to ListOffsets, of all brokers."""
    hung_zookeepers: int = 0
    """How often ZooKeeper itself stood still after a fault and had to be restarted."""
    hung_clients: int = 0
    """How often the client library of a reader stood still inside and had to be replaced."""
    ends_gone_back: list[str] = field(default_factory=list)
    """Answers below what was acknowledged or told before."""
    follower_reads: int = 0
    """How often a client was seen to read from a follower."""
    follower_violations: list[str] = field(default_factory=list)
    """What readers of followers saw that is not so."""
    complaints: list[str] = field(default_factory=list)
    """Lines of the brokers' logs that nobody expects."""
    stuck: str = ""
    """What did not come back; nothing is judged then."""

    @property
    def is_good(self) -> bool:
        is_judged = bool(self.tallies) and self.passage is not None and not self.stuck
        is_kept = all(tally.is_good for tally in self.tallies.values()) and self.passage == Verdict()
        is_steady = not self.ends_gone_back and not self.follower_violations
        was_observed = self.ends_told > 0 and self.follower_reads > 0
        has_failures = self.failed or self.group_faults or self.complaints
        return is_judged and is_kept and is_steady and was_observed and not has_failures

    def note_gaps(self, what: str, moments: Sequence[float]) -> None:
        """Moments at which something went on, in order. The cause is the first that was done in the gap, else the last
        that was done before it; what was before the first fault does not count.
        """
        for before, after in pairwise(moments):
            if after - before <= self.gaps.get(what, (0.0, ""))[0]:
                continue
            causes = [cause for struck, cause in self.strikes if struck <= before][-1:]
            causes = [cause for struck, cause in self.strikes if before < struck < after][:1] or causes
            if causes:
                self.gaps[what] = after - before, causes[0]

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}, {self.brokers} brokers, {self.zookeepers} ZooKeeper servers",
            f"faults injected: {self.faults.total()}",
            *(f"  {count:3}  {fault}" for fault, count in sorted(self.faults.items())),
            *(f"  left out, {fault}: {why}" for fault, why in self.left_out.items()),
        ]
        if self.hung_zookeepers:
            lines.append(f"ZooKeeper itself stood still and was restarted: {self.hung_zookeepers} times")
        if self.hung_clients:
            lines.append(f"a reader's librdkafka itself stood still and was replaced: {self.hung_clients} times")
        if self.stuck:
            return "\n".join([*lines, f"STUCK: {self.stuck}", *self.complaints[:_SHOWN]])
        for topic, tally in self.tallies.items():
            lines.append(
                f"{topic}: acknowledged {tally.acknowledged}, lost {tally.lost}, doubled {tally.doubled},"
                f" out of order {tally.out_of_order}, at another offset {tally.moved},"
                f" acknowledged without an offset {tally.unplaced}, sent anew by the client {tally.resent}"
            )
        lines += [
            f"groups: seen {self.seen_by_groups}, faults {len(self.group_faults)}",
            f"transactions: committed {self.committed}, aborted {self.aborted}, messages {self.passed}, {self.passage}",
            f"ends told {self.ends_told}, gone back {len(self.ends_gone_back)};"
            f" read from followers {self.follower_reads} times, wrongly {len(self.follower_violations)}",
            f"all: messages {self._messages}, lost {self._sum('lost')}, doubled {self._sum('doubled')},"
            f" out of order {self._sum('out_of_order')}, failed at the producer {len(self.failed)}",
            *(f"longest unavailability of {what}: {gap:.1f} s ({why})" for what, (gap, why) in self.gaps.items()),
            *(example for tally in self.tallies.values() for example in tally.examples),
            *self.failed[:_SHOWN],
            *self.group_faults[:_SHOWN],
            *self.ends_gone_back[:_SHOWN],
            *self.follower_violations[:_SHOWN],
            *self.complaints[:_SHOWN],
        ]
        return "\n".join(lines)

    @property
    def _messages(self) -> int:
        return sum(tally.acknowledged for tally in self.tallies.values()) + self.seen_by_groups + self.passed

    def _sum(self, what: str) -> int:
        counts = [int(getattr(tally, what)) for tally in self.tallies.values()]
        words = {"lost": "skipped", "out_of_order": "order", "doubled": "changed"}
        of_groups = sum(fault.startswith(words[what]) for fault in self.group_faults)
        return sum(counts) + of_groups + int(getattr(self.passage, what))
