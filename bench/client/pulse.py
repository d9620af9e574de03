"""A producer that never rests: a message to every partition every few milliseconds, and when each was acknowledged.

The client's settings are librdkafka's defaults, so that what is measured is what an application sees; it is idempotent
with acks=all, and no message is given up. Who runs it speaks to it on standard input: `mark` begins another phase,
`more` asks for a word when every partition has got some further messages acknowledged. It ends when that is closed.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Sequence
from itertools import pairwise

from confluent_kafka import KafkaError, Message, Producer

from bench.client.driver import DriverError
from bench.client.job import READY, Job
from bench.client.topics import stored

BEAT_S = 0.005
MORE = 20
_FLUSH_S = 120.0


def pulse(job: Job) -> dict[str, float]:
    """Longest times between two acknowledgements: `gap_PHASE_PARTITION_ms`, and how many messages there were."""
    beating = _Pulse(job)
    beating.run()
    return beating.figures()


def longest_gaps_s(moments: Sequence[float], marks: Sequence[float]) -> list[float]:
    """For each phase the longest time between two moments; it belongs to the phase in which it ends."""
    found = []
    for begin, end in pairwise([*marks, float("inf")]):
        found.append(max((after - before for before, after in pairwise(moments) if begin < after <= end), default=0.0))
    return found


class _Pulse:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._acknowledged: list[list[float]] = [[] for _ in range(job.partitions)]
        self._failed: list[str] = []
        self._marks: list[float] = []
        self._wanted: list[int] | None = None
        """How many acknowledgements every partition must have until the word is given."""
        self._producer = Producer(
            {
                "bootstrap.servers": job.address,
                "enable.idempotence": True,
                "acks": "all",
                "delivery.timeout.ms": int(_FLUSH_S * 1000),
                "log_level": 0,
            }
        )

    def run(self) -> None:
        body = bytes(self._job.size)
        self._ask_for_more()
        due = time.monotonic()
        deadline = due + self._job.limit_s
        while self._listen():
            if self._failed or time.monotonic() > deadline:
                raise DriverError(self._failed[0] if self._failed else f"not done after {self._job.limit_s:.0f} s")
            for partition in range(self._job.partitions):
                self._producer.produce(self._job.topic, body, partition=partition, on_delivery=self._delivered)
            due = max(due + BEAT_S, time.monotonic() - 1)
            while (left := due - time.monotonic()) > 0:
                self._producer.poll(left)
            self._producer.poll(0)
            self._give_word()
        self._producer.flush(_FLUSH_S)

    def figures(self) -> dict[str, float]:
        sent = sum(map(len, self._acknowledged))
        if self._failed:
            raise DriverError(f"{len(self._failed)} messages failed: {self._failed[0]}")
        found = stored(self._job.address, self._job.topic, self._job.partitions)
        if found != sent:
            raise DriverError(f"{sent} messages were acknowledged, {found} are stored")
        figures = {"count": float(sent)}
        for partition, moments in enumerate(self._acknowledged):
            for phase, gap_s in enumerate(longest_gaps_s(moments, self._marks)):
                figures[f"gap_{phase}_{partition}_ms"] = gap_s * 1000
        return figures

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append(str(error))
            return
        self._acknowledged[message.partition() or 0].append(time.monotonic())

    def _listen(self) -> bool:
        """Do what was said; False when nobody speaks any more."""
        while select.select([sys.stdin], [], [], 0)[0]:
            said = os.read(sys.stdin.fileno(), 4096)
            if not said:
                return False
            for word in said.decode().split():
                if word == "mark":
                    self._marks.append(time.monotonic())
                elif word == "more":
                    self._ask_for_more()
        return True

    def _ask_for_more(self) -> None:
        self._wanted = [len(moments) + MORE for moments in self._acknowledged]

    def _give_word(self) -> None:
        if self._wanted is None or any(
            len(moments) < wanted for moments, wanted in zip(self._acknowledged, self._wanted, strict=True)
        ):
            return
        self._wanted = None
        print(READY, flush=True)
