"""A fetch of one partition of a view: a search through the base's log for what the view shows.

The index of tags says what can be passed over without being read, and what can be sent as it is. Everything else is
read and looked at, piece by piece, and what that shows goes into the index. A search keeps what it has found while its
fetch waits for more, so nothing is looked at twice for one answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import ApiError, StorageError
from penstock.parts import Part, are_in_memory, coalesced
from penstock.replication.partition import Partition
from penstock.storage.contract import ReplicaBehindError, Slice
from penstock.storage.tags import TagSummary
from penstock.views.batch_filter import Filtered, filtered, is_compressed
from penstock.views.tag_matcher import Matcher, Verdict
from penstock.views.waymark import waymark

PIECE_BYTES = 1 << 20
"""How much is read and looked at at once."""

STEP_BYTES = 4 * PIECE_BYTES
"""How much one call looks at before others have their turn."""

_AT_ONCE_BYTES = 16384
"""So little, if it is not compressed, is looked at without a thread: to change over would take longer."""


class Shown(NamedTuple):
    """What a view shows, ready to be sent."""

    parts: tuple[Part, ...]
    size: int


@dataclass(slots=True)
class Effort:
    """What views have cost, and what for; counted since the start."""

    looked_at_bytes: int = 0
    """Read and taken apart."""
    shown_bytes: int = 0
    """Found, or sent as they lie in the log."""


class Search:
    """What one fetch sees of one partition through a view."""

    def __init__(
        self,
        partition: Partition,
        matcher: Matcher,
        offset: int,
        pool: Executor,
        effort: Effort,
        *,
        committed_only: bool,
    ) -> None:
        self._partition = partition
        self._matcher = matcher
        self._pool = pool
        self._effort = effort
        self._committed_only = committed_only
        self._term = partition.term
        self._asked = offset
        self._position = offset
        """What lies below has been looked at."""
        self._shown_end = offset
        """Behind the last batch that is shown."""
        self._parts: list[Part] = []
        self.size = 0
        self.is_full = False
        """There is no room for what comes next."""

    @property
    def end(self) -> int:
        """What can be seen of the partition now ends here."""
        return self._partition.last_stable_offset if self._committed_only else self._partition.high_watermark

    @property
    def is_at_end(self) -> bool:
        return self.is_full or self._position >= self.end

    async def advance(self, room: int, *, is_first: bool) -> None:
        """Looks on, until the answer is full, the log is at its end, or it is time for others.

        An answer has at most `room` bytes, or one batch if it has nothing yet and this is the first partition that has
        something.
        """
        if self._term != self._partition.term:
            self._begin_again()
        await self._check_offset()
        before = self._position
        try:
            await self._look_on(room, is_first=is_first)
        except ReplicaBehindError:
            # Its fetch waits like one at the end, and the next one looks on.
            self.is_full = True
        except (ApiError, StorageError):
            if self._position == self._asked == before:
                raise
            # The records before it are readable: the next fetch begins at the damage, and gets the error.
            self.is_full = True

    async def _look_on(self, room: int, *, is_first: bool) -> None:
        log, looked_at = self._partition.log, 0
        while not self.is_at_end and looked_at < STEP_BYTES:
            self._position = max(self._position, log.start_offset)
            runs = await log.tags.at(self._position)
            verdict, below = runs.stretch(self._position, self._judge)
            end = self.end if below is None else min(below, self.end)
            if verdict is Verdict.NONE:
                self._position = max(self._position, end)
                continue
            left = room - self.size
            if left <= 0 and not (is_first and not self.size):
                self.is_full = True
                return
            wanted = max(1, min(PIECE_BYTES, left)) if verdict is Verdict.ALL else PIECE_BYTES
            found = await self._partition.read(self._position, wanted, committed_only=self._committed_only, below=end)
            looked_at += found.size
            if not found.size:
                self._position = max(self._position, end)  # compaction has left nothing there
            elif verdict is Verdict.ALL and not found.aborted:
                await self._take_whole(found, left, is_first=is_first)
            else:
                seen = await self._look_at(found, runs.settled(self._position))
                for note in seen.notes:
                    runs.note(*note)
                self._take(seen, left, is_first=is_first)

    async def finds_any(self) -> bool:
        """Whether there is anything to show, from the offset on up to where the log ends now."""
        while not self.size and not self.is_at_end:
            await self.advance(PIECE_BYTES, is_first=True)
        return self.size > 0 or self.is_full

    def shown(self) -> Shown:
        return Shown(coalesced(self._parts), self.size)

    def shown_with_waymark(self) -> Shown:
        """What is shown, and where to go on if nothing was shown for a while."""
        if self._position <= self._shown_end:
            return self.shown()
        epoch = max(0, self._partition.log.epochs.epoch_at(self._position - 1))
        mark = waymark(self._position - 1, epoch)
        return Shown(coalesced([*self._parts, mark]), self.size + len(mark))

    def _begin_again(self) -> None:
        """Another leads, or leads again: what was found may have been cut."""
        self._term = self._partition.term
        self._position = self._shown_end = self._asked
        self._parts, self.size, self.is_full = [], 0, False

    async def _check_offset(self) -> None:
        """An offset that is not there is an error, also where there would be nothing to show."""
        log = self._partition.log
        if self._position == self._asked and not log.start_offset <= self._asked <= self._partition.high_watermark:
            await self._partition.read(self._asked, 1)

    def _judge(self, summary: TagSummary | None) -> Verdict:
        return Verdict.SOME if summary is None else self._matcher.verdict(summary)

    async def _take_whole(self, found: Slice, left: int, *, is_first: bool) -> None:
        """Batches that match as they are go out the way they lie in the log."""
        if found.size > left and not (is_first and not self.size):
            self.is_full = True
            return
        end = await asyncio.get_running_loop().run_in_executor(self._pool, _end_of, found)
        self._parts += found.parts
        self.size += found.size
        self._effort.shown_bytes += found.size
        self._position = self._shown_end = end

    async def _look_at(self, found: Slice, settled: Sequence[tuple[int, int]]) -> Filtered:
        aborted = found.aborted or []
        self._effort.looked_at_bytes += found.size
        if found.size <= _AT_ONCE_BYTES and are_in_memory(found.parts):
            content = found.read()
            if not is_compressed(content):
                return filtered(content, self._matcher, aborted, settled)
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, lambda: filtered(found.read(), self._matcher, aborted, settled)
        )

    def _take(self, seen: Filtered, left: int, *, is_first: bool) -> None:
        for batch in seen.batches:
            if batch.shown_end <= self._asked:
                continue  # the fetch began in the midst of it, behind what is shown of it
            size = len(batch.content)
            if size > left and not (is_first and not self.size):
                self.is_full = True
                return
            self._parts.append(batch.content)
            self.size += size
            self._effort.shown_bytes += size
            left -= size
            self._shown_end, self._position = batch.shown_end, batch.next_offset
        self._position = max(self._position, seen.next_offset)


def _end_of(found: Slice) -> int:
    """The offset behind the last batch."""
    return max(header.next_offset for header in found.headers())
