"""What operations on many things return: a value or an error for each thing, and pages of long lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from penstock.admin.errors import AdminError

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Results(Generic[K, V]):
    """One result for each requested thing, which is a key either of `values` or of `errors`."""

    values: Mapping[K, V] = field(default_factory=dict)
    errors: Mapping[K, AdminError] = field(default_factory=dict)

    def __getitem__(self, key: K) -> V:
        """The value for one thing; raises its error."""
        if key in self.errors:
            raise self.errors[key]
        return self.values[key]

    def all(self) -> Mapping[K, V]:
        """All values; raises the first error if there is one."""
        for error in self.errors.values():
            raise error
        return self.values

    def map(self, convert: Callable[[V], T]) -> Results[K, T]:
        """The same results with each value converted."""
        return Results({key: convert(value) for key, value in self.values.items()}, self.errors)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list that may be long."""

    items: tuple[T, ...]
    next: str | None = None
    """Pass this as `after` to get the next page; None: this page is the last. Opaque, safe in a URL."""
