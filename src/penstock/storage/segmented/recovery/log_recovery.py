"""Bringing a log back from its folder, after a clean stop or a crash; the rules are in `docs/formats/log.md`.

Runs in a thread. What it finds is said in the broker's log: a torn tail that was cut, damage that was left in place, an
index that was made anew.
"""

from __future__ import annotations

import logging
import re
from itertools import pairwise
from pathlib import Path

from penstock.config.topic import TopicConfig
from penstock.errors import StorageError
from penstock.ids import TopicId, TopicPartition
from penstock.logs import fields
from penstock.records.batch import HEADER_BYTES, read_header
from penstock.storage.epochs import EpochHistory
from penstock.storage.files import Files
from penstock.storage.producers import ProducerState
from penstock.storage.segmented.cleaning.cleaner import STATE_FILE, finish_swaps
from penstock.storage.segmented.cleaning.truncation import CUT_FILE, carry_out, load_cut
from penstock.storage.segmented.disk.identity import PARTITION_FILE, Identity, write_identity
from penstock.storage.segmented.disk.state_files import EPOCHS_FILE, StateFiles
from penstock.storage.segmented.flusher import NO_ROOM
from penstock.storage.segmented.index import MAX_RELATIVE
from penstock.storage.segmented.log import SegmentedLog
from penstock.storage.segmented.log_environment import LogEnvironment
from penstock.storage.segmented.recovery.checkpoint import LogPoint
from penstock.storage.segmented.recovery.scan import Damage, survey
from penstock.storage.segmented.recovery.state_recovery import restore_aborted, restore_producers
from penstock.storage.segmented.segment import ABORTED, INDEX, LOG, SUFFIXES, TAGS, TIME_INDEX, Segment, segment_name

logger = logging.getLogger(__name__)

_SEGMENT = re.compile(r"(\d{20})\.log")


def new_log(
    at: TopicPartition, topic_id: TopicId, folder: Path, config: TopicConfig, environment: LogEnvironment
) -> SegmentedLog:
    """A new, empty log; nothing is on disk before its first append, which calls `make_files`."""
    return SegmentedLog(
        at,
        topic_id,
        folder,
        config,
        environment,
        [Segment(folder, 0, environment.open_segments)],
        start_offset=0,
        flushed_offset=0,
        epochs=EpochHistory(),
        producers=ProducerState(environment.max_producers),
        has_files=False,
    )


def recover(
    at: TopicPartition,
    topic_id: TopicId,
    folder: Path,
    config: TopicConfig,
    environment: LogEnvironment,
    point: LogPoint | None,
    clean: bool,
    *,
    is_identified: bool,
) -> SegmentedLog:
    """The log in `folder`; `point` and `clean` are what the checkpoint says. `is_identified`: the folder says that it
    is the one of this topic.
    """
    files = environment.files
    names = files.list_folder(folder)
    if finish_swaps(files, folder, names):
        names = files.list_folder(folder)
    point = point or LogPoint(0, 0, 0)
    if CUT_FILE in names and (cut := load_cut(files, folder)) is not None:
        logger.warning("finished an interrupted truncation", extra=fields(log=str(at), start=cut.start, end=cut.end))
        carry_out(files, folder, cut)
        # What is noted of the cut goes when the checkpoint says the same.
        point, clean = cut.after(point), False
        names = files.list_folder(folder)
    bases = sorted(int(found[1]) for found in map(_SEGMENT.fullmatch, names) if found)
    if not is_identified:
        if bases != [] and any(files.open(folder / (segment_name(base) + LOG)).size() for base in bases):
            raise StorageError(f"{folder.name} does not say which topic it belongs to: {PARTITION_FILE} is unreadable")
        write_identity(files, folder, Identity(topic_id, at))
    _remove_orphans(files, folder, names, bases)
    recovery = _Recovery(at, folder, config, environment, names, bases, point, clean)
    recovery.run()
    segments = recovery.segments
    start = max(point.start, segments[0].base_offset)
    if point.start < start and point.end > point.start:
        logger.warning(
            "the first segments of a log are missing: it now starts at a later offset",
            extra=fields(log=str(at), noted_start=point.start, start=start),
        )
    end = segments[-1].next_offset
    recovery.cut_epochs(end)
    recovery.epochs.trim(start)
    recovery.producers.aborted.trim(start)
    recovery.producers.settle(end)
    return SegmentedLog(
        at,
        topic_id,
        folder,
        config,
        environment,
        segments,
        start_offset=start,
        flushed_offset=recovery.trusted,
        epochs=recovery.epochs,
        producers=recovery.producers,
        high_watermark=min(max(point.high, start), end) if point.high >= 0 else -1,
        # Those that were found in the tail are not read there any more once it counts as synced.
        epochs_are_saved=recovery.epochs.starts == recovery.saved_epochs,
        # Those below the last segment may go, and a replay would no longer find what was in them.
        producers_are_saved=recovery.producers_are_saved,
        saved_end=recovery.saved_end,
    )


