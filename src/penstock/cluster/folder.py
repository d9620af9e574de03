"""The data folder: the process that may use it, and the broker that it belongs to.

    DIR/lock        held with flock by the one process that uses the folder; its text is that process's id
    DIR/meta.json   {"broker_id": 0, "cluster_id": "…", "format": 1}, written once
    DIR/life.json   {"boot": "…", "is_clean": false, "is_whole": true}, written at every start and stop

A lock of the kernel and not a file that exists: it is gone when its process is gone, however that ended.

What was written outlives the process, but not a power loss. A broker that starts knows whether there may have been one:
the machine was booted since its last start, and it did not stop cleanly before that. It is then not whole, and stays so
until the cluster knows of it.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigError
from penstock.ids import BrokerId

FORMAT = 1


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_META = "meta.json"


@dataclass(frozen=True, slots=True)
class FolderIdentity:
    """What `meta.json` says: the cluster and broker that the data belongs to."""

    cluster_id: str
    broker_id: BrokerId


class DataFolder:
    """A data folder held by this process until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"data folder {path} cannot be used: {error.strerror}") from error
        try:
            self._take_lock()
        except BaseException:
            os.close(self._lock)
            raise
        self._closed = False
        self._is_whole = False
        # A machine that does not tell one boot from another may have lost power at any time.
        self._boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else uuid.uuid4().hex

    @property
    def holder(self) -> str:
        """Names the lock that this process holds: a process that held it before, under the same name, is gone."""
        stat = os.fstat(self._lock)
        return f"{self._boot}:{stat.st_dev}:{stat.st_ino}"

    def identity(self, broker_id: BrokerId) -> FolderIdentity | None:
        """Whose data this is, which must be this broker's; None for a new folder."""
        meta = self.path / _META
        text = self._read(meta)
        if text is None:
            return None
        identity = _parse_identity(meta, text)
        if identity.broker_id != broker_id:
            raise ConfigError(
                f"data folder {self.path} belongs to broker {identity.broker_id}, not to broker {broker_id}"
            )
        return identity

    def belong_to(self, identity: FolderIdentity) -> None:
        """Marks a new folder."""
        fields = {"broker_id": identity.broker_id, "cluster_id": identity.cluster_id, "format": FORMAT}
        self._write(self.path / _META, fields)

    def begin_life(self) -> bool:
        """Whether all that was ever written here is still here; to be called once, before anything is written."""
        path = self.path / "life.json"
        text = self._read(path)
        # Of a folder without it nothing is known: it is new, perhaps in the place of one that was lost.
        is_whole = text is not None and _was_whole(path, text, self._boot)
        self._write_life(is_whole=is_whole)
        return is_whole

    def be_whole(self) -> None:
        """The cluster knows what was lost: from now on this folder has all that is expected of it."""
        self._write_life(is_whole=True)

    def end_life(self) -> None:
        """All that was written is on the disk, and nothing more will be."""
        self._write_life(is_whole=self._is_whole, is_clean=True)

    def close(self) -> None:
        """Let another process have the folder. Closing twice is allowed."""
        if not self._closed:
            self._closed = True
            os.close(self._lock)

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise ConfigError(f"data folder {self.path} is in use by process {holder}") from None
        except OSError as error:
            raise ConfigError(f"data folder {self.path} cannot be locked: {error.strerror}") from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode("ascii"), 0)

    def _write_life(self, *, is_whole: bool, is_clean: bool = False) -> None:
        self._is_whole = is_whole
        self._write(self.path / "life.json", {"boot": self._boot, "is_clean": is_clean, "is_whole": is_whole})

    def _read(self, path: Path) -> str | None:
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error

    def _write(self, path: Path, fields: Mapping[str, object]) -> None:
        text = json.dumps(fields, sort_keys=True)
        # Written beside and renamed over, file and folder synced: after a crash it is whole or not there.
        draft = path.with_suffix(".tmp")
        try:
            with open(draft, "w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise ConfigError(f"data folder {self.path} cannot be written: {error.strerror}") from error


def is_data_folder(path: Path) -> bool:
    """Whether a broker keeps its data here, or did."""
    return (path / _META).exists()


def new_cluster_id() -> str:
    """A random id in Kafka's form: 16 bytes as 22 characters of URL-safe base64, never starting with '-'."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode("ascii")
        # A leading dash would read as an option on a command line.
        if not text.startswith("-"):
            return text


def _parse_identity(meta: Path, text: str) -> FolderIdentity:
    try:
        fields = json.loads(text)
        found = fields["format"]
        cluster_id, broker_id = fields["cluster_id"], fields["broker_id"]
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{meta} is not the description of a data folder: {error!r}") from error
    if not isinstance(found, int) or found > FORMAT:
        raise ConfigError(f"{meta} has format {found}; this version of Penstock knows {FORMAT}")
    if not isinstance(cluster_id, str) or not isinstance(broker_id, int):
        raise ConfigError(f"{meta} is not the description of a data folder: wrong kind of value")
    return FolderIdentity(cluster_id, BrokerId(broker_id))


def _was_whole(path: Path, text: str, boot: str) -> bool:
    try:
        fields = json.loads(text)
        return bool(fields["is_whole"] and (fields["is_clean"] or fields["boot"] == boot))
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} does not say how the broker last stopped: {error!r}") from error
