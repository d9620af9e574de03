"""What is known of the tags in a stretch of a log, packed: which batches a view can pass over without reading them.

Pure. The stretch is divided into runs of offsets, each with a summary of the tags of all records in it. Neighbours with
the same summary are one run, and a summary that occurs again is kept once, so a log whose tags change rarely costs next
to nothing. A run that was not looked at yet, or has too many different tags, has no summary.

A summary stays true when compaction takes records away. It is not true of other records at the same offsets: the cut of
a log forgets what was known from there on.

The runs of a closed segment are kept beside it in a `.tags` file:

    byte  0  4 bytes  "PSTG"
          4  uint8    format
          5  uint32   crc-32c of everything from byte 9 on
          9  uint32   number of tags; each: uint16 length, and that many bytes
             uint32   number of summaries; each: uint8 kind (0 no records, 1 all alike, 2 mixed, 3 perhaps alike),
                      uint16 number of tags, and for each uint32 which
             int64    where the first run begins
             uint32   number of runs; each: int64 offset behind it, uint16 summary, 0 for none
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from penstock.checksum import crc32c

_MAGIC = b"PSTG"
_FORMAT = 1
_PREAMBLE = struct.Struct(">4sBI")
_COUNT = struct.Struct(">I")
_LENGTH = struct.Struct(">H")
_SUMMARY = struct.Struct(">BH")
_START = struct.Struct(">q")
_RUN = struct.Struct(">qH")

MAX_RUNS = 65_536
MAX_SUMMARIES = 4096
"""More than that are not told apart in one stretch."""
MAX_TAGS = 32
"""In one summary; where there are more, a view has to look."""

MAX_SETTLED = 256
_UNKNOWN = 0
_RUN_BYTES = 10
_SUMMARY_BYTES = 300
"""About what one takes in memory, with its tags."""

_NO_RECORDS, _ALIKE, _MIXED, _UNSURE = range(4)

Judged = TypeVar("Judged")


@dataclass(frozen=True, slots=True)
class TagSummary:
    """The tags of some records."""

    tags: frozenset[bytes]
    """Every tag that any of them has, and perhaps some that none has."""
    is_alike: bool
    """Each of them has exactly these tags."""
    has_records: bool = True
    may_be_alike: bool = False
    """Whether they are alike was not checked yet; it would be worth it."""

    def with_also(self, other: TagSummary) -> TagSummary:
        """The summary of these records and those."""
        if not self.has_records or not other.has_records:
            return other if not self.has_records else self
        is_alike = self.is_alike and other.is_alike and self.tags == other.tags
        return TagSummary(self.tags | other.tags, is_alike)


NO_RECORDS = TagSummary(frozenset(), True, has_records=False)
UNTAGGED = TagSummary(frozenset(), True)


class TagRuns:
    """The runs of one stretch; `end_offset` is where the stretch ends, None while it grows."""

    def __init__(self, start_offset: int) -> None:
        self.start_offset = start_offset
        self.end_offset: int | None = None
        self.is_saved = True
        """Nothing is known that is not on disk."""
        self._ends = array("q")
        """Run i reaches from _ends[i - 1] to _ends[i]."""
        self._ids = array("H")
        self._summaries: list[TagSummary] = []
        """The summary with number n is at n - 1."""
        self._numbers: dict[TagSummary, int] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[tuple[int, TagSummary | None]]:
        """The offset behind each run, and its summary."""
        for end, number in zip(self._ends, self._ids, strict=True):
            yield end, self._summaries[number - 1] if number else None

    @property
    def known_end(self) -> int:
        """Nothing is known from here on."""
        return self._ends[-1] if self._ends else self.start_offset

    @property
    def size_bytes(self) -> int:
        """About what this takes in memory."""
        return len(self._ends) * _RUN_BYTES + len(self._summaries) * _SUMMARY_BYTES

    def stretch(self, offset: int, judge: Callable[[TagSummary | None], Judged]) -> tuple[Judged, int | None]:
        """What `judge` says of the run that an offset lies in, and where it first says something else of a later one.

        For an unknown run, `judge` gets None; if it says the same of everything up to there, None is the answer.
        """
        unknown = judge(None)
        if offset < self.start_offset or offset >= self.known_end:
            return unknown, None
        judged: dict[int, Judged] = {_UNKNOWN: unknown}
        first = None
        for at in range(bisect_right(self._ends, offset), len(self._ends)):
            number = self._ids[at]
            found = judged.get(number)
            if found is None:
                found = judged[number] = judge(self._summaries[number - 1])
            if first is None:
                first = found
            elif found != first:
                return first, self._ends[at - 1]
        assert first is not None
        return first, None if first == unknown else self.known_end

    def settled(self, offset: int) -> list[tuple[int, int]]:
        """Where, from an offset on, nothing remains to be found out; the first few such stretches."""
        found: list[tuple[int, int]] = []
        for at in range(bisect_right(self._ends, offset), len(self._ends)):
            number = self._ids[at]
            if number != _UNKNOWN and not self._summaries[number - 1].may_be_alike:
                start = self._ends[at - 1] if at else self.start_offset
                if found and found[-1][1] == start:
                    found[-1] = (found[-1][0], self._ends[at])
                elif len(found) == MAX_SETTLED:
                    break
                else:
                    found.append((start, self._ends[at]))
        return found

    def note(self, base_offset: int, next_offset: int, summary: TagSummary) -> None:
        """Takes in what was seen in a batch; what is known already, or lies outside the stretch, is left out. Where it
        was not known whether records are alike, it is from now on.
        """
        if base_offset < self.start_offset or (self.end_offset is not None and next_offset > self.end_offset):
            return
        number = self._number_of(summary)
        known_end = self.known_end
        if base_offset >= known_end:
            if base_offset > known_end:
                self._append(base_offset, _UNKNOWN)
            self._append(next_offset, number)
        elif number == _UNKNOWN or not self._fill(base_offset, next_offset, number):
            return
        self.is_saved = False
        if len(self._ends) > MAX_RUNS:
            self._coarsen()

    def _append(self, end: int, number: int) -> None:
        if self._ids and self._ids[-1] == number:
            self._ends[-1] = end
        else:
            self._ends.append(end)
            self._ids.append(number)

    def _fill(self, base_offset: int, next_offset: int, number: int) -> bool:
        """Puts a run in the midst of one of which less is known; False if there is none."""
        at = bisect_right(self._ends, base_offset)
        start, end = self._ends[at - 1] if at else self.start_offset, self._ends[at]
        before = self._ids[at]
        if next_offset > end or before == number or (before and not self._summaries[before - 1].may_be_alike):
            return False
        pieces = [(base_offset, before)] if base_offset > start else []
        pieces.append((next_offset, number))
        if next_offset < end:
            pieces.append((end, before))
        first, last = at, at + 1
        if pieces[0][1] == number and at and self._ids[at - 1] == number:
            first -= 1
        if pieces[-1][1] == number and last < len(self._ids) and self._ids[last] == number:
            pieces[-1] = (self._ends[last], number)
            last += 1
        self._ends[first:last] = array("q", [piece[0] for piece in pieces])
        self._ids[first:last] = array("H", [piece[1] for piece in pieces])
        return True

    def _number_of(self, summary: TagSummary) -> int:
        number = self._numbers.get(summary)
        if number is None:
            if len(summary.tags) > MAX_TAGS or len(self._summaries) >= MAX_SUMMARIES:
                return _UNKNOWN
            self._summaries.append(summary)
            number = self._numbers[summary] = len(self._summaries)
        return number

    def _coarsen(self) -> None:
        """Makes one run of every two: less is known, and nothing false."""
        ends, ids = self._ends, self._ids
        self._ends, self._ids = array("q"), array("H")
        for at in range(0, len(ends) - 1, 2):
            first, second = ids[at], ids[at + 1]
            if _UNKNOWN in (first, second):
                number = _UNKNOWN
            else:
                number = self._number_of(self._summaries[first - 1].with_also(self._summaries[second - 1]))
            self._append(ends[at + 1], number)
        if len(ends) % 2:
            self._append(ends[-1], ids[-1])

    def to_bytes(self) -> bytes:
        """The content of a `.tags` file."""
        used = sorted({number for number in self._ids if number != _UNKNOWN})
        renumbered = {_UNKNOWN: _UNKNOWN} | {number: at + 1 for at, number in enumerate(used)}
        summaries = [self._summaries[number - 1] for number in used]
        tags = sorted({tag for summary in summaries for tag in summary.tags})
        index = {tag: at for at, tag in enumerate(tags)}
        body = bytearray(_COUNT.pack(len(tags)))
        for tag in tags:
            body += _LENGTH.pack(len(tag)) + tag
        body += _COUNT.pack(len(summaries))
        for summary in summaries:
            body += _SUMMARY.pack(_kind(summary), len(summary.tags))
            for tag in sorted(summary.tags):
                body += _COUNT.pack(index[tag])
        body += _START.pack(self.start_offset) + _COUNT.pack(len(self._ends))
        for end, number in zip(self._ends, self._ids, strict=True):
            body += _RUN.pack(end, renumbered[number])
        return _PREAMBLE.pack(_MAGIC, _FORMAT, crc32c(bytes(body))) + bytes(body)


class TagIndex(Protocol):
    """What a log knows of its tags."""

    async def at(self, offset: int) -> TagRuns:
        """The runs of the stretch that an offset lies in, to be read and added to.

        A caller that adds to them has read the log after this call: if it is cut meanwhile, they no longer count.
        """
        ...


class WholeLogTags:
    """The index of a log that is one stretch, kept in memory alone."""

    def __init__(self) -> None:
        self._runs = TagRuns(0)

    async def at(self, offset: int) -> TagRuns:
        return self._runs

    def forget(self) -> None:
        self._runs = TagRuns(0)


def read_runs(content: bytes) -> TagRuns:
    """The runs in a `.tags` file; ValueError if it is damaged."""
    if len(content) < _PREAMBLE.size:
        raise ValueError("too short for an index of tags")
    magic, format_, crc = _PREAMBLE.unpack_from(content)
    if magic != _MAGIC or format_ != _FORMAT:
        raise ValueError("not an index of tags of a format known here")
    if crc32c(content[_PREAMBLE.size :]) != crc:
        raise ValueError("the CRC of the index of tags does not match")
    try:
        return _read_body(content, _PREAMBLE.size)
    except (struct.error, IndexError) as error:
        raise ValueError("the index of tags ends early") from error


def _kind(summary: TagSummary) -> int:
    if not summary.has_records:
        return _NO_RECORDS
    if summary.is_alike:
        return _ALIKE
    return _UNSURE if summary.may_be_alike else _MIXED


def _read_body(content: bytes, position: int) -> TagRuns:
    def count() -> int:
        nonlocal position
        (number,) = _COUNT.unpack_from(content, position)
        position += _COUNT.size
        return int(number)

    tags: list[bytes] = []
    for _ in range(count()):
        (length,) = _LENGTH.unpack_from(content, position)
        position += _LENGTH.size + length
        tags.append(content[position - length : position])
    summaries: list[TagSummary] = []
    for _ in range(count()):
        kind, tag_count = _SUMMARY.unpack_from(content, position)
        position += _SUMMARY.size
        members = frozenset(tags[count()] for _ in range(tag_count))
        if kind > _UNSURE:
            raise ValueError("the index of tags has a summary of a kind not known here")
        is_alike, may_be = kind in (_NO_RECORDS, _ALIKE), kind == _UNSURE
        summaries.append(TagSummary(members, is_alike, has_records=kind != _NO_RECORDS, may_be_alike=may_be))
    (start,) = _START.unpack_from(content, position)
    position += _START.size
    runs = TagRuns(start)
    run_count = count()
    if len(content) - position != run_count * _RUN.size:
        raise ValueError("the index of tags has another number of runs than it says")
    for end, number in _RUN.iter_unpack(content[position:]):
        if end <= runs.known_end or number > len(summaries):
            raise ValueError("the runs of the index of tags are not in order")
        runs._ends.append(end)
        runs._ids.append(number)
    runs._summaries = summaries
    runs._numbers = {summary: at + 1 for at, summary in enumerate(summaries)}
    return runs
