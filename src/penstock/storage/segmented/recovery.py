"""Bringing a log back from its folder, after a clean stop or a crash; the rules are in `docs/formats/log.md`.

Runs in a thread. What it finds is said in the broker's log: a torn tail that was cut, damage that was left in place, an
index that was made anew.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

from penstock.config.topic import TopicConfig
from penstock.errors import StorageError
from penstock.ids import TopicId, TopicPartition
from penstock.logs import fields
from penstock.storage.epochs import EpochHistory
from penstock.storage.producers import ProducerState
from penstock.storage.segmented.checkpoint import LogPoint
from penstock.storage.segmented.cleaner import finish_swaps
from penstock.storage.segmented.files import Files
from penstock.storage.segmented.log import SegmentedLog, Surroundings
from penstock.storage.segmented.scan import batches, find_next
from penstock.storage.segmented.segment import PRODUCERS, TIME_INDEX, Segment, segment_name

logger = logging.getLogger(__name__)

PARTITION_FILE = "partition.json"
_FORMAT = 1
_SEGMENT = re.compile(r"(\d{20})\.log")
_SNAPSHOT = re.compile(r"(\d{20})\.producers")


def write_identity(files: Files, folder: Path, at: TopicPartition, topic_id: TopicId) -> None:
    content = {"format": _FORMAT, "topic": at.topic, "topic_id": str(topic_id), "partition": at.partition}
    files.replace(folder / PARTITION_FILE, json.dumps(content).encode())


def read_identity(files: Files, folder: Path) -> TopicId | None:
    """The topic id of a partition's folder; None if the folder does not say."""
    content = files.read(folder / PARTITION_FILE)
    if content is None:
        return None
    try:
        return TopicId(json.loads(content)["topic_id"])
    except (ValueError, KeyError, TypeError):
        return None


def create(
    at: TopicPartition, topic_id: TopicId, folder: Path, config: TopicConfig, surroundings: Surroundings
) -> SegmentedLog:
    """A new, empty log."""
    files = surroundings.files
    files.make_folder(folder)
    write_identity(files, folder, at, topic_id)
    segment = Segment.create(folder, 0, surroundings.open_segments)
    files.sync_folder(folder)
    return SegmentedLog(
        at,
        topic_id,
        folder,
        config,
        surroundings,
        [segment],
        start_offset=0,
        flushed_offset=0,
        epochs=EpochHistory(),
        producers=ProducerState(surroundings.max_producers),
    )


def recover(
    at: TopicPartition,
    topic_id: TopicId,
    folder: Path,
    config: TopicConfig,
    surroundings: Surroundings,
    point: LogPoint | None,
    clean: bool,
) -> SegmentedLog:
    """The log in `folder`; `point` and `clean` are what the checkpoint says."""
    files = surroundings.files
    finish_swaps(files, folder)
    names = sorted(name for name in files.list_folder(folder) if _SEGMENT.fullmatch(name))
    segments = [Segment(folder, int(name[:20]), surroundings.open_segments) for name in names]
    if not segments:
        segments = [Segment.create(folder, point.end if point else 0, surroundings.open_segments)]
    recovery = _Recovery(at, folder, config, surroundings, segments)
    trusted = point.end if point and clean else point.recovery if point else 0
    recovery.run(trusted, clean and point is not None)
    segments = recovery.segments
    start = max(point.start if point else 0, segments[0].base_offset)
    end = segments[-1].next_offset
    recovery.epochs.cut(end)
    if start > end:
        raise StorageError(f"{at} should start at {start} but ends at {end}: segments are missing from {folder.name}")
    return SegmentedLog(
        at,
        topic_id,
        folder,
        config,
        surroundings,
        segments,
        start_offset=start,
        flushed_offset=min(trusted, end),
        epochs=recovery.epochs,
        producers=recovery.producers,
    )


