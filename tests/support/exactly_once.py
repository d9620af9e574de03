"""Consume, transform, produce: what went in, what came out, and the judge over both.

A worker writes every input message once to the output and, in the same transaction, one line to the audit topic. All of
it carries the transaction's token.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Output:
    """One message of the output as a read_committed reader saw it."""

    partition: int
    offset: int
    source: int
    """The input partition that it came from."""
    number: int
    token: str


@dataclass(slots=True)
class Passage:
    """All that is known when the work is done."""

    inputs: dict[int, list[int]]
    """The numbers that lie in each input partition, in order."""
    outputs: list[Output]
    """What a reader sees that reads everything at the end."""
    audited: list[str]
    """The tokens of the audit topic as that reader sees them."""
    seen_live: list[Output]
    """What a reader saw that read all the time."""
    aborted: set[str]
    """Tokens of transactions that were aborted."""
    committed: set[str]
    """Tokens of transactions of which a worker was told that they are committed."""
    offsets: Mapping[int, int] = field(default_factory=dict)
    """What the group has committed at the end, by input partition."""


@dataclass(slots=True)
class Verdict:
    """How often it happened; everything should be zero."""

    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    aborted_seen: int = 0
    torn: int = 0
    """Transactions that are to be seen in one topic and not in the other."""
    untrue: int = 0
    """Commits that were acknowledged and are not to be seen."""
    unsteady: int = 0
    """What one reader saw and the other did not."""
    offsets_off: int = 0
    """Partitions whose committed offset is not the end of the input."""

    @property
    def is_good(self) -> bool:
        return self == Verdict()

    def __str__(self) -> str:
        return (
            f"lost {self.lost}, doubled {self.doubled}, out of order {self.out_of_order},"
            f" aborted seen {self.aborted_seen}, torn {self.torn}, untrue {self.untrue},"
            f" unsteady {self.unsteady}, offsets off {self.offsets_off}"
        )


def judge(passage: Passage) -> Verdict:
    """Whether the output is the input, once each and in order, and nothing else was ever seen."""
    verdict = Verdict()
    came_out: dict[int, list[int]] = defaultdict(list)
    for output in sorted(passage.outputs, key=lambda output: (output.partition, output.offset)):
        came_out[output.source].append(output.number)
    for partition, numbers in passage.inputs.items():
        # The input may hold a number twice, if its producer has sent it anew.
        wanted, found = Counter(numbers), Counter(came_out[partition])
        verdict.lost += (wanted - found).total()
        verdict.doubled += (found - wanted).total()
        verdict.out_of_order += max(0, _disorder(came_out[partition]) - _disorder(numbers))
    for output in passage.outputs:
        verdict.lost += output.source not in passage.inputs
    tokens = {output.token for output in passage.outputs}
    verdict.aborted_seen = len(passage.aborted & (tokens | {output.token for output in passage.seen_live}))
    verdict.aborted_seen += len(passage.aborted & set(passage.audited))
    verdict.torn = len(tokens ^ set(passage.audited)) + len(passage.audited) - len(set(passage.audited))
    verdict.untrue = len(passage.committed - tokens)
    verdict.unsteady = len(set(passage.outputs) ^ set(passage.seen_live))
    verdict.unsteady += _repeats(passage.seen_live)
    verdict.offsets_off = sum(
        passage.offsets.get(partition, 0) != len(numbers) for partition, numbers in passage.inputs.items()
    )
    return verdict


def _disorder(numbers: Sequence[int]) -> int:
    """How often a number is followed by a smaller one; the same again is not disorder but doubled."""
    return sum(a > b for a, b in pairwise(numbers))


def _repeats(outputs: Iterable[Output]) -> int:
    """How often a reader that reads on saw the same place again, or an earlier one."""
    places: dict[int, int] = {}
    repeats = 0
    for output in outputs:
        repeats += output.offset <= places.get(output.partition, -1)
        places[output.partition] = max(output.offset, places.get(output.partition, -1))
    return repeats