def _remove_orphans(files: Files, folder: Path, names: list[str], bases: list[int]) -> None:
    """Indexes whose segment is gone, and files that were never finished: what a crash cut short."""
    kept = {segment_name(base) for base in bases}
    for name in names:
        if name.endswith(".new") or (name.endswith((INDEX, TIME_INDEX, ABORTED, TAGS)) and name[:20] not in kept):
            files.remove(folder / name)


class _Recovery:
    """One pass over the segments of one log."""

    def __init__(
        self,
        at: TopicPartition,
        folder: Path,
        config: TopicConfig,
        environment: LogEnvironment,
        names: list[str],
        bases: list[int],
        point: LogPoint,
        clean: bool,
    ) -> None:
        self._at = at
        self._folder = folder
        self._names = names
        self._config = config
        self._files = environment.files
        self._open_segments = environment.open_segments
        self._now_ms = environment.clock.now_ms()
        self._point = point
        self._clean = clean
        self.trusted = point.end if clean else point.recovery
        """Everything below was synced: it is taken as it is, and if it is not there, it is missing."""
        self._may_have_gaps = "compact" in config.cleanup_policy or STATE_FILE in names
        self.segments = [Segment(folder, base, self._open_segments) for base in bases]
        self.producers = ProducerState(environment.max_producers)
        known = self._load_epochs()
        self._read_all = known is None
        self.epochs = known or EpochHistory()
        self.saved_epochs = None if known is None else known.starts
        """Those on disk."""
        self.producers_are_saved = True
        """Whether a snapshot is on disk as of the beginning of the last segment, or later."""
        self.saved_end = -1
        """The end of the log, if a clean stop has saved all that it saves for it."""

    def run(self) -> None:
        self._drop_below_start()
        self._drop_empty_ends()
        if not self.segments:
            self.segments = [self._first_segment()]
        first_offset = self.segments[0].base_offset
        replay_from = restore_producers(
            self._files, self._folder, self._names, self.trusted, first_offset, self.producers
        )
        self.producers_are_saved = replay_from >= self.segments[-1].base_offset
        lists_are_whole = restore_aborted(self._files, self.segments, replay_from, self.producers)
        for segment, following in pairwise(self.segments):
            self._adopt(segment, following.base_offset)
            if self._read_all or segment.next_offset > min(self.trusted, replay_from):
                self._read_through(segment, replay_from, is_last=False)
        last = self.segments[-1]
        if self._adopt_clean_end(last, replay_from):
            self.saved_end = last.next_offset if lists_are_whole else -1
        else:
            self._read_through(last, replay_from, is_last=True)
            self._hold_open_limit(last)
        self._save_aborted(0 if not lists_are_whole else replay_from)

    def _hold_open_limit(self, segment: Segment) -> None:
        """Syncs the last segment where a broker has more logs than files that may be open: it may not be synced yet,
        and a file that is not synced must stay open.
        """
        if not self._open_segments.has_room():
            segment.sync()
            segment.synced_size = segment.size

    def _first_segment(self) -> Segment:
        """There is no file with records at or behind the start: the log goes on at the highest offset known."""
        point = self._point
        base_offset = max(point.start, self.trusted)
        segment = Segment.create(self._folder, base_offset, self._open_segments)
        if base_offset > point.start:
            logger.error(
                "records are missing: no segment has these offsets",
                extra=fields(log=str(self._at), lost_from_offset=point.start, readable_again_from=base_offset),
            )
        return segment

    def _drop_below_start(self) -> None:
        """Segments whose removal a crash undid or cut short."""
        start = self._point.start
        while len(self.segments) > 1 and self.segments[1].base_offset <= start:
            self._remove(self.segments.pop(0), "below the start of the log")
        if len(self.segments) == 1 and self.trusted < start and self._end_of(self.segments[0]) < start:
            # The start was noted before the segment that begins there was synced, and a power loss took that one.
            self._remove(self.segments.pop(), "below the start of the log")

    def _drop_empty_ends(self) -> None:
        """After a power loss a segment can be there while the end of the one before it, never synced, is not.

        If there is nothing in it, it is forgotten: the log ends where its records end.
        """
        while len(self.segments) > 1:
            before, last = self.segments[-2:]
            if last.base_offset <= self.trusted or not self._is_empty(last):
                return
            if self._end_of(before) == last.base_offset:
                return
            self._remove(self.segments.pop(), "an empty segment behind an end that was never completed")

    def _is_empty(self, segment: Segment) -> bool:
        """Whether there is no sound batch in it."""
        found = survey(segment.file, 0, segment.file.size(), segment.base_offset - 1)
        return all(isinstance(each, Damage) for each in found)

    def _end_of(self, segment: Segment) -> int:
        """The offset behind the last sound batch."""
        file, end = segment.file, segment.base_offset
        for found in survey(file, 0, file.size(), segment.base_offset - 1):
            if not isinstance(found, Damage):
                end = found.header.next_offset
        return end

    def _remove(self, segment: Segment, why: str) -> None:
        logger.warning("segment removed", extra=fields(log=str(self._at), segment=segment.path().name, reason=why))
        segment.close()
        for suffix in SUFFIXES:
            self._files.remove(segment.path(suffix))
        gone = segment_name(segment.base_offset)
        self._names = [name for name in self._names if not name.startswith(gone)]

    def _adopt(self, segment: Segment, next_offset: int) -> None:
        """Takes a closed segment as it is, by its indexes and its last batches; reads it all if they do not fit."""
        end = self._take_known(segment)
        segment.next_offset = next_offset
        segment.index_saved = True
        if end is None or (end != next_offset and not self._may_have_gaps):
            self._read_through(segment, 1 << 62, is_last=False)

    def _adopt_clean_end(self, segment: Segment, replay_from: int) -> bool:
        """After a clean stop the end of the log is known; True if the last segment bears that out."""
        if not self._clean or self._read_all or replay_from < self.trusted:
            return False
        end = self._take_known(segment)
        segment.next_offset = self.trusted
        return end == self.trusted

    def _take_known(self, segment: Segment) -> int | None:
        """Size, bounds and index of a segment; gives the offset behind its last batch, None if it has to be read."""
        file = segment.file
        size = segment.size = segment.synced_size = segment.written_back = file.size()
        segment.appended_from = segment.hot_from = size
        index = segment.load_index()
        if index is None:
            return None
        if index.times:
            segment.max_timestamp = index.times[-1]
            segment.max_timestamp_offset = segment.base_offset + index.time_offsets[-1]
        if size >= HEADER_BYTES:
            segment.first_timestamp = read_header(file.read(0, HEADER_BYTES)).max_timestamp
        position, end = index.positions[-1] if index.positions else 0, segment.base_offset
        for found in survey(file, position, size):
            if isinstance(found, Damage):
                return None
            end = found.header.next_offset
        return end

    def _read_through(self, segment: Segment, replay_from: int, *, is_last: bool) -> None:
        """Reads every batch of a segment and makes indexes, bounds, epochs and producer state anew; of the last one
        only what lies behind its saved indexes, the last snapshot of producers, or what was synced.
        """
        file, next_offset = segment.file, self.trusted if is_last else segment.next_offset
        size = file.size()
        segment.forget_content()
        damage = []
        below = segment.base_offset + MAX_RELATIVE if is_last else next_offset
        start = 0
        if is_last and not self._read_all:
            start = segment.take_head(min(self.trusted, replay_from), size)
        for found in survey(file, start, size, segment.next_offset - 1, below):
            if isinstance(found, Damage):
                damage.append(found)
                continue
            header = found.header
            segment.note(header, header.base_offset, found.position, self._config.index_interval_bytes)
            segment.checked.add(found.position, found.end)
            if header.leader_epoch >= 0:
                self.epochs.begin(header.leader_epoch, header.base_offset)
            if header.producer_id >= 0 and header.base_offset >= replay_from:
                self.producers.replay(found.batch, header, self._now_ms)
        if damage and damage[-1].resumes_at is None:
            tail = damage.pop()
            if is_last and tail.first_offset >= self.trusted:
                self._cut_torn_tail(segment, tail)
                size = tail.start
            else:
                # What cannot be read was once synced: offsets there were given out and are never given again.
                damage.append(tail._replace(resumes_at=next_offset))
        elif segment.next_offset < next_offset and (is_last or not self._may_have_gaps):
            damage.append(Damage(size, size, segment.next_offset, next_offset))
        segment.next_offset = max(segment.next_offset, next_offset)
        segment.size = segment.written_back = segment.appended_from = segment.hot_from = size
        segment.synced_size = size if segment.next_offset <= self.trusted and not is_last else 0
        segment.mark_damage(tuple(found for found in damage if (found.resumes_at or 0) > self._point.start))
        if not is_last:
            segment.save_index()

    def _cut_torn_tail(self, segment: Segment, tail: Damage) -> None:
        logger.warning(
            "cut a torn tail: an append that was never completed",
            extra=fields(
                log=str(self._at), segment=segment.path().name, position=tail.start, bytes=tail.end - tail.start
            ),
        )
        # Saved indexes may reach beyond that, and must not be believed when the segment has grown again.
        for suffix in (INDEX, TIME_INDEX):
            self._files.remove(segment.path(suffix))
        self._files.sync_folder(self._folder)
        segment.head_size = 0
        segment.file.truncate(tail.start)
        segment.file.sync()

    def _save_aborted(self, from_offset: int) -> None:
        """Writes the lists of closed segments that a replay or a search has completed."""
        closed = [segment for segment in self.segments[:-1] if segment.next_offset > from_offset]
        try:
            state_files = StateFiles(self._files, self._folder, self.epochs, self.producers)
            state_files.aborted_job(closed, self.producers.aborted)()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            logger.warning(
                "no disk space for the lists of aborted transactions; the next start rebuilds them",
                extra=fields(log=str(self._at), error=str(error)),
            )

    def cut_epochs(self, end_offset: int) -> None:
        """What lies behind the end of the log is gone, on disk too: a follower may append older epochs there."""
        if not self.epochs.cut(end_offset):
            return
        try:
            self._files.replace(self._folder / EPOCHS_FILE, self.epochs.to_text().encode())
            self.saved_epochs = self.epochs.starts
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            logger.warning(
                "no disk space for the leader epochs file", extra=fields(log=str(self._at), error=str(error))
            )

    def _load_epochs(self) -> EpochHistory | None:
        """None if the file is missing or damaged: then recovery reads the epoch of every batch."""
        content = self._files.read(self._folder / EPOCHS_FILE) if EPOCHS_FILE in self._names else None
        try:
            return None if content is None else EpochHistory.from_text(content.decode())
        except ValueError as error:
            logger.warning(
                "ignoring an unreadable leader epochs file", extra=fields(log=str(self._at), reason=str(error))
            )
            return None
