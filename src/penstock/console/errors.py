"""What can go wrong at the console, with the HTTP status that says so.

A message says what happened and what was not done. Errors of brokers come as `AdminError`; `problem_of` knows their
status too.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.admin import AdminError, UnreachableError
from penstock.errors import Code, ConfigError, PenstockError
from penstock.sql.errors import DatabaseError


class ConsoleError(PenstockError):
    """Base of the console's own errors."""

    status = 400
    code = "INVALID_REQUEST"


class InvalidError(ConsoleError):
    """The request makes no sense; nothing was done."""


class UnauthenticatedError(ConsoleError):
    """There is no session and no token, or it has ended."""

    status = 401
    code = "NOT_SIGNED_IN"


class RefusedError(ConsoleError):
    """The caller's role does not allow it."""

    status = 403
    code = "REFUSED"


class MissingError(ConsoleError):
    """There is no such thing."""

    status = 404
    code = "NOT_FOUND"


class ConflictError(ConsoleError):
    """Something is in the way."""

    status = 409
    code = "CONFLICT"


class TooLargeError(ConsoleError):
    """More than the console takes."""

    status = 413
    code = "TOO_LARGE"


class BusyError(ConsoleError):
    """Too many of them at once, or too many attempts."""

    status = 429
    code = "TOO_MANY"


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as the API tells it (RFC 9457)."""

    status: int
    code: str
    title: str
    detail: str


_NOT_FOUND = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION.name,
        Code.GROUP_ID_NOT_FOUND.name,
        "RESOURCE_NOT_FOUND",
        "BROKER_ID_NOT_REGISTERED",
        "TRANSACTIONAL_ID_NOT_FOUND",
    }
)
_CONFLICTS = frozenset(
    {
        Code.TOPIC_ALREADY_EXISTS.name,
        Code.NON_EMPTY_GROUP.name,
        Code.PRODUCER_FENCED.name,
        Code.POLICY_VIOLATION.name,
        "REASSIGNMENT_IN_PROGRESS",
        "GROUP_SUBSCRIBED_TO_TOPIC",
        "UNKNOWN_MEMBER_ID",
        Code.SECURITY_DISABLED.name,
    }
)
_UNAVAILABLE = frozenset(
    {
        Code.LEADER_NOT_AVAILABLE.name,
        Code.COORDINATOR_NOT_AVAILABLE.name,
        "NOT_COORDINATOR",
        "NOT_CONTROLLER",
        "BROKER_NOT_AVAILABLE",
        "NOT_LEADER_OR_FOLLOWER",
        "KAFKA_STORAGE_ERROR",
        "UNKNOWN_SERVER_ERROR",
    }
)
_FORBIDDEN = frozenset(
    {
        "TOPIC_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "SASL_AUTHENTICATION_FAILED",
    }
)
_TITLES = {
    400: "The request cannot be carried out",
    401: "Not signed in",
    403: "Not allowed",
    404: "There is no such thing",
    409: "Something is in the way",
    413: "Too large",
    422: "The request is malformed",
    429: "Too many at once",
    502: "The cluster refuses the console",
    503: "Not available at the moment",
    504: "The cluster does not answer",
}


def title_of(status: int) -> str:
    return _TITLES.get(status, "The request failed")


def problem_of(error: PenstockError) -> Problem:
    """The status and words for an error that was expected."""
    if isinstance(error, ConsoleError):
        return Problem(error.status, error.code, title_of(error.status), str(error))
    if isinstance(error, UnreachableError):
        detail = f"{error.message}; it is not known whether anything was done"
        return Problem(504, error.code, title_of(504), detail)
    if isinstance(error, AdminError):
        status = _status_of(error.code)
        return Problem(status, error.code, title_of(status), error.message)
    if isinstance(error, DatabaseError):
        return Problem(503, "STATE_UNAVAILABLE", title_of(503), "the console's database does not answer; try again")
    status = 400 if isinstance(error, ConfigError) else 503
    return Problem(status, "INVALID_REQUEST" if status == 400 else "FAILED", title_of(status), str(error))


def _status_of(code: str) -> int:
    if code in _NOT_FOUND:
        return 404
    if code in _CONFLICTS:
        return 409
    if code in _UNAVAILABLE:
        return 503
    return 502 if code in _FORBIDDEN else 400
