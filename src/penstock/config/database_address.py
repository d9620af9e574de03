"""Where a database is, as one line of text.

    mysql://user:password@host:port/database?option=value      also mariadb:// and postgresql://
    sqlite:///relative.db    sqlite:////absolute.db

Special characters in a user, a password or a name are percent-encoded. The password is in no message and in no text
form of an address; so nothing of a line that cannot be read is quoted, because the password may be anywhere in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from penstock.errors import ConfigError


class DialectName(Enum):
    """Which kind of database."""

    MYSQL = "mysql"
    POSTGRESQL = "postgresql"
    SQLITE = "sqlite"


_SCHEMES = {
    "mysql": DialectName.MYSQL,
    "mariadb": DialectName.MYSQL,
    "postgresql": DialectName.POSTGRESQL,
    "sqlite": DialectName.SQLITE,
}
_PORTS = {DialectName.MYSQL: 3306, DialectName.POSTGRESQL: 5432}
_OPTIONS = {
    DialectName.MYSQL: ("ssl_ca", "ssl_cert", "ssl_key"),
    DialectName.POSTGRESQL: ("sslmode", "sslrootcert", "sslcert", "sslkey"),
    DialectName.SQLITE: (),
}
_ENCODE = 'percent-encode special characters of the password (":" is %3A, "/" is %2F, "@" is %40)'


@dataclass(frozen=True, slots=True, repr=False)
class DatabaseAddress:
    """A database on a server, or a file; `database` is the name of the one or the path of the other."""

    dialect: DialectName
    database: str
    host: str = ""
    port: int = 0
    user: str = ""
    password: str = ""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    @classmethod
    def parse(cls, text: str) -> DatabaseAddress:
        """Read an address; a ConfigError says what is wrong with it."""
        try:
            parts = urlsplit(text)
        except ValueError:
            raise ConfigError(f"the database address cannot be read; {_ENCODE}") from None
        dialect = _SCHEMES.get(parts.scheme)
        if dialect is None or "://" not in text:
            raise ConfigError(
                f"a database address begins with {', '.join(f'{scheme}://' for scheme in sorted(_SCHEMES))}"
            )
        if parts.fragment:
            raise ConfigError(f"the {parts.scheme} address has a #; {_ENCODE}")
        options = _options(dialect, parts)
        if dialect is DialectName.SQLITE:
            return _file(parts, options)
        return _server(dialect, parts, options)

    @property
    def public_text(self) -> str:
        """All of it but the password; `parse` reads it."""
        if self.dialect is DialectName.SQLITE:
            return f"sqlite:///{quote(self.database)}"
        options = f"?{urlencode(self.options)}" if self.options else ""
        return f"{self}{options}"

    @property
    def server(self) -> str:
        """How people name the server: HOST:PORT, or the path of a file."""
        if self.dialect is DialectName.SQLITE:
            return self.database
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def place(self) -> tuple[str, str, int, str]:
        """What tells it from other databases; the user does not matter."""
        return self.dialect.value, self.host, self.port, self.database

    def with_password(self, password: str) -> DatabaseAddress:
        return replace(self, password=password)

    def __str__(self) -> str:
        if self.dialect is DialectName.SQLITE:
            return f"sqlite:///{self.database}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.dialect.value}://{quote(self.user)}@{host}:{self.port}/{quote(self.database)}"

    def __repr__(self) -> str:
        return f"DatabaseAddress({self})"


def _file(parts: SplitResult, options: Mapping[str, str]) -> DatabaseAddress:
    path = unquote(parts.path[1:])
    if parts.netloc:
        raise ConfigError("a SQLite address has no host: sqlite:///relative.db or sqlite:////absolute.db")
    if not path or path.endswith("/") or path == ":memory:":
        raise ConfigError("a SQLite address names a file: sqlite:///relative.db or sqlite:////absolute.db")
    return DatabaseAddress(DialectName.SQLITE, path, options=options)


def _server(dialect: DialectName, parts: SplitResult, options: Mapping[str, str]) -> DatabaseAddress:
    form = f"{parts.scheme}://user:password@host:port/database"
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ConfigError(f"the port of the {parts.scheme} address is not a number from 1 to 65535; {_ENCODE}")
    if not parts.hostname:
        raise ConfigError(f"the {parts.scheme} address has no host: {form}")
    if not parts.username:
        raise ConfigError(f"the {parts.scheme} address has no user: {form}")
    database = unquote(parts.path[1:])
    if not database or "/" in parts.path[1:]:
        raise ConfigError(f"the {parts.scheme} address has to name one database: {form}")
    return DatabaseAddress(
        dialect,
        database,
        host=parts.hostname,
        port=port or _PORTS[dialect],
        user=unquote(parts.username),
        password=unquote(parts.password or ""),
        options=options,
    )


def _options(dialect: DialectName, parts: SplitResult) -> Mapping[str, str]:
    known = _OPTIONS[dialect]
    try:
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        given = [("", "")]
    names = [name for name, _ in given]
    if not set(names) <= set(known) or len(set(names)) < len(names):
        allowed = f"knows the options {', '.join(known)}, each once" if known else "has no options"
        raise ConfigError(f"the {parts.scheme} address has options that cannot be used: it {allowed}")
    return MappingProxyType(dict(given))
