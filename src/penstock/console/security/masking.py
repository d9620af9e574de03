"""What roles do not see of messages: fields of JSON, headers, keys, or messages at all.

Rules:
- A rule counts for roles below `visible_from` on topics with a prefix. Retries, dead letters and views of a topic are
  covered by the topic's rules too.
- A value that should be JSON and is not is hidden whole: a mask never fails open.
- An error may quote the message: of the error of a dead letter or a retry only the type is shown, if anything of the
  message is masked.
- A search looks at what the caller sees: nothing can be found by what is masked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from penstock.clock import Clock
from penstock.console.errors import BusyError, InvalidError
from penstock.console.messages.json_path import JsonPath
from penstock.console.security.roles import Role
from penstock.console.state.rules import RuleStore
from penstock.sdk.headers import ERROR, error_type

MASKED = "•••"
MAX_RULES = 500
_KIND = "masking"
_FRESH_MS = 2_000


class MaskedPart(Enum):
    """What a rule hides."""

    JSON = "json"
    """The values at a path in the value."""
    HEADER = "header"
    KEY = "key"
    MESSAGES = "messages"
    """Everything: the role does not view messages of these topics."""


@dataclass(frozen=True, slots=True)
class MaskingRule:
    """What roles below one do not see."""

    part: MaskedPart
    topic_prefix: str = ""
    path: str = ""
    """A JSON path, or the name of a header; empty for the other parts."""
    visible_from: Role = Role.ADMIN
    cluster: str | None = None
    id: str = ""

    def counts_for(self, cluster: str, role: Role) -> bool:
        return self.cluster in (None, cluster) and not role.covers(self.visible_from)


@dataclass(frozen=True, slots=True)
class Mask:
    """What a caller does not see of the messages of a topic."""

    hides_messages: bool = False
    hides_key: bool = False
    headers: frozenset[str] = frozenset()
    paths: tuple[JsonPath, ...] = ()

    def __bool__(self) -> bool:
        return self.hides_messages or self.hides_key or bool(self.headers) or bool(self.paths)

    def key(self, key: bytes | None) -> bytes | None:
        return MASKED.encode() if self.hides_key and key is not None else key

    def value(self, value: bytes | None) -> bytes | None:
        """The value with masked fields; all of it masked if it is not JSON and a path is to be masked."""
        if not self.paths or value is None:
            return value
        try:
            found: Any = json.loads(value)
        except (ValueError, RecursionError):
            return MASKED.encode()
        if not isinstance(found, (dict, list)):
            return MASKED.encode()
        try:
            for path in self.paths:
                found = path.replace(found, lambda _: MASKED)
            return json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogatepass")
        except RecursionError:
            return MASKED.encode()

    def header(self, name: str, value: bytes | None) -> bytes | None:
        if value is None:
            return None
        if name.casefold() in self.headers:
            return MASKED.encode()
        return self.error(value.decode("utf-8", "replace")).encode() if self and name == ERROR else value

    def error(self, text: str) -> str:
        """What failed with a message, without what may be quoted of it."""
        if not self or not text:
            return text
        return masked_error(text)


def masked_error(text: str) -> str:
    """The type of an error, if it has one."""
    found = error_type(text)
    return MASKED if found is None else f"{found}: {MASKED}"


class MaskingRules:
    """The rules in the database, read again every now and then."""

    def __init__(self, store: RuleStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._read_ms: float | None = None
        self._rules: tuple[MaskingRule, ...] = ()

    async def list(self) -> tuple[MaskingRule, ...]:
        found = await self._store.list(_KIND)
        self._rules = tuple(_parse(id, body) for id, _, body in found)
        self._read_ms = self._clock.monotonic_ms()
        return self._rules

    async def add(self, rule: MaskingRule) -> MaskingRule:
        _check(rule)
        if len(await self.list()) >= MAX_RULES:
            raise BusyError(f"there are {MAX_RULES} masking rules, which is the most; no rule was added")
        body = {
            "part": rule.part.value,
            "topic_prefix": rule.topic_prefix,
            "path": rule.path,
            "visible_from": rule.visible_from.value,
            "cluster": rule.cluster,
        }
        id = await self._store.add(_KIND, rule.topic_prefix, body)
        self._read_ms = None
        return replace(rule, id=id)

    async def remove(self, id: str) -> MaskingRule:
        _, body = await self._store.remove(_KIND, id)
        self._read_ms = None
        return _parse(id, body)

    async def limit(self, cluster: str, role: Role) -> bool:
        """Whether any rule of the cluster counts for a role: then it does not see all that messages have."""
        await self._freshen()
        return any(rule.counts_for(cluster, role) for rule in self._rules)

    async def mask(self, cluster: str, topics: Iterable[str], role: Role) -> Mask:
        """What a role does not see of messages that are in, or come from, these topics."""
        return (await self.masks(cluster, role))(topics)

    async def masks(self, cluster: str, role: Role) -> Callable[[Iterable[str]], Mask]:
        """The same for any topics, as the rules are now."""
        await self._freshen()
        ours = [rule for rule in self._rules if rule.counts_for(cluster, role)]
        return lambda topics: _mask_of(ours, list(topics))

    async def _freshen(self) -> None:
        if self._read_ms is None or self._clock.monotonic_ms() - self._read_ms > _FRESH_MS:
            await self.list()


def _mask_of(rules: Sequence[MaskingRule], topics: Sequence[str]) -> Mask:
    """Of rules that count, those for one of these topics."""
    found = [rule for rule in rules if any(topic.startswith(rule.topic_prefix) for topic in topics)]
    return Mask(
        hides_messages=any(rule.part is MaskedPart.MESSAGES for rule in found),
        hides_key=any(rule.part is MaskedPart.KEY for rule in found),
        headers=frozenset(rule.path.casefold() for rule in found if rule.part is MaskedPart.HEADER),
        paths=tuple(JsonPath.parse(rule.path) for rule in found if rule.part is MaskedPart.JSON),
    )


def _check(rule: MaskingRule) -> None:
    if rule.part is MaskedPart.JSON:
        JsonPath.parse(rule.path)
    elif rule.part is MaskedPart.HEADER and not rule.path:
        raise InvalidError("a masking rule for a header names it; no rule was added")


def _parse(id: str, body: dict[str, Any]) -> MaskingRule:
    return MaskingRule(
        part=MaskedPart(body["part"]),
        topic_prefix=body["topic_prefix"],
        path=body["path"],
        visible_from=Role(body["visible_from"]),
        cluster=body["cluster"],
        id=id,
    )
