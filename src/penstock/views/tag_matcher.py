"""Whether records match what a view wants: one record by its tags, or many by what is known of theirs.

Pure. Of many records the answer has three values: all of them, none of them, or some, which means that each has to be
looked at. It is never wrong, but may be `some` where a look would show that it is all or none.
"""

from __future__ import annotations

from collections.abc import Set
from enum import IntEnum

from penstock.config.view import AllOf, AnyOf, Expression, Not, Tag
from penstock.storage.tags import TagSummary

_MAX_REMEMBERED = 4096
"""Sets of tags whose verdict is remembered: most topics have few."""


class Verdict(IntEnum):
    """How many of some records match; in this order `and` is the least and `or` the greatest."""

    NONE = 0
    SOME = 1
    ALL = 2


class Matcher:
    """What one view wants."""

    def __init__(self, expression: Expression) -> None:
        self._expression = expression
        self._remembered: dict[frozenset[bytes], bool] = {}
        self.needs_one_of = _needed(expression)
        """A record that has none of these tags does not match; None if nothing like that can be said."""

    def matches(self, tags: frozenset[bytes]) -> bool:
        """Whether a record with these tags matches."""
        found = self._remembered.get(tags)
        if found is None:
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            found = self._remembered[tags] = _verdict(self._expression, tags, Verdict.ALL) is Verdict.ALL
        return found

    def verdict(self, summary: TagSummary) -> Verdict:
        """How many of the records with this summary match."""
        if not summary.has_records:
            return Verdict.NONE
        if summary.is_alike:
            return Verdict.ALL if self.matches(summary.tags) else Verdict.NONE
        return _verdict(self._expression, summary.tags, Verdict.SOME)

    def is_none(self, summary: TagSummary) -> bool:
        return self.verdict(summary) is Verdict.NONE


def _verdict(expression: Expression, tags: Set[bytes], of_present: Verdict) -> Verdict:
    """`of_present` is what a tag in `tags` means; a tag that is not in `tags` is in none of the records."""
    match expression:
        case Tag(name):
            return of_present if name.encode() in tags else Verdict.NONE
        case Not(operand):
            return Verdict(Verdict.ALL - _verdict(operand, tags, of_present))
        case AllOf(operands):
            return min(_verdict(operand, tags, of_present) for operand in operands)
        case AnyOf(operands):
            return max(_verdict(operand, tags, of_present) for operand in operands)


def _needed(expression: Expression) -> frozenset[bytes] | None:
    match expression:
        case Tag(name):
            return frozenset({name.encode()})
        case Not():
            return None
        case AllOf(operands):
            found = [needed for operand in operands if (needed := _needed(operand)) is not None]
            return min(found, key=len, default=None)
        case AnyOf(operands):
            needed_by_each = [_needed(operand) for operand in operands]
            known = [needed for needed in needed_by_each if needed is not None]
            return frozenset().union(*known) if len(known) == len(needed_by_each) else None
