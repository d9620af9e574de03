"""What becomes of messages that are sent in one call: their receipts, and one future for all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, overload

from penstock.sdk.errors import BufferFullError, ClosedError, SendError, SendManyError
from penstock.sdk.ports import Outgoing, Receipt


class StoredRun(NamedTuple):
    """Messages of a call that were stored together."""

    places: Sequence[int]
    """Which messages of the call they are."""
    partition: int
    offsets: Sequence[int | None]


class Receipts(Sequence[Receipt]):
    """The receipts of messages that were sent together, in the order of the call."""

    __slots__ = ("_count", "_found", "_runs", "_single", "_topic")

    def __init__(self, topic: str, count: int, runs: Sequence[StoredRun], single: dict[int, Receipt]) -> None:
        self._topic = topic
        self._count = count
        self._runs = runs
        self._single = single
        self._found: list[Receipt] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Receipt: ...

    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...

    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if self._found is None:
            by_place = {**_of_runs(self._topic, self._runs), **self._single}
            self._found = [by_place[place] for place in range(self._count)]
        return self._found[index]

    def __repr__(self) -> str:
        return f"<Receipts of {self._count} messages to {self._topic}>"

    @property
    def spilled(self) -> int:
        """How many messages are stored on this machine and wait for the cluster (`Spill`)."""
        return sum(receipt.is_spilled for receipt in self._single.values())


class SendOutcome:
    """Collects what becomes of each message of a call, which has at least one. Thread-safe; takes one answer for each
    place.
    """

    def __init__(self, topic: str, count: int) -> None:
        self._topic = topic
        self._count = count
        self._lock = threading.Lock()
        self._left = count
        self._runs: list[StoredRun] = []
        self._single: dict[int, Receipt] = {}
        self._errors: dict[int, SendError] = {}
        self.future: Future[Receipts] = Future()
        """Completed when every message is answered: with the receipts, or with `SendManyError`."""
        self.future.set_running_or_notify_cancel()

    def stored(self, places: Sequence[int], partition: int, offsets: Sequence[int | None]) -> None:
        """These messages are durable."""
        with self._lock:
            self._runs.append(StoredRun(places, partition, offsets))
            is_over = self._is_last(len(places))
        if is_over:
            self._complete()

    def failed(self, places: Sequence[int], error: SendError) -> None:
        """These messages did not become durable."""
        with self._lock:
            self._errors.update(dict.fromkeys(places, error))
            is_over = self._is_last(len(places))
        if is_over:
            self._complete()

    def answered(self, place: int, result: Receipt | SendError) -> None:
        """One message is durable, or not."""
        if isinstance(result, SendError):
            self.failed((place,), result)
            return
        with self._lock:
            self._single[place] = result
            is_over = self._is_last(1)
        if is_over:
            self._complete()

    def _is_last(self, answered: int) -> bool:
        self._left -= answered
        return not self._left

    def _complete(self) -> None:
        if not self._errors:
            self.future.set_result(Receipts(self._topic, self._count, self._runs, self._single))
            return
        by_place: dict[int, Receipt | SendError] = {**_of_runs(self._topic, self._runs), **self._single, **self._errors}
        first = min(self._errors)
        self.future.set_exception(
            SendManyError(
                f"{len(self._errors)} of {self._count} messages to {self._topic} were not stored;"
                f" message {first}, counted from 0: {self._errors[first]}",
                [by_place[place] for place in range(self._count)],
                is_retriable=all(error.is_retriable for error in self._errors.values()),
            )
        )


def no_receipts(topic: str) -> Future[Receipts]:
    """What becomes of no messages."""
    future: Future[Receipts] = Future()
    future.set_result(Receipts(topic, 0, (), {}))
    return future


def send_each(
    messages: Sequence[Outgoing],
    send: Callable[[Outgoing, float], Future[Receipt]],
    room_s: float,
    on_away: Callable[[], None] | None = None,
) -> Future[Receipts]:
    """Send messages one by one, with a producer that has no better way, and wait up to `room_s` for room for all.

    From the first message that has no room on, all fail, or later ones would overtake it. `on_away` is called for each
    that was not even tried.
    """
    until_s = time.monotonic() + room_s
    outcome = SendOutcome(messages[0].topic, len(messages))
    for place, outgoing in enumerate(messages):
        try:
            future = send(outgoing, max(0.0, until_s - time.monotonic()))
        except ClosedError as error:
            if not place:
                raise
            outcome.failed(range(place, len(messages)), SendError(str(error), is_retriable=True))
            break
        future.add_done_callback(partial(_answer, outcome, place))
        untried = range(place + 1, len(messages))
        failure = future.exception() if future.done() else None
        if untried and isinstance(failure, BufferFullError):
            if on_away is not None:
                for _ in untried:
                    on_away()
            outcome.failed(untried, failure)
            break
    return outcome.future


def _answer(outcome: SendOutcome, place: int, future: Future[Receipt]) -> None:
    error = future.exception()
    if error is not None:
        assert isinstance(error, SendError), error
        outcome.answered(place, error)
    else:
        outcome.answered(place, future.result())


def _of_runs(topic: str, runs: Sequence[StoredRun]) -> dict[int, Receipt]:
    return {
        place: Receipt(topic, run.partition, offset)
        for run in runs
        for place, offset in zip(run.places, run.offsets, strict=True)
    }
