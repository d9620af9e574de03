"""A small part of JSONPath: enough to name a field for a search or a masking rule. Pure.

$.customer.card        a field of a field; `$.` may be left out
$.items[0].price       an element of a list
$.items[*].price       every element of a list, or every field of an object
$..card                every field of that name, at any depth
$['a.b']               a name with special characters
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.console.errors import InvalidError

MAX_PATH = 500
MAX_DEPTH = 64
_STEP = re.compile(
    r"""
      \.\.(?P<deep>[^.\[\]'"*$\s]+)
    | \.?(?P<each>\*)
    | \.(?P<name>[^.\[\]'"*$]+)
    | \[(?P<index>-?\d{1,9})\]
    | \[(?P<each_of>\*)\]
    | \[(?P<quote>['"])(?P<quoted>.*?)(?P=quote)\]
    """,
    re.VERBOSE,
)
_FORMS = "write $.name, $.list[0].name, $.list[*].name or $..name"


@dataclass(frozen=True, slots=True)
class Field:
    name: str


@dataclass(frozen=True, slots=True)
class Index:
    index: int


@dataclass(frozen=True, slots=True)
class Each:
    """Every element or field."""


@dataclass(frozen=True, slots=True)
class Deep:
    """Every field of the name, at any depth."""

    name: str


Step = Field | Index | Each | Deep


@dataclass(frozen=True, slots=True)
class JsonPath:
    """The steps from the root to values."""

    text: str
    steps: tuple[Step, ...]

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """InvalidError if it is none."""
        if not text or len(text) > MAX_PATH:
            raise InvalidError(f"a path has 1 to {MAX_PATH} characters; {_FORMS}")
        rest = text[1:] if text.startswith("$") else f".{text}" if not text.startswith((".", "[")) else text
        steps: list[Step] = []
        at = 0
        while at < len(rest):
            found = _STEP.match(rest, at)
            if found is None:
                raise InvalidError(f"the path {text!r} cannot be read at {rest[at : at + 20]!r}; {_FORMS}")
            steps.append(_step(found))
            at = found.end()
        return cls(text, tuple(steps))

    def find(self, value: Any) -> Iterator[Any]:
        """Every value that the path leads to."""
        yield from _find(value, self.steps, 0)

    def replace(self, value: Any, by: Callable[[Any], Any]) -> Any:
        """A copy in which every value that the path leads to is replaced."""
        return _replace(value, self.steps, by, 0)


def _step(found: re.Match[str]) -> Step:
    if found["deep"] is not None:
        return Deep(found["deep"])
    if found["each"] is not None or found["each_of"] is not None:
        return Each()
    if found["name"] is not None:
        return Field(found["name"])
    if found["index"] is not None:
        return Index(int(found["index"]))
    return Field(found["quoted"])


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _find(value: Any, steps: tuple[Step, ...], depth: int) -> Iterator[Any]:
    if not steps:
        yield value
        return
    if depth > MAX_DEPTH:
        return
    first, rest = steps[0], steps[1:]
    match first:
        case Field(name):
            if isinstance(value, dict) and name in value:
                yield from _find(value[name], rest, depth + 1)
        case Index(index):
            if isinstance(value, list) and -len(value) <= index < len(value):
                yield from _find(value[index], rest, depth + 1)
        case Each():
            for child in _children(value):
                yield from _find(child, rest, depth + 1)
        case Deep(name):
            if isinstance(value, dict) and name in value:
                yield from _find(value[name], rest, depth + 1)
            for child in _children(value):
                yield from _find(child, steps, depth + 1)


def _replace(value: Any, steps: tuple[Step, ...], by: Callable[[Any], Any], depth: int) -> Any:
    # What is too deep to be looked at is replaced whole: a mask must not end where the nesting begins.
    if not steps or depth > MAX_DEPTH:
        return by(value)
    first, rest = steps[0], steps[1:]
    match first:
        case Field(name):
            if isinstance(value, dict) and name in value:
                return {**value, name: _replace(value[name], rest, by, depth + 1)}
        case Index(index):
            if isinstance(value, list) and -len(value) <= index < len(value):
                copy = list(value)
                copy[index] = _replace(copy[index], rest, by, depth + 1)
                return copy
        case Each():
            if isinstance(value, dict):
                return {name: _replace(child, rest, by, depth + 1) for name, child in value.items()}
            if isinstance(value, list):
                return [_replace(child, rest, by, depth + 1) for child in value]
        case Deep(name):
            if isinstance(value, dict):
                return {
                    each: _replace(child, rest if each == name else steps, by, depth + 1)
                    for each, child in value.items()
                }
            if isinstance(value, list):
                return [_replace(child, steps, by, depth + 1) for child in value]
    return value
