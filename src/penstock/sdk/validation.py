"""Validates arguments: an `InvalidInputError` names the argument and says what to write. Pure."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from penstock.sdk.errors import InvalidInputError


def check_whole_number(name: str, value: object, low: int, high: int | None = None) -> None:
    """Require a whole number within bounds; True and False are none."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        bounds = f"a whole number of {low} or more" if high is None else f"a whole number from {low} to {high}"
        raise InvalidInputError(f"{name} must be {bounds}, not {value!r}")


def check_number(name: str, value: object, allowed: str, is_allowed: Callable[[float], bool]) -> None:
    """Require a number; `allowed` describes which."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not is_allowed(value):
        raise InvalidInputError(f"{name} must be {allowed}, not {value!r}")


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name} must be True or False, not {value!r}")


def check_known(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Reject unknown options, and suggest the closest known one."""
    names = list(known)
    for name in sorted(set(given) - set(names)):
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"options of {what}: {', '.join(names)}"
        raise InvalidInputError(f"unknown option {name}; {hint}")


def check_handler(handler: Any, *, is_awaited: bool) -> None:
    """Require a function, a coroutine function if `is_awaited`; `signature_of` checks what it takes."""
    if not callable(handler):
        raise InvalidInputError(f"{handler!r} is not a handler: pass a function that takes the message")
    name = getattr(handler, "__qualname__", None) or repr(handler)
    call = getattr(handler, "__call__", None)  # noqa: B004 (not whether it is callable: how)
    kinds = (handler, call)
    if any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in kinds):
        raise InvalidInputError(f"{name} cannot be a handler: it contains yield, so calling it runs nothing")
    is_coroutine = any(inspect.iscoroutinefunction(each) for each in kinds)
    if is_coroutine and not is_awaited:
        raise InvalidInputError(
            f"{name} is a coroutine function (async def): penstock.Client calls plain functions; "
            "use penstock.aio.Client"
        )
    if is_awaited and not is_coroutine:
        raise InvalidInputError(
            f"{name} is not a coroutine function (async def): penstock.aio.Client awaits its handlers; "
            "use penstock.Client for plain functions (def)"
        )
