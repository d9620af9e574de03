"""Wall clocks of broker processes that a test sets ahead and back while they run."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

from support.programs import required_program

_SOURCE = Path(__file__).with_name("shifted_clock.c")


class ShiftedClocks:
    """A clock for each process that is started with its `environment`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._compiled = folder / "shifted_clock.so"
        command = [required_program("cc"), "-O2", "-shared", "-fPIC", "-o", str(self._compiled), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True)

    def environment(self, name: str) -> Mapping[str, str]:
        self.set(name, 0)
        return {"LD_PRELOAD": str(self._compiled), "SHIFTED_CLOCK": str(self._path(name))}

    def set(self, name: str, ahead_ms: int) -> None:
        """The clock is ahead by so much from now on."""
        path = self._path(name)
        # The same file stays mapped: it is written to, never replaced.
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(struct.pack("=q", ahead_ms))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.clock"
