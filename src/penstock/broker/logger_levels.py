"""Log levels at run time: Kafka's BROKER_LOGGER resources (KIP-412).

Loggers are those of Python's logging, under their names; `root` is above all of them. A logger without a level has that
of the nearest one above it. A level that was set holds until the broker stops.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from penstock.cluster.decisions.settings import OperationKind, SettingOperation
from penstock.errors import ApiError, Code

ROOT = "root"
_TRACE = 5
LEVELS: Mapping[str, int] = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": _TRACE,
}
"""Kafka's names, most severe first."""

logger = logging.getLogger(__name__)


def logger_levels() -> dict[str, str]:
    """Every logger that there is, and the level in force."""
    return {name: _level_name(_find(name).getEffectiveLevel()) for name in sorted(_names())}


def check(operations: Sequence[SettingOperation]) -> None:
    """ApiError if one of them cannot be done."""
    names = _names()
    for operation in operations:
        if operation.kind not in (OperationKind.SET, OperationKind.DELETE):
            raise ApiError(
                Code.INVALID_REQUEST, f"{operation.kind.name} is not allowed for loggers: a level is one word"
            )
        if operation.name not in names:
            raise ApiError(Code.INVALID_CONFIG, f"Logger {operation.name} does not exist.")
        if operation.kind is OperationKind.SET and (operation.value or "") not in LEVELS:
            raise ApiError(
                Code.INVALID_CONFIG,
                f"'{operation.value}' is no log level of {operation.name}: levels are {', '.join(LEVELS)}.",
            )
        if operation.kind is OperationKind.DELETE and operation.name == ROOT:
            raise ApiError(Code.INVALID_REQUEST, "The level of the root logger cannot be removed, only set.")


def apply(operations: Sequence[SettingOperation]) -> None:
    """Sets and removes levels, all of which were checked."""
    for operation in operations:
        is_set = operation.kind is OperationKind.SET
        _find(operation.name).setLevel(LEVELS[operation.value or ""] if is_set else logging.NOTSET)
        if is_set:
            logger.warning("the log level of %s was set to %s", operation.name, operation.value)
        else:
            logger.warning("the log level of %s was removed", operation.name)


def _names() -> set[str]:
    # Python also keeps the names of loggers that only stand above others.
    return {ROOT, *logging.Logger.manager.loggerDict}


def _find(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _level_name(level: int) -> str:
    return next((name for name, number in LEVELS.items() if level >= number), "TRACE")
