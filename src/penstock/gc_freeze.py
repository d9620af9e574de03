"""Keeps the garbage collector away from long-lived objects.

A partition is about forty objects. While thousands are created, Python's collector scans all of them repeatedly, for a
tenth of a second and more at a time, during which the broker serves no client. It would find nothing: these objects
live until their topic is deleted, and `SegmentedLog.close` breaks their cycles then.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_inside = 0


@contextmanager
def freezing() -> Iterator[None]:
    """Objects created inside are exempt from collection for good; the collector is off meanwhile."""
    global _inside
    if _inside == 0 and not gc.isenabled():
        # The process runs without the collector.
        yield
        return
    _inside += 1
    gc.disable()
    try:
        yield
    finally:
        _inside -= 1
        if _inside == 0:
            gc.freeze()
            gc.enable()
