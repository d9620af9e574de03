"""Disks of brokers that run full or slow while the broker runs.

Full: the data folder is a file system in memory that is shrunk to what is used, and given its size back. Slow: the
broker is started with `slow_disk.c` before its C library, which delays writes and syncs as long as it is told to.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

_SOURCE = Path(__file__).with_name("slow_disk.c")
_ROOMY = "1g"
"""Taken from memory as it is written to, not before."""
_BLOCK_BYTES = 4096
_SHRINKINGS = 100
"""The broker goes on writing between the look and the step."""


class Disks:
    """Must be entered before the brokers are started, and left when they have ended. `missing` says what cannot be."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mounted: list[Path] = []
        self._compiled = folder / "slow_disk.so"
        self.missing: dict[str, str] = {}
        """The faults that this machine does not allow, and why."""

    def __enter__(self) -> Disks:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._compile()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for data in self._mounted:
            subprocess.run(["umount", "--lazy", data], check=True)

    def keep(self) -> None:
        """Copies what lies on them to where it stays."""
        for data in self._mounted:
            shutil.copytree(data, data.with_name("data-kept"))

    def prepare(self, number: int) -> Mapping[str, str]:
        """Makes the disk of a broker; what the broker must have in its environment."""
        self._mount(self._data(number))
        if "slow disk" in self.missing:
            return {}
        self._set_delays(number, 0, 0)
        return {"LD_PRELOAD": str(self._compiled), "SLOW_DISK": str(self._delays(number))}

    def fill(self, number: int, left_bytes: int) -> None:
        """From now on there is no room for more than this."""
        for _ in range(_SHRINKINGS):
            used = os.statvfs(self._data(number))
            size = (used.f_blocks - used.f_bfree) * used.f_frsize + left_bytes
            if self._resize(number, str(-(-size // _BLOCK_BYTES) * _BLOCK_BYTES)):
                return
        raise RuntimeError(f"the disk of broker {number} grows faster than it can be shrunk")

    def make_room(self, number: int) -> None:
        assert self._resize(number, _ROOMY), f"the disk of broker {number} cannot be made larger"

    def slow_down(self, number: int, write_s: float, sync_s: float) -> None:
        """Every write and every sync takes so much longer."""
        self._set_delays(number, int(write_s * 1e6), int(sync_s * 1e6))

    def speed_up(self, number: int) -> None:
        self._set_delays(number, 0, 0)

    def _data(self, number: int) -> Path:
        return self._folder / f"broker-{number}" / "data"

    def _delays(self, number: int) -> Path:
        return self._folder / f"broker-{number}.delays"

    def _set_delays(self, number: int, write_us: int, sync_us: int) -> None:
        path = self._delays(number)
        # The same file stays mapped: it is written to, never replaced.
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(struct.pack("=II", write_us, sync_us))

    def _compile(self) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            self.missing["slow disk"] = "there is no C compiler (cc)"
            return
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(self._compiled), str(_SOURCE), "-ldl"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            self.missing["slow disk"] = f"{_SOURCE.name} cannot be compiled: {made.stderr[-200:]}"

    def _mount(self, data: Path) -> None:
        if "full disk" in self.missing:
            return
        data.mkdir(parents=True)
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_ROOMY}", "penstock-chaos", data],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            self.missing["full disk"] = f"no file system can be mounted: {made.stderr.strip()}"
        else:
            self._mounted.append(data)

    def _resize(self, number: int, size: str) -> bool:
        """False if there is more on it by now."""
        command = ["mount", "-o", f"remount,size={size}", str(self._data(number))]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
