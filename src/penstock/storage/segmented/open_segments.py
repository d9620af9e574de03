"""How many segment files are open at once: those that were opened longest ago are let go."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from penstock.storage.segmented.files import Files

if TYPE_CHECKING:
    from penstock.storage.segmented.segment import Segment


class OpenSegments:
    """The segments whose file is open, longest open first, so that the number of open files has a bound."""

    def __init__(self, files: Files, limit: int) -> None:
        self.files = files
        self._limit = limit
        self._open: OrderedDict[Segment, None] = OrderedDict()
        self._lock = threading.Lock()
        """Segments are opened by the event loop and by threads."""

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, segment: Segment) -> None:
        with self._lock:
            self._open[segment] = None
            self._open.move_to_end(segment)
            # Not one in, one out: while their bytes were not synced, segments may have piled up beyond the limit.
            for oldest in list(self._open) if len(self._open) > self._limit else ():
                if oldest is not segment and oldest.release():
                    del self._open[oldest]
                    if len(self._open) <= self._limit:
                        return

    def forget(self, segment: Segment) -> None:
        with self._lock:
            self._open.pop(segment, None)
