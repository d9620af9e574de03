"""What one task of a write does, whichever attempt it is: sends its rows, unless that has been done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from penstock.pipeline.failure import NotRepeatableError, PipelineError
from penstock.pipeline.topics.marked_producer import Mark, MarkedProducer, mark_of
from penstock.pipeline.topics.row_records import OutgoingRecord, SendCount


class TaskWrite:
    """The writes of one task of one query, one after the other."""

    def __init__(self, kafka: Mapping[str, str], name: str) -> None:
        self._kafka = kafka
        self._name = name

    def once(self, rows: Iterator[OutgoingRecord], number: int) -> int:
        """Sends the rows as batch `number`, unless that has been done; gives how many there are."""
        first = next(rows, None)
        if first is None:
            # Nothing to fence others for, but it has to have been nothing the first time too.
            self._is_written(mark_of(self._kafka, self._name), number, ())
            return 0
        all_rows = chain([first], rows)
        with MarkedProducer(self._kafka, self._name) as producer:
            mark = producer.open()
            if mark is not None and self._is_written(mark, number, all_rows):
                return SendCount.read(mark.said).rows
            tally = SendCount()
            producer.send(tally.counting(all_rows), lambda: Mark(number, tally.written()), first.topic)
            return tally.rows

    def _is_written(self, mark: Mark | None, number: int, rows: Iterable[OutgoingRecord]) -> bool:
        """Whether this batch is there already, with these very rows."""
        if mark is None or mark.number < number:
            return False
        if mark.number > number:
            raise PipelineError(f"write {self._name}: batch {mark.number} was written before batch {number}")
        tally, before = SendCount(), SendCount.read(mark.said)
        for _ in tally.counting(rows):
            pass
        if tally != before:
            raise NotRepeatableError(
                f"write {self._name}: batch {number} was written before, with {before.rows} rows, and now has "
                f"{tally.rows} or others: the query does not give the same rows to the same task each time"
            )
        return True
