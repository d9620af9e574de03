"""The data folder: who may use it, and whose it is.

    DIR/lock        held with flock by the one process that uses the folder; its text is that process's id
    DIR/meta.json   {"broker_id": 0, "cluster_id": "…", "format": 1}, written once

A lock of the kernel and not a file that exists: it is gone when its process is gone, however that ended.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigError
from penstock.ids import BrokerId

FORMAT = 1


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

    def identify(self, broker_id: BrokerId) -> FolderIdentity:
        """Read whose data this is, or mark a new folder as this broker's under a new cluster id."""
        meta = self.path / "meta.json"
        try:
            text = meta.read_text(encoding="utf-8")
        except FileNotFoundError:
            identity = FolderIdentity(new_cluster_id(), broker_id)
            self._write_identity(meta, identity)
            return identity
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{meta} cannot be read: {error}") from error
        identity = _parse_identity(meta, text)
        if identity.broker_id != broker_id:
            raise ConfigError(
                f"data folder {self.path} belongs to broker {identity.broker_id}, not to broker {broker_id}"
            )
        return identity

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

    def _write_identity(self, meta: Path, identity: FolderIdentity) -> None:
        fields = {"broker_id": identity.broker_id, "cluster_id": identity.cluster_id, "format": FORMAT}
        text = json.dumps(fields, sort_keys=True)
        # Written beside and renamed over, file and folder synced: after a crash it is whole or not there.
        draft = meta.with_suffix(".tmp")
        try:
            with open(draft, "w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, meta)
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise ConfigError(f"data folder {self.path} cannot be written: {error.strerror}") from error


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
