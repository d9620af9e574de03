"""What waits in a producer: messages that were accepted and not reported, in a lane for each partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.ids import TopicPartition
from penstock.sdk.backend import Done
from penstock.sdk.errors import SendError
from penstock.sdk.ports import Outgoing, Receipt

MAX_BATCH_MESSAGES = 5_000
"""The largest number of messages in one call of the store."""
BACK_OFF_MS = 50


class Report(Protocol):
    """Hears of every message once: `SendOutcome`, or that of a single message."""

    def stored(self, places: Sequence[int], partition: int, offsets: Sequence[int | None]) -> None: ...

    def failed(self, places: Sequence[int], error: SendError) -> None: ...


class SingleReport:
    """Tells what becomes of one message."""

    __slots__ = ("_done", "_topic")

    def __init__(self, topic: str, done: Done) -> None:
        self._topic = topic
        self._done = done

    def stored(self, places: Sequence[int], partition: int, offsets: Sequence[int | None]) -> None:
        self._done(Receipt(self._topic, partition, offsets[0]))

    def failed(self, places: Sequence[int], error: SendError) -> None:
        self._done(error)


@dataclass(eq=False, slots=True)
class PendingSend:
    """A run of messages that were accepted together and not reported. They go to the store in one batch."""

    messages: Sequence[Outgoing]
    places: Sequence[int]
    """Which messages of their call they are."""
    size_bytes: int
    report: Report
    since_ms: float
    deadline_ms: float
    lingers: bool = True
    """It waits for others to share its batch."""
    is_free: bool = False
    """Any partition will do."""
    starts_batch: bool = False
    """It must not be refused together with what is before it."""

    def part(self, chosen: Sequence[int]) -> PendingSend:
        """Some of its messages, by their index here."""
        messages = [self.messages[index] for index in chosen]
        return PendingSend(
            messages,
            [self.places[index] for index in chosen],
            sum(message.size_bytes for message in messages),
            self.report,
            self.since_ms,
            self.deadline_ms,
            self.lingers,
            is_any_partition_right(messages),
        )


def is_any_partition_right(messages: Iterable[Outgoing]) -> bool:
    return all(message.partition is None and message.key is None for message in messages)


def runs_of(pending: PendingSend, chosen: Sequence[int], max_bytes: int) -> list[PendingSend]:
    """Some messages of a run for one partition, cut so that each part fits into a batch."""
    is_whole = len(chosen) == len(pending.messages)
    if is_whole and (len(chosen) == 1 or (len(chosen) <= MAX_BATCH_MESSAGES and pending.size_bytes <= max_bytes)):
        return [pending]
    found: list[PendingSend] = []
    start = size = 0
    for number, index in enumerate(chosen):
        more = pending.messages[index].size_bytes
        if number > start and (size + more > max_bytes or number - start == MAX_BATCH_MESSAGES):
            found.append(pending.part(chosen[start:number]))
            start, size = number, 0
        size += more
    found.append(pending.part(chosen[start:]))
    return found


def count_of(runs: Iterable[PendingSend]) -> int:
    """How many messages they have."""
    return sum(len(run.messages) for run in runs)


def cut_at(runs: Sequence[PendingSend], place: int) -> tuple[list[PendingSend], list[PendingSend]]:
    """What is before the message at a place of a batch, and the rest."""
    before: list[PendingSend] = []
    for number, run in enumerate(runs):
        count = len(run.messages)
        if place >= count:
            before.append(run)
            place -= count
            continue
        if place:
            before.append(run.part(range(place)))
            return before, [run.part(range(place, count)), *runs[number + 1 :]]
        return before, list(runs[number:])
    return before, []


@dataclass(eq=False, slots=True)
class Lane:
    """What waits for one partition."""

    topic_partition: TopicPartition
    waiting: deque[PendingSend] = field(default_factory=deque)
    waiting_bytes: int = 0
    waiting_messages: int = 0
    next_sequence: int = 0
    is_busy: bool = False
    repeated: list[PendingSend] | None = None
    """A batch that may have been stored; it has to be repeated before anything else."""
    not_before_ms: float = 0.0
    back_off_ms: int = BACK_OFF_MS

    def add(self, run: PendingSend) -> None:
        self.waiting.append(run)
        self.waiting_bytes += run.size_bytes
        self.waiting_messages += len(run.messages)

    def put_back(self, runs: Sequence[PendingSend]) -> None:
        """They wait again, before all others."""
        for run in reversed(runs):
            self.waiting.appendleft(run)
            self.waiting_bytes += run.size_bytes
            self.waiting_messages += len(run.messages)

    def take(self, max_bytes: int) -> list[PendingSend]:
        """The next batch: at least one run, and no part of one."""
        taken: list[PendingSend] = []
        count = size = 0
        while self.waiting:
            run = self.waiting[0]
            count += len(run.messages)
            size += run.size_bytes
            if taken and (run.starts_batch or size > max_bytes or count > MAX_BATCH_MESSAGES):
                break
            taken.append(self.waiting.popleft())
            self.waiting_bytes -= run.size_bytes
            self.waiting_messages -= len(run.messages)
        return taken

    def clear(self) -> list[PendingSend]:
        """Nothing waits any more; what did."""
        waiting = [*self.waiting]
        self.waiting.clear()
        self.waiting_bytes = self.waiting_messages = 0
        return waiting

    def is_full(self, batch_bytes: int) -> bool:
        return self.waiting_bytes >= batch_bytes or self.waiting_messages >= MAX_BATCH_MESSAGES
