"""What a client without a broker makes of the errors of a database, also if the engine has wrapped them."""

from __future__ import annotations

import pytest

from penstock.brokerless.sql.link import store_error
from penstock.brokerless.store import StoreAwayError, StoreRefusedError
from penstock.errors import StorageError
from penstock.sql.errors import (
    Contended,
    DatabaseError,
    Denied,
    GroupAway,
    NoRoom,
    ReadOnly,
    SchemaChanged,
    Unreachable,
)
from penstock.storage.sql.environment import storage_error


def wrapped(error: DatabaseError) -> StorageError:
    """As the engine raises it."""
    try:
        raise storage_error(error) from error
    except StorageError as made:
        return made


@pytest.mark.parametrize("kind", [Unreachable, GroupAway, Contended, ReadOnly, NoRoom])
def test_a_client_tries_again_when_the_engine_could_not_reach_or_use_the_database(kind: type[DatabaseError]) -> None:
    assert isinstance(store_error(kind("no")), StoreAwayError)
    away = store_error(wrapped(kind("no", is_outcome_unknown=True)))
    assert isinstance(away, StoreAwayError)
    assert away.is_outcome_unknown


def test_a_client_gives_up_when_trying_again_would_not_help() -> None:
    assert isinstance(store_error(Denied("wrong password")), StoreRefusedError)
    assert isinstance(store_error(wrapped(SchemaChanged("no such table"))), StoreRefusedError)
    assert isinstance(store_error(StorageError("the table belongs to another topic")), StoreRefusedError)
