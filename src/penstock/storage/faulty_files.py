"""The machine on a bad day: real files, with a memory of what was synced, and faults on demand. For tests.

`power_loss` takes the folder back to a state that a disk could show: what was synced is there; what was not is gone,
there, or torn at the edge of a sector; names that were made, moved or removed without a sync of their folder are as
they were, or as they became. Everything below `root` counts as safe when the object is made.

Rules:
- A write goes to the real file at once, so that reads, `sendfile` and page cache tests see what a process would see.
- After a failed sync, what it should have made safe never becomes safe: the kernel drops such pages.
- Call `power_loss` for the folder itself only when the files are no longer in use.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from penstock.storage.files import File, Files

SECTOR_BYTES = 512


class _FileNode:
    """The content of a file as the disk has it, and the changes that may not have reached it."""

    def __init__(self, safe: bytes) -> None:
        self.safe = bytearray(safe)
        self.changes: list[tuple[int, bytes | None]] = []
        """(position, bytes written), or (size, None) for a truncation."""
        self.doomed: list[tuple[int, bytes | None]] = []
        """Changes that a failed sync has lost sight of."""

    def sync(self) -> None:
        for change in self.changes:
            _apply(self.safe, change)
        self.changes.clear()

    def after_power_loss(self, chance: random.Random) -> bytes:
        content = bytearray(self.safe)
        for position, data in self.doomed + self.changes:
            fate = chance.choice(("kept", "lost", "torn"))
            if fate == "kept" or (data is None and fate == "torn"):
                _apply(content, (position, data))
            elif fate == "torn" and data is not None:
                for start in range(position - position % SECTOR_BYTES, position + len(data), SECTOR_BYTES):
                    low, high = max(start, position), min(start + SECTOR_BYTES, position + len(data))
                    if chance.random() < 0.5:
                        _apply(content, (low, data[low - position : high - position]))
        return bytes(content)


class _FolderNode:
    """The names in a folder as they are, and the changes that may not have reached the disk."""

    def __init__(self) -> None:
        self.live: dict[str, _Node] = {}
        self.safe: dict[str, _Node] = {}
        self.changes: list[dict[str, _Node | None]] = []
        """Each change happens as a whole: names to what they mean from then on, None for a name that is gone."""

    def change(self, names: dict[str, _Node | None]) -> None:
        self.changes.append(names)
        _rename(self.live, names)

    def sync(self) -> None:
        for names in self.changes:
            _rename(self.safe, names)
        self.changes.clear()

    def after_power_loss(self, chance: random.Random) -> dict[str, _Node]:
        names = dict(self.safe)
        if chance.random() < 0.5:
            # A journal: what was done first is there first.
            survivors = self.changes[: chance.randint(0, len(self.changes))]
        else:
            survivors = [change for change in self.changes if chance.random() < 0.5]
        for change in survivors:
            _rename(names, change)
        return names


_Node = _FileNode | _FolderNode


class FaultyFile(File):
    __slots__ = ("_files", "_node")

    def __init__(self, path: Path, fd: int, node: _FileNode, files: FaultyFiles) -> None:
        super().__init__(path, fd)
        self._node = node
        self._files = files

    def write(self, position: int, data: memoryview | bytes | bytearray) -> None:
        files = self._files
        files.happening("write", self.path)
        with files.lock:
            allowed = files.take_room(len(data))
            super().write(position, data[:allowed])
            self._node.changes.append((position, bytes(data[:allowed])))
        if allowed < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def truncate(self, size: int) -> None:
        self._files.happening("truncate", self.path)
        with self._files.lock:
            super().truncate(size)
            self._node.changes.append((size, None))

    def sync(self) -> None:
        files, node = self._files, self._node
        files.happening("sync", self.path)
        with files.lock:
            covered = len(node.changes)
        files.wait_for_the_disk()
        with files.lock:
            rest = node.changes[covered:]
            del node.changes[covered:]
            error = files.take_sync_error()
            if error:
                node.doomed += node.changes
                node.changes[:] = rest
                raise OSError(error, os.strerror(error), str(self.path))
            node.sync()
            node.changes[:] = rest


class FaultyFiles(Files):
    """Files below `root` whose unsynced changes can be lost, and whose writes and syncs can be made to fail."""

    def __init__(self, root: Path) -> None:
        self.lock = threading.RLock()
        self.syncs = 0
        """How often a file was synced."""
        self.on_operation: Callable[[str, Path], None] | None = None
        """Called before everything that changes or syncs something, with what it is and where."""
        self._root_path = root
        self._room: int | None = None
        self._sync_error = 0
        self._disk_is_free = threading.Event()
        self._disk_is_free.set()
        self._syncs_waiting = 0
        self._root = _FolderNode()
        if root.exists():
            self._root = _read_tree(root)

    # Faults

    def run_full_after(self, count: int) -> None:
        """Lets `count` more bytes be written; then the disk is full."""
        self._room = count

    def make_room(self) -> None:
        self._room = None

    def fail_next_sync(self, error: int = errno.EIO) -> None:
        self._sync_error = error

    def hold_syncs(self) -> None:
        """From now on a sync does not end until `release_syncs`."""
        self._disk_is_free.clear()

    def release_syncs(self) -> None:
        self._disk_is_free.set()

    @property
    def syncs_waiting(self) -> int:
        return self._syncs_waiting

    def power_loss(self, seed: int, into: Path | None = None) -> None:
        """Makes the folder what a disk could show now; the same seed chooses the same fate.

        With `into` that state is put there, and here everything goes on: one run can be cut at many points.
        """
        with self.lock:
            left = _after_power_loss(self._root, random.Random(seed))
            if into is not None:
                _write_tree(into, left)
                return
            self._root = left
            shutil.rmtree(self._root_path, ignore_errors=True)
            _write_tree(self._root_path, left)
            self._room, self._sync_error = None, 0
            self._disk_is_free.set()

    # What files ask

    def happening(self, what: str, path: Path) -> None:
        if self.on_operation is not None:
            self.on_operation(what, path)

    def take_room(self, wanted: int) -> int:
        if self._room is None:
            return wanted
        allowed = min(wanted, self._room)
        self._room -= allowed
        return allowed

    def take_sync_error(self) -> int:
        error, self._sync_error = self._sync_error, 0
        return error

    def wait_for_the_disk(self) -> None:
        with self.lock:
            self.syncs += 1
            self._syncs_waiting += 1
        self._disk_is_free.wait()
        with self.lock:
            self._syncs_waiting -= 1

    # The file system

    def open(self, path: Path) -> File:
        with self.lock:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            return FaultyFile(path, fd, self._file(path), self)

    def create(self, path: Path) -> File:
        self.happening("create", path)
        with self.lock:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            folder = self._folder(path.parent)
            node = folder.live.get(path.name)
            if isinstance(node, _FileNode):
                node.changes.append((0, None))
            else:
                node = _FileNode(b"")
                folder.change({path.name: node})
            return FaultyFile(path, fd, node, self)

    def make_folder(self, path: Path) -> None:
        self.happening("make folder", path)
        with self.lock:
            super().make_folder(path)
            folder = self._root
            for name in path.relative_to(self._root_path).parts:
                node = folder.live.get(name)
                if not isinstance(node, _FolderNode):
                    node = _FolderNode()
                    folder.change({name: node})
                folder = node

    def rename(self, source: Path, target: Path) -> None:
        self.happening("rename", source)
        with self.lock:
            super().rename(source, target)
            assert source.parent == target.parent, "a rename stays in its folder"
            folder = self._folder(source.parent)
            folder.change({target.name: folder.live[source.name], source.name: None})

    def remove(self, path: Path) -> None:
        self.happening("remove", path)
        with self.lock:
            super().remove(path)
            folder = self._folder(path.parent)
            if path.name in folder.live:
                folder.change({path.name: None})

    def remove_folder(self, path: Path) -> None:
        super().remove_folder(path)
        with self.lock:
            self._folder(path.parent).change({path.name: None})

    def sync_folder(self, path: Path) -> None:
        self.happening("sync folder", path)
        with self.lock:
            super().sync_folder(path)
            if path.is_relative_to(self._root_path):
                self._folder(path).sync()

    def _folder(self, path: Path) -> _FolderNode:
        node: _Node = self._root
        for name in path.relative_to(self._root_path).parts:
            assert isinstance(node, _FolderNode)
            node = node.live[name]
        assert isinstance(node, _FolderNode)
        return node

    def _file(self, path: Path) -> _FileNode:
        node = self._folder(path.parent).live[path.name]
        assert isinstance(node, _FileNode)
        return node


def _apply(content: bytearray, change: tuple[int, bytes | None]) -> None:
    position, data = change
    if data is None:
        content[position:] = bytes(max(0, position - len(content)))
        return
    if len(content) < position:
        content += bytes(position - len(content))
    content[position : position + len(data)] = data


def _rename(names: dict[str, _Node], change: dict[str, _Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _after_power_loss(folder: _FolderNode, chance: random.Random) -> _FolderNode:
    left = _FolderNode()
    for name, node in sorted(folder.after_power_loss(chance).items()):
        if isinstance(node, _FolderNode):
            left.safe[name] = _after_power_loss(node, chance)
        else:
            left.safe[name] = _FileNode(node.after_power_loss(chance))
    left.live = dict(left.safe)
    return left


def _read_tree(path: Path) -> _FolderNode:
    folder = _FolderNode()
    for entry in path.iterdir():
        folder.safe[entry.name] = _read_tree(entry) if entry.is_dir() else _FileNode(entry.read_bytes())
    folder.live = dict(folder.safe)
    return folder


def _write_tree(path: Path, folder: _FolderNode) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, node in folder.safe.items():
        if isinstance(node, _FolderNode):
            _write_tree(path / name, node)
        else:
            (path / name).write_bytes(node.safe)
