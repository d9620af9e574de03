"""Python imports this at start when the folder is in PYTHONPATH: it records which modules of Penstock a process enters.

Only calls below a module in TRACE_DOORS count: the socket, for instance, but not the timers that run beside it. A
module is written to TRACE_FOLDER/PID once, when the process first enters it, with the time. SIGUSR1 starts over.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import CodeType, FrameType

_ROOM = f"{os.sep}penstock{os.sep}"


class Tracer:
    def __init__(self, folder: str, doors: frozenset[str]) -> None:
        self._path = os.path.join(folder, str(os.getpid()))
        self._doors = doors
        self._names: dict[CodeType, str | None] = {}
        self._entered: set[str] = set()

    def begin_anew(self, number: int, frame: FrameType | None) -> None:
        self._entered.clear()
        with open(self._path, "w"):
            pass

    def on_event(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        name = self._name_of(frame.f_code)
        if name is None or name in self._entered or not self._comes_from_a_door(frame):
            return
        self._entered.add(name)
        with open(self._path, "a") as file:
            file.write(f"{time.monotonic_ns()} {name}\n")

    def _comes_from_a_door(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if self._name_of(frame.f_code) in self._doors:
                return True
            frame = frame.f_back
        return False

    def _name_of(self, code: CodeType) -> str | None:
        """The path of the code's module inside the package; None for others, and for what importing runs."""
        try:
            return self._names[code]
        except KeyError:
            _, found, inside = code.co_filename.rpartition(_ROOM)
            name = inside.replace(os.sep, "/") if found and code.co_name != "<module>" else None
            self._names[code] = name
            return name


if "TRACE_FOLDER" in os.environ:
    _tracer = Tracer(os.environ["TRACE_FOLDER"], frozenset(os.environ["TRACE_DOORS"].split(",")))
    signal.signal(signal.SIGUSR1, _tracer.begin_anew)
    threading.setprofile(_tracer.on_event)
    sys.setprofile(_tracer.on_event)
