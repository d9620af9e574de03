"""What makes a topic a view: the topic it looks at, and which tags it lets through. `docs/views.md` says what for.

    penstock.view.of   = orders
    penstock.view.tags = checkout and not (test or demo)

A comma means `or`, so a list of tags is an expression too. `not` binds tighter than `and`, and `and` tighter than `or`
and the comma. The three words are operators in capitals too; a tag that is such a word, or has blanks, commas, quotes
or parentheses in it, is written in quotation marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

VIEW_OF_SETTING = "penstock.view.of"
VIEW_TAGS_SETTING = "penstock.view.tags"
VIEW_SETTINGS = frozenset({VIEW_OF_SETTING, VIEW_TAGS_SETTING})

MAX_LENGTH = 8192
"""Characters of an expression."""

_MAX_DEPTH = 50
"""Parentheses and `not` inside each other."""

_TOKEN = re.compile(r'\s*(?:(?P<symbol>[(),])|"(?P<quoted>[^"]*)"|(?P<word>[^\s(),"]+))')
_OPERATORS = frozenset({"and", "or", "not"})


@dataclass(frozen=True, slots=True)
class Tag:
    """A record has this tag."""

    name: str


@dataclass(frozen=True, slots=True)
class Not:
    operand: Expression


@dataclass(frozen=True, slots=True)
class AllOf:
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    operands: tuple[Expression, ...]


Expression = Tag | Not | AllOf | AnyOf


def parse_tags(text: str) -> Expression:
    """The expression that a text means; if it means nothing, a ValueError says what is allowed, and where."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"an expression of at most {MAX_LENGTH} characters, and this one has {len(text)}")
    return _Parser(text).parse()


def check_tags(text: str) -> str:
    """The text itself, if it is empty or an expression: what the setting accepts."""
    if text:
        parse_tags(text)
    return text


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    """An operator or symbol, as it is known below; of a tag, its name."""
    is_tag: bool
    position: int


class _Parser:
    """Recursive descent; one method a level of precedence, loosest first."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._depth = 0

    def parse(self) -> Expression:
        expression = self._any_of()
        if (token := self._peek()) is not None:
            raise _misplaced(token, "the end, and, or, or a comma")
        return expression

    def _any_of(self) -> Expression:
        operands = [self._all_of()]
        while self._takes("or", ","):
            operands.append(self._all_of())
        return operands[0] if len(operands) == 1 else AnyOf(tuple(operands))

    def _all_of(self) -> Expression:
        operands = [self._negated()]
        while self._takes("and"):
            operands.append(self._negated())
        return operands[0] if len(operands) == 1 else AllOf(tuple(operands))

    def _negated(self) -> Expression:
        token = self._peek()
        if token is None:
            raise ValueError("a tag at the end")
        self._at += 1
        if token.is_tag:
            return Tag(token.text)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError(f"at most {_MAX_DEPTH} parentheses and nots inside each other")
        if token.text == "not":
            found: Expression = Not(self._negated())
        elif token.text == "(":
            found = self._any_of()
            if not self._takes(")"):
                raise ValueError(f"a ')' for the '(' at character {token.position + 1}")
        else:
            raise _misplaced(token, "a tag, not, or a parenthesis")
        self._depth -= 1
        return found

    def _peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _takes(self, *texts: str) -> bool:
        token = self._peek()
        if token is None or token.is_tag or token.text not in texts:
            return False
        self._at += 1
        return True


def _tokens(text: str) -> Iterator[_Token]:
    end = len(text.rstrip())
    position = 0
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError(f"a second quotation mark for the one at character {text.index(chr(34), position) + 1}")
        group = found.lastgroup or ""
        word, start = found[group], found.start(group)
        if group == "quoted" and not (word.strip() and "," not in word):
            raise ValueError(f"no empty tag and none with a comma, such as the one at character {start + 1}")
        if group == "word" and word.lower() in _OPERATORS:
            yield _Token(word.lower(), False, start)
        else:
            yield _Token(word.strip(), group != "symbol", start)
        position = found.end()


def _misplaced(token: _Token, allowed: str) -> ValueError:
    return ValueError(f"{allowed}, in the place of {token.text!r} at character {token.position + 1}")