class _Recovery:
    """One pass over the segments of one log."""

    def __init__(
        self,
        at: TopicPartition,
        folder: Path,
        config: TopicConfig,
        surroundings: Surroundings,
        segments: list[Segment],
    ) -> None:
        self._at = at
        self._folder = folder
        self._config = config
        self._files = surroundings.files
        self.segments = segments
        self.producers = ProducerState(surroundings.max_producers)
        self.epochs = self._load_epochs()

    def run(self, trusted_offset: int, clean: bool) -> None:
        """Everything below `trusted_offset` was synced and is taken as it is; all behind it is read and checked."""
        for segment, following in zip(self.segments, self.segments[1:], strict=False):
            self._adopt(segment, following.base_offset)
        replay_from = self._restore_producers(trusted_offset)
        last = self.segments[-1]
        for segment in list(self.segments):
            if segment is not last and segment.next_offset <= min(trusted_offset, replay_from):
                continue
            if clean and segment is last and self._adopt_clean_end(segment, trusted_offset, replay_from):
                continue
            self._read_through(segment, trusted_offset, replay_from, is_last=segment is last)

    def _adopt(self, segment: Segment, next_offset: int) -> None:
        """Takes a segment as it is, by its size and its indexes."""
        segment.size = segment.synced_size = segment.written_back = segment.appended_from = segment.file.size()
        segment.next_offset = next_offset
        segment.index_saved = self._files.exists(segment.path(TIME_INDEX))
        index = segment.index
        if index.times:
            segment.max_timestamp = index.times[-1]
            segment.max_timestamp_offset = segment.base_offset + index.time_offsets[-1]
        elif segment.size:
            self._read_through(segment, 1 << 62, 1 << 62, is_last=False)
            return
        first = next(iter(batches(segment.file, 0, segment.size)), None)
        segment.first_timestamp = first.header.max_timestamp if first else -1

    def _adopt_clean_end(self, segment: Segment, end: int, replay_from: int) -> bool:
        """After a clean stop the end of the log is known; True if the last segment bears that out."""
        self._adopt(segment, end)
        position = segment.index.last_position_up_to(segment.size)
        last_offset = None
        for found in batches(segment.file, position, segment.size):
            last_offset = found.header.last_offset
            position = found.position + found.header.size
        expected = end - 1 if segment.size else None
        return position == segment.size and last_offset == expected and replay_from >= end

    def _read_through(self, segment: Segment, trusted_offset: int, replay_from: int, *, is_last: bool) -> None:
        """Reads every batch of a segment and makes indexes, bounds, epochs and producer state anew."""
        file, size = segment.file, segment.file.size()
        next_offset = segment.next_offset
        segment.forget_content()
        position, last_offset, damaged = 0, segment.base_offset - 1, 0
        while position < size:
            for found in batches(file, position, size, last_offset):
                header = found.header
                segment.note(header, header.base_offset, found.position, self._config.index_interval_bytes)
                if header.leader_epoch >= 0:
                    self.epochs.begin(header.leader_epoch, header.base_offset)
                if header.producer_id >= 0 and header.base_offset >= replay_from:
                    self.producers.remember(header, header.base_offset)
                position, last_offset = found.position + header.size, header.last_offset
            if position >= size:
                break
            following = find_next(file, position + 1, size, last_offset)
            if following is None:
                break
            damaged += following.position - position
            self._report_damage(segment, position, following.position, last_offset, following.header.base_offset)
            segment.checked.add(0, position)
            position = following.position
        if position < size:
            if is_last and last_offset + 1 >= trusted_offset:
                self._cut_torn_tail(segment, position, size)
                size = position
            else:
                self._report_damage(segment, position, size, last_offset, None)
        segment.size = segment.written_back = segment.appended_from = size
        segment.synced_size = 0
        if not damaged and position == size:
            segment.checked.add(0, size)
        if not is_last:
            segment.next_offset = next_offset
            segment.save_index()
        elif position < size:
            # What cannot be read at the end was once synced: offsets there were given out and are never given again.
            segment.next_offset = max(segment.next_offset, trusted_offset)

    def _cut_torn_tail(self, segment: Segment, position: int, size: int) -> None:
        logger.warning(
            "torn tail cut: an append that was never completed",
            extra=fields(log=str(self._at), segment=segment.path().name, position=position, bytes=size - position),
        )
        segment.file.truncate(position)
        segment.file.sync()

    def _report_damage(self, segment: Segment, start: int, end: int, last_offset: int, following: int | None) -> None:
        logger.error(
            "damaged bytes found and left in place: reads stop before them, what lies behind is readable",
            extra=fields(
                log=str(self._at),
                segment=segment.path().name,
                position=start,
                bytes=end - start,
                after_offset=last_offset,
                readable_again_from=following,
            ),
        )

    def _restore_producers(self, trusted_offset: int) -> int:
        """Loads the newest sound snapshot; gives the offset from which batches must be replayed."""
        names = [name for name in self._files.list_folder(self._folder) if _SNAPSHOT.fullmatch(name)]
        for base_offset in sorted((int(name[:20]) for name in names), reverse=True):
            path = self._folder / (segment_name(base_offset) + PRODUCERS)
            if base_offset > trusted_offset:
                self._files.remove(path)
                continue
            try:
                self.producers.restore(self._files.read(path) or b"")
            except ValueError as error:
                logger.warning("producer snapshot ignored", extra=fields(file=str(path), reason=str(error)))
                self._files.remove(path)
                continue
            return base_offset
        return 0

    def _load_epochs(self) -> EpochHistory:
        content = self._files.read(self._folder / "epochs")
        try:
            return EpochHistory.from_text((content or b"").decode())
        except (ValueError, TypeError) as error:
            logger.warning("leader epochs ignored", extra=fields(log=str(self._at), reason=str(error)))
            return EpochHistory()
