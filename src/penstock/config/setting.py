"""One setting: its name, kind, default, bounds and meaning, and how its text becomes a value.

Rules:
- Every value has a text spelling, the one Kafka's admin calls carry; only `parse` turns text into a value.
- A refusal names the key, the value and what would have been allowed, in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from penstock.errors import ConfigError

INT_MAX = 2**31 - 1
_NAME_LENGTH = 100
LONG_MAX = 2**63 - 1


def meaning(
    doc: str,
    *,
    low: int = 1,
    high: int = LONG_MAX,
    choices: tuple[str, ...] = (),
    make: Callable[[str], object] | None = None,
    is_secret: bool = False,
) -> Mapping[str, Any]:
    """What a field means and accepts, as the field's metadata; `low` and `high` count for numbers only."""
    return {"doc": doc, "low": low, "high": high, "choices": choices, "make": make, "is_secret": is_secret}


class Kind(IntEnum):
    """The types of a setting, numbered as in Kafka's DescribeConfigs response."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


WHOLE_RANGES = {
    Kind.SHORT: (-(2**15), 2**15 - 1),
    Kind.INT: (-(2**31), INT_MAX),
    Kind.LONG: (-(2**63), LONG_MAX),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What one key accepts and means.

    `low` and `high` bound numbers (inclusive), `choices` bounds the rest (the items, for a list).
    `make` turns the text of a STRING into a richer value and raises ValueError with what is allowed.
    `synonym` is the broker-level name that Kafka gives the default of a topic setting.
    The text of a setting that `is_secret` has a password in it and is shown nowhere; its value leaves the password out.
    """

    name: str
    kind: Kind
    default: str
    doc: str
    low: int | float | None = None
    high: int | float | None = None
    choices: tuple[str, ...] = ()
    make: Callable[[str], object] | None = None
    optional: bool = False
    synonym: str | None = None
    is_secret: bool = False

    def parse(self, text: str) -> object:
        """The value of `text`, or a ConfigError."""
        stripped = text.strip()
        if self.optional and not stripped:
            return None
        match self.kind:
            case Kind.BOOLEAN:
                return self._boolean(stripped)
            case Kind.INT | Kind.SHORT | Kind.LONG:
                return self._whole(stripped)
            case Kind.DOUBLE:
                return self._double(stripped)
            case Kind.LIST:
                return self._list(stripped)
            case Kind.STRING:
                return self._string(stripped)

    def refusal(self, text: str, allowed: str | None = None) -> ConfigError:
        shown = "(hidden)" if self.is_secret else repr(text)
        return ConfigError(f"{self.name} = {shown}: allowed is {allowed or self.allowed()}")

    def allowed(self) -> str:
        """What the key accepts, as the end of a sentence."""
        match self.kind:
            case Kind.BOOLEAN:
                return "true or false" if not self.choices else f"only {self.choices[0]}"
            case Kind.LIST if self.choices:
                return f"a comma-separated list of {', '.join(self.choices)}"
            case Kind.LIST:
                return "a comma-separated list"
            case Kind.STRING if self.choices:
                return ", ".join(self.choices)
            case Kind.STRING:
                return "text"
        noun = "a number" if self.kind is Kind.DOUBLE else "a whole number"
        low, high = self._bounds()
        if low == high:
            return f"only {low}"
        if high is None or high == LONG_MAX:
            return noun if low is None else f"{noun} of at least {low}"
        return f"{noun} from {low} to {high}"

    def _bounds(self) -> tuple[int | float | None, int | float | None]:
        low, high = WHOLE_RANGES.get(self.kind, (None, None))
        return (low if self.low is None else self.low, high if self.high is None else self.high)

    def _in_bounds(self, value: int | float) -> bool:
        low, high = self._bounds()
        return (low is None or value >= low) and (high is None or value <= high)

    def _boolean(self, text: str) -> bool:
        if text.lower() not in (self.choices or ("true", "false")):
            raise self.refusal(text)
        return text.lower() == "true"

    def _whole(self, text: str) -> int:
        digits = text[1:] if text[:1] in "+-" else text
        # int() alone would take underscores and other scripts' digits, which Kafka's tools refuse.
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 20 or not self._in_bounds(int(text)):
            raise self.refusal(text)
        return int(text)

    def _double(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise self.refusal(text) from None
        if value != value or not self._in_bounds(value):
            raise self.refusal(text)
        return value

    def _list(self, text: str) -> tuple[str, ...]:
        items = tuple(dict.fromkeys(item.strip() for item in text.split(","))) if text else ()
        # A list with choices is a policy: an empty one would say nothing about what to do.
        if self.choices and (not items or any(item not in self.choices for item in items)):
            raise self.refusal(text)
        return items

    def _string(self, text: str) -> object:
        if self.choices and text not in self.choices:
            raise self.refusal(text)
        if self.make is None:
            return text
        try:
            return self.make(text)
        except ValueError as error:
            raise self.refusal(text, str(error)) from None


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that looks most like `name`: the one that begins and ends most as it does.

    Names come from clients, thousands in one request: this has to be cheap.
    """
    given = name[:_NAME_LENGTH]
    return max(known, key=lambda other: _alike(given, other))


def _alike(name: str, other: str) -> float:
    shorter = min(len(name), len(other))
    begin = next((at for at in range(shorter) if name[at] != other[at]), shorter)
    end = next((at for at in range(shorter - begin) if name[-1 - at] != other[-1 - at]), shorter - begin)
    return begin + end - abs(len(name) - len(other)) / _NAME_LENGTH
