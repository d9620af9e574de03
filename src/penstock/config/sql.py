"""The settings of topics that live in a database; see `broker.py` for the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.config.database_address import DatabaseAddress
from penstock.config.setting import INT_MAX, meaning
from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlSettings:
    """[sql]: the database that topics with penstock.storage=sql live in, and how it is used."""

    url: DatabaseAddress | None = field(
        default=None,
        metadata=meaning(
            "mysql://USER:PASSWORD@HOST:PORT/DATABASE, postgresql://… or sqlite:///FILE. Without cluster.coordinator "
            "the database holds the state of the cluster too, and topics are stored in it unless they say otherwise.",
            make=DatabaseAddress.parse,
            is_secret=True,
        ),
    )
    url_file: Path | None = field(
        default=None, metadata=meaning("File with the url, instead of sql.url: one line.", make=Path)
    )
    key_file: Path | None = field(
        default=None,
        metadata=meaning(
            "File with the key to the passwords of database groups, the same on all brokers; `penstock dbnode key` "
            "makes one. Without it the broker uses no database group but the default one.",
            make=Path,
        ),
    )
    connections: int = field(
        default=8, metadata=meaning("Connections to the database that the broker opens at most.", low=2, high=1_000)
    )
    timeout_ms: int = field(
        default=10_000,
        metadata=meaning("Milliseconds that the database may take for one transaction.", low=100, high=INT_MAX),
    )
    retry_ms: int = field(
        default=20_000,
        metadata=meaning("Milliseconds that an append is tried again before its producer gets an error.", low=0),
    )
    buffer_bytes: int = field(
        default=67_108_864,
        metadata=meaning("Bytes that wait for the database before producers have to wait.", low=1_024),
    )
    cache_bytes: int = field(
        default=67_108_864,
        metadata=meaning("Bytes of the latest records that are kept in memory for consumers.", low=0),
    )
    range_bytes: int = field(
        default=268_435_456,
        metadata=meaning(
            "Bytes of records in one range of a partition's table, about. Retention drops whole ranges, where the "
            "database can do that.",
            low=65_536,
        ),
    )

    @property
    def is_set(self) -> bool:
        """Whether there is a database."""
        return self.url is not None or self.url_file is not None

    def address(self) -> DatabaseAddress:
        """Where the database is; reads the file if there is one. ConfigError if that cannot be done."""
        if self.url is not None:
            return self.url
        assert self.url_file is not None
        try:
            return DatabaseAddress.parse(self.url_file.read_text("utf-8").strip())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"sql.url_file = '{self.url_file}': cannot be read: {error}") from None
        except ConfigError as error:
            raise ConfigError(f"sql.url_file = '{self.url_file}': {error}") from None
