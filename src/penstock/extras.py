"""Optional libraries: which extra of the package installs each, and the message if one is missing."""

from __future__ import annotations

from penstock.errors import PenstockError

_EXTRAS = {
    "kazoo": "cluster",
    "sqlalchemy": "sql",
    "pymysql": "sql",
    "psycopg": "sql",
    "cryptography": "sql",
    "jwt": "oauth",
    "redis": "redis",
    "httpx": "push",
    "opentelemetry": "otel",
    "pyspark": "pipeline",
    "py4j": "pipeline",
    "pyarrow": "pipeline",
    "deltalake": "pipeline",
    "fastapi": "console",
    "uvicorn": "console",
    "argon2": "console",
}


class MissingExtraError(PenstockError, ImportError):
    """Something needs a library that is not installed; the message has the command that installs it."""


def missing_extra(error: ModuleNotFoundError, what: str) -> MissingExtraError | None:
    """What to tell people about a module that was not found, needed by `what`; None if it is of no extra."""
    library = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(library)
    if extra is None:
        return None
    return MissingExtraError(
        f"{what} needs the library {library}, which is not installed: pip install 'penstock[{extra}]'", name=library
    )
