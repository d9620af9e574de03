"""Operations on alert rules, what fires, the history of it, and silences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from penstock.clock import Clock
from penstock.console.alerts.alert_engine import EVENTS, RULES, SILENCES, AlertEngine, Silence
from penstock.console.alerts.alert_rule import AlertRule, time_text
from penstock.console.errors import BusyError, InvalidError
from penstock.console.operations.clusters import Clusters
from penstock.console.operations.operation import Changed, Scope, Service, change, query
from penstock.console.security.roles import Caller, Role
from penstock.console.state.audit import AuditLog
from penstock.console.state.rules import Event, EventStore, RuleStore

MAX_RULES = 500
MAX_SILENCES = 500


class AlertOperations(Service):
    """Alerts."""

    def __init__(
        self,
        audit: AuditLog,
        clusters: Clusters,
        rules: RuleStore,
        events: EventStore,
        engine: AlertEngine,
        clock: Clock,
    ) -> None:
        super().__init__(audit)
        self._clusters = clusters
        self._rules = rules
        self._events = events
        self._engine = engine
        self._clock = clock

    @query("alerts.rules", Role.VIEWER, Scope.CONSOLE)
    async def rules(self, caller: Caller) -> tuple[AlertRule, ...]:
        """A webhook's address may have a secret in it: only operators see it."""
        found = await self._engine.rules()
        if not caller.role.covers(Role.OPERATOR):
            found = [replace(each, webhook="(hidden)" if each.webhook else "") for each in found]
        return tuple(found)

    @query("alerts.firing", Role.VIEWER, Scope.CONSOLE)
    async def firing(self, caller: Caller) -> tuple[dict[str, Any], ...]:
        """What fires now."""
        return tuple(self._engine.firing())

    @query("alerts.history", Role.VIEWER, Scope.CONSOLE)
    async def history(self, caller: Caller, limit: int = 100, after: str = "") -> tuple[Event, ...]:
        """What has fired, the newest first."""
        return tuple(await self._events.list(EVENTS, limit=limit, after=after))

    @change("alerts.add_rule", Role.OPERATOR, Scope.CONSOLE, hidden=("rule",))
    async def add_rule(self, caller: Caller, rule: AlertRule) -> Changed[AlertRule]:
        self._check(rule)
        if len(await self._engine.rules()) >= MAX_RULES:
            raise BusyError(f"there are {MAX_RULES} alert rules, which is the most; no rule was added")
        made = replace(rule, id=await self._rules.add(RULES, rule.name, rule.body()))
        self._engine.changed()
        return Changed(made, None, _public(made))

    @change("alerts.alter_rule", Role.OPERATOR, Scope.CONSOLE, hidden=("rule",))
    async def alter_rule(self, caller: Caller, id: str, rule: AlertRule) -> Changed[AlertRule]:
        self._check(rule)
        before = next((each for each in await self._engine.rules() if each.id == id), None)
        await self._rules.alter(RULES, id, rule.name, rule.body())
        self._engine.changed()
        made = replace(rule, id=id)
        return Changed(made, None if before is None else _public(before), _public(made))

    @change("alerts.remove_rule", Role.OPERATOR, Scope.CONSOLE)
    async def remove_rule(self, caller: Caller, id: str) -> Changed[None]:
        name, body = await self._rules.remove(RULES, id)
        self._engine.changed()
        return Changed(None, _public(AlertRule.parse(id, name, body)), None)

    @change("alerts.test_rule", Role.OPERATOR, Scope.CONSOLE)
    async def test_rule(self, caller: Caller, id: str) -> Changed[tuple[str, ...]]:
        """Tells the webhook and mailboxes of a rule that this is a test; gives what failed."""
        rule = next((each for each in await self._engine.rules() if each.id == id), None)
        if rule is None:
            raise InvalidError(f"there is no alert rule {id}; nothing was sent")
        body = {
            "rule": rule.name,
            "kind": rule.kind.value,
            "state": "test",
            "resource": "test",
            "text": f"a test, started by {caller.name}",
            "at": time_text(self._clock.now_ms()),
        }
        failed = await self._engine.deliver(rule, body)
        return Changed(tuple(failed), None, None, "; ".join(failed))

    @query("alerts.silences", Role.VIEWER, Scope.CONSOLE)
    async def silences(self, caller: Caller) -> tuple[Silence, ...]:
        return tuple(await self._engine.silences())

    @change("alerts.add_silence", Role.OPERATOR, Scope.CONSOLE)
    async def add_silence(self, caller: Caller, silence: Silence) -> Changed[Silence]:
        held = await self._engine.silences()
        now_ms = self._clock.now_ms()
        for old in held:
            if old.until_ms <= now_ms:
                await self._rules.remove(SILENCES, old.id)
        if sum(each.until_ms > now_ms for each in held) >= MAX_SILENCES:
            raise BusyError(f"there are {MAX_SILENCES} silences, which is the most; none was added")
        body = {
            "until_ms": silence.until_ms,
            "rule": silence.rule,
            "resource": silence.resource,
            "comment": silence.comment,
        }
        made = replace(silence, id=await self._rules.add(SILENCES, silence.comment, body))
        self._engine.changed()
        return Changed(made, None, made)

    @change("alerts.remove_silence", Role.OPERATOR, Scope.CONSOLE)
    async def remove_silence(self, caller: Caller, id: str) -> Changed[None]:
        await self._rules.remove(SILENCES, id)
        self._engine.changed()
        return Changed(None)

    def _check(self, rule: AlertRule) -> None:
        if rule.cluster is not None:
            self._clusters[rule.cluster]
        if rule.webhook:
            try:
                parts = urlsplit(rule.webhook)
                is_right = parts.scheme in ("http", "https") and bool(parts.hostname)
            except ValueError:
                is_right = False
            if not is_right:
                raise InvalidError("a webhook begins with http:// or https:// and names a host; nothing was changed")
        for address in rule.email:
            if not address.isprintable() or address.count("@") != 1 or any(char in address for char in " ,;<>"):
                raise InvalidError(f"{address!r} is no mail address; nothing was changed")


def _public(rule: AlertRule) -> AlertRule:
    """Without a secret that may be in the webhook's address."""
    return replace(rule, webhook="(hidden)" if rule.webhook else "")
