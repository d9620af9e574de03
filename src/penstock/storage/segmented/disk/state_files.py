"""The small files beside a log's segments: leader epochs, producer snapshots, lists of aborted transactions.

They are written in threads, each as a whole. What a list of aborted transactions and a snapshot hold is fixed when the
job is made; the list of a segment is on disk before the snapshot that makes its replay unnecessary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.storage.aborted import AbortedIndex
from penstock.storage.epochs import EpochHistory
from penstock.storage.files import Files
from penstock.storage.producers import ProducerState
from penstock.storage.segmented.segment import ABORTED, PRODUCERS, Segment, segment_name
from penstock.storage.snapshots import snapshot_of

EPOCHS_FILE = "epochs"
_SNAPSHOTS_KEPT = 2
"""The second is there in case the newest is damaged."""


class StateFiles:
    """Writes the small files of one log."""

    def __init__(self, files: Files, folder: Path, epochs: EpochHistory, producers: ProducerState) -> None:
        self._files = files
        self._folder = folder
        self._epochs = epochs
        self._producers = producers

    def save_epochs(self) -> None:
        self._files.replace(self._folder / EPOCHS_FILE, self._epochs.to_text().encode())

    def state_job(self, segment: Segment, end_offset: int, high_watermark: int) -> Callable[[], None]:
        """Saves the aborted transactions of the last segment, and then the producers, as of now.

        Snapshots that no cut down to the high watermark (-1: not known) could need are removed.
        """
        aborted = self._producers.aborted.to_bytes(segment.base_offset, end_offset)
        producers = snapshot_of(self._producers)

        def save() -> None:
            self._files.replace(segment.path(ABORTED), aborted)
            self._files.replace(self._folder / (segment_name(end_offset) + PRODUCERS), producers)
            snapshots = sorted(name for name in self._files.list_folder(self._folder) if name.endswith(PRODUCERS))
            needed = [name for name in snapshots if int(name[:20]) <= high_watermark][-1:]
            for name in snapshots[:-_SNAPSHOTS_KEPT]:
                if high_watermark < 0 or (needed and name < needed[0]):
                    self._files.remove(self._folder / name)

        return save

    def aborted_job(self, segments: Sequence[Segment], aborted: AbortedIndex) -> Callable[[], None]:
        """Saves the lists of closed segments, as of now."""
        contents = [
            (segment.path(ABORTED), aborted.to_bytes(segment.base_offset, segment.next_offset)) for segment in segments
        ]

        def save() -> None:
            for path, content in contents:
                self._files.replace(path, content)

        return save
