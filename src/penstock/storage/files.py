"""The one seam for everything storage does to files, so that a test can lose, tear or refuse what was not synced.

Nothing else in this room calls `os` on a file. `Files` uses the machine's disk; `faulty_files.FaultyFiles` injects
faults.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

_RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_SYNC_FILE_RANGE_ALL = 1 | 2 | 4
"""Wait for what is under way, start the range, wait for it."""

_ROOM_BYTES = 4 << 20
_SMALL_BYTES = 1 << 16
_PROBE_STRIDE = 128 * 1024


class File:
    """One open file. It is closed with the last reference to it, so a slow reader keeps what it is being sent."""

    __slots__ = ("__weakref__", "_fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def __del__(self) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def modified_ms(self) -> int:
        """When the file was written to last, in milliseconds since 1970."""
        return os.fstat(self._fd).st_mtime_ns // 1_000_000

    def write(self, position: int, data: memoryview | bytes | bytearray) -> None:
        """Writes all of `data` or raises."""
        written = os.pwrite(self._fd, data, position)
        if written != len(data):
            view = memoryview(data)
            while written < len(view):
                written += os.pwrite(self._fd, view[written:], position + written)

    def read(self, position: int, size: int) -> bytes:
        """At most `size` bytes; fewer only at the end of the file."""
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts, filled = [data], len(data)
        while filled < size and (more := os.pread(self._fd, size - filled, position + filled)):
            parts.append(more)
            filled += len(more)
        return b"".join(parts)

    def read_cached(self, position: int, size: int) -> bytes | None:
        """Like `read`, or None if the disk would have to be waited for."""
        buffer = bytearray(size)
        try:
            count = os.preadv(self._fd, [buffer], position, _RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return self.read(position, size)
        if count < size and position + count < self.size():
            return None
        return bytes(memoryview(buffer)[:count])

    def is_cached(self, position: int, size: int) -> bool:
        """Whether a range seems to lie in the page cache, by samples: the kernel evicts and reads ahead in runs."""
        probe = bytearray(1)
        last = position + size - 1
        try:
            for at in range(position, last, _PROBE_STRIDE):
                os.preadv(self._fd, [probe], at, _RWF_NOWAIT)
            os.preadv(self._fd, [probe], last, _RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True  # the file system does not know RWF_NOWAIT: nothing better can be said
        return True

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """Returns when the content would survive a power loss."""
        os.fdatasync(self._fd)

    def write_back(self, position: int, size: int) -> None:
        """Returns when a range has been handed to the disk; a promise about speed, not about power loss."""
        _sync_file_range(self._fd, position, size)


class FileSlice:
    """A range of a file on its way to a socket."""

    __slots__ = ("_file", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self._file = file
        self.position = position
        self.size = size

    def fileno(self) -> int:
        return self._file.fileno()

    def read(self, at: int = 0, size: int | None = None) -> bytes:
        return self._file.read(self.position + at, self.size - at if size is None else size)


class Files:
    """The file system of the machine."""

    def open(self, path: Path) -> File:
        """Opens a file that is there, for reading and writing."""
        return File(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def open_to_read(self, path: Path) -> File:
        """Opens a file that is there and may belong to another user."""
        return File(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def create(self, path: Path) -> File:
        """An empty file, open for reading and writing; what was there before is gone."""
        return File(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def list_folder(self, path: Path) -> list[str]:
        return os.listdir(path)

    def folders_in(self, path: Path) -> list[str]:
        """The names of the folders in a folder."""
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def has_room(self, folder: Path) -> bool:
        """Whether there is more room than for a record here and there."""
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize >= _ROOM_BYTES

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_folder(self, path: Path) -> bool:
        return path.is_dir()

    def read(self, path: Path) -> bytes | None:
        """All of a small file; None if it is not there."""
        # Without Python's own layers of files: a start reads six of these for each log.
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            parts = []
            while part := os.read(fd, _SMALL_BYTES):
                parts.append(part)
                if len(part) < _SMALL_BYTES:
                    break
            return b"".join(parts)
        finally:
            os.close(fd)

    def replace(self, path: Path, content: bytes) -> None:
        """Replaces a small file as a whole: after a crash there is the old one or the new one."""
        aside = path.with_name(path.name + ".new")
        file = self.create(aside)
        try:
            file.write(0, content)
            file.sync()
        except OSError:
            self.remove(aside)
            raise
        self.rename(aside, path)
        self.sync_folder(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        """Removes a file; one that is not there is fine."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def remove_folder(self, path: Path) -> None:
        """Removes a folder of plain files."""
        for name in self.list_folder(path):
            self.remove(path / name)
        os.rmdir(path)

    def sync_folder(self, path: Path) -> None:
        """Makes creations, renames and removals in a folder durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _find_sync_file_range() -> Callable[[int, int, int], None]:
    """Python has no binding for sync_file_range(2); without the call the whole file is synced instead."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if call is None:
        return lambda fd, position, size: os.fdatasync(fd)
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

    def sync_file_range(fd: int, position: int, size: int) -> None:
        if call(fd, position, size, _SYNC_FILE_RANGE_ALL):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    return sync_file_range


_sync_file_range = _find_sync_file_range()
