"""From the subject of a client's certificate to the name of a user, by Kafka's rules (KIP-371).

    RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT

Rules are tried in order; the first that matches the whole name wins. `DEFAULT` takes the name as it is. `L` and `U` at
the end make the result lower or upper case. A certificate that no rule matches is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

DEFAULT = "DEFAULT"
_RULE = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_SEPARATOR = re.compile(r"\s*,?\s*")
_GROUP = re.compile(r"\\(.)|\$(\d)")
_MAX_NAME_CHARS = 2048
"""Longer names are refused: a rule is a regular expression, and certificates come from clients."""

# The keywords that RFC 2253 has, by OpenSSL's names; Java writes all others as numbers, which are left out here.
_KEYWORDS = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_ESCAPED = re.compile(r'[,+"\\<>;]|^[# ]| $')


@dataclass(frozen=True, slots=True)
class MappingRule:
    """One rule; without a pattern it is DEFAULT."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """The user; None if the rule is not for this name."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        found = _GROUP.sub(lambda part: part[1] or match[int(part[2])] or "", self.replacement)
        return {"": found, "L": found.lower(), "U": found.upper()}[self.case]


class MappingRules(tuple[MappingRule, ...]):
    """Rules in the order in which they are tried."""

    __slots__ = ()

    def __str__(self) -> str:
        def spelled(rule: MappingRule) -> str:
            if rule.pattern is None:
                return DEFAULT
            pattern = rule.pattern.pattern.replace("/", "\\/")
            return f"RULE:{pattern}/{rule.replacement}/{rule.case}"

        return ",".join(map(spelled, self))

    def user_of(self, name: str) -> str | None:
        """The user of a certificate with this name; None if no rule is for it."""
        if len(name) > _MAX_NAME_CHARS:
            return None
        return next((user for rule in self if (user := rule.apply(name))), None)


DEFAULT_RULES = MappingRules([MappingRule()])


def parse_mapping_rules(text: str) -> MappingRules:
    """Reads `security.principal_mapping_rules`; raises ValueError with the allowed spelling."""
    found: list[MappingRule] = []
    at = 0
    while at < len(text):
        if text.startswith(DEFAULT, at):
            found.append(MappingRule())
            at += len(DEFAULT)
        elif match := _RULE.match(text, at):
            found.append(_rule(*match.groups()))
            at = match.end()
        else:
            raise ValueError("RULE:PATTERN/REPLACEMENT/ with L or U behind it or not, and DEFAULT, separated by commas")
        separator = _SEPARATOR.match(text, at)
        assert separator is not None
        at = separator.end()
    return MappingRules(found or [MappingRule()])


def _rule(pattern: str, replacement: str, case: str) -> MappingRule:
    try:
        compiled = re.compile(pattern.replace("\\/", "/"))
    except re.error as error:
        raise ValueError(f"patterns that are regular expressions, which '{pattern}' is not: {error}") from None
    for group in re.findall(r"(?<!\\)\$(\d)", replacement):
        if int(group) > compiled.groups:
            raise ValueError(f"replacements with groups of their pattern; '{pattern}' has no group {group}")
    return MappingRule(compiled, replacement, case)


def distinguished_name(subject: Iterable[Iterable[tuple[str, str]]]) -> str:
    """The name of a certificate as Java writes it (RFC 2253): `CN=alice,OU=Sales,O=Example`.

    `subject` is as `ssl` gives it: from the country down to the common name.
    """
    relative = []
    for parts in subject:
        known = [f"{_KEYWORDS[key]}={_escaped(value)}" for key, value in parts if key in _KEYWORDS]
        if known:
            relative.append("+".join(known))
    return ",".join(reversed(relative))


def _escaped(value: str) -> str:
    return _ESCAPED.sub(lambda found: "\\" + found[0], value)
