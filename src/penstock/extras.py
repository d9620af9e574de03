"""Libraries that not everybody needs: which extra of the package installs each, and what to say if one is missing."""

from __future__ import annotations

from penstock.errors import PenstockError

_EXTRAS = {
    "kazoo": "cluster",
    "sqlalchemy": "sql",
    "pymysql": "sql",
    "psycopg": "sql",
    "cryptography": "sql",
    "redis": "redis",
    "httpx": "push",
    "opentelemetry": "otel",
    "pyspark": "pipeline",
    "py4j": "pipeline",
    "pyarrow": "pipeline",
    "deltalake": "pipeline",
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
