"""What a database can answer with, told apart by what the caller does about it.

Which code of which server means what is said once, in the dialect. A message names the database without its password,
and has what the server said.
"""

from __future__ import annotations

from penstock.errors import PenstockError


class DatabaseError(PenstockError):
    """A database failed. What is not one of the classes below is a bug, damage, or a server out of order."""

    def __init__(self, message: str, *, is_outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.is_outcome_unknown = is_outcome_unknown
        """COMMIT had been sent and was not answered: the transaction may be in the database or not."""


class Unreachable(DatabaseError):
    """No connection, a lost connection, out of connections, or no answer in time."""


class GroupAway(Unreachable):
    """The primary of a group is known to be down, to take no writes, or to be another server: nothing was sent."""


class Contended(DatabaseError):
    """Others held what was needed: a deadlock, a lock wait that ended, a busy SQLite. All was rolled back."""


class ReadOnly(DatabaseError):
    """The server takes no writes."""


class NoRoom(DatabaseError):
    """The disk of the server is full, or a quota is used up."""


class TooLarge(DatabaseError):
    """A row, or a value in it, is larger than the database takes."""


class SchemaChanged(DatabaseError):
    """A database, a table or a column is missing, or a column has another type."""


class NullRefused(SchemaChanged):
    """NULL was given for a column that cannot be NULL."""


class SchemaTooNew(DatabaseError):
    """A newer version of Penstock has changed the tables."""


class Denied(DatabaseError):
    """A wrong password, or a privilege that is missing."""


class Duplicate(DatabaseError):
    """A row with the same key is there already."""
