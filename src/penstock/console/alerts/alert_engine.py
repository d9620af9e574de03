"""Compares rules with snapshots, remembers what fires, and tells webhooks and mailboxes when it begins and ends.

Rules:
- A breach fires once it has lasted as long as its rule says; the engine notifies once, and once more when it has ended.
- A silence suppresses notifications; the history has the alerts all the same. When it ends, the engine notifies of
  alerts that still fire.
- Notifications never delay the poller: they run in a bounded number of tasks with a timeout; the history has failures.
"""

from __future__ import annotations

import asyncio
import logging
import smtplib
import ssl
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any

import httpx

from penstock.clock import Clock
from penstock.console.alerts.alert_rule import AlertKind, AlertRule, Breach, breaches, least_duration_ms, time_text
from penstock.console.polling.snapshot import ClusterSnapshot, Finding, Severity
from penstock.console.settings import MailSettings
from penstock.console.state.rules import EventStore, RuleStore
from penstock.logs import fields

logger = logging.getLogger(__name__)

RULES = "alert"
SILENCES = "silence"
EVENTS = "alert"
MAX_FIRING = 1_000
"""Things that fire at once; more are not told of, the first say enough."""
_FRESH_MS = 2_000
_TIMEOUT_S = 10.0
_TELLING = 20


@dataclass(frozen=True, slots=True)
class Silence:
    """Until when the engine sends no notifications of a rule (None: of any), or of one resource."""

    until_ms: int
    rule: str | None = None
    resource: str | None = None
    comment: str = ""
    id: str = ""


@dataclass(slots=True)
class _Firing:
    rule: AlertRule
    cluster: str
    breach: Breach
    since_ms: int
    event: str | None = None
    is_told: bool = False


class AlertEngine:
    """All rules over all clusters."""

    def __init__(self, rules: RuleStore, events: EventStore, mail: MailSettings, clock: Clock) -> None:
        self._store = rules
        self._events = events
        self._mail = mail
        self._clock = clock
        self._firing: dict[tuple[str, str, str], _Firing] = {}
        self._rules: list[AlertRule] = []
        self._silences: list[Silence] = []
        self._read_ms: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(_TELLING)

    async def rules(self) -> list[AlertRule]:
        return [AlertRule.parse(id, name, body) for id, name, body in await self._store.list(RULES)]

    async def silences(self) -> list[Silence]:
        return [
            Silence(body["until_ms"], body["rule"], body["resource"], body["comment"], id)
            for id, _, body in await self._store.list(SILENCES)
        ]

    def changed(self) -> None:
        """After a change of rules: they are read again."""
        self._read_ms = None

    def firing(self) -> list[dict[str, Any]]:
        """What fires now, the oldest first."""
        found = [each for each in self._firing.values() if each.event is not None]
        return [_told(each) for each in sorted(found, key=lambda each: each.since_ms)]

    def findings(self, cluster: str) -> list[Finding]:
        """What fires in a cluster, for its overview."""
        return [
            Finding(Severity.WARNING, "alert", each.rule.name, each.breach.text)
            for each in self._firing.values()
            if each.event is not None and each.cluster == cluster
        ]

    def timer_prefixes(self, cluster: str) -> tuple[str, ...]:
        """Of topics whose delayed messages some rule watches."""
        return tuple(
            {
                rule.prefix
                for rule in self._rules
                if rule.is_enabled and rule.kind is AlertKind.LATE_TIMERS and rule.cluster in (None, cluster)
            }
        )

    async def take(self, snapshot: ClusterSnapshot) -> None:
        """After each round of a poller."""
        await self._refresh()
        now_ms = self._clock.now_ms()
        seen: set[tuple[str, str, str]] = set()
        for rule in self._rules:
            if not rule.is_enabled or rule.cluster not in (None, snapshot.cluster):
                continue
            for breach in breaches(rule, snapshot):
                key = (rule.id, snapshot.cluster, breach.resource)
                seen.add(key)
                firing = self._firing.get(key)
                if firing is None:
                    if len(self._firing) >= MAX_FIRING:
                        continue
                    firing = self._firing[key] = _Firing(rule, snapshot.cluster, breach, now_ms)
                firing.breach, firing.rule = breach, rule
                if firing.event is None and now_ms - firing.since_ms >= least_duration_ms(rule):
                    firing.event = await self._events.begin(EVENTS, rule.id, _told(firing))
                if firing.event is not None and not firing.is_told:
                    firing.is_told = self._tell(firing, "firing", now_ms)
        known = {rule.id for rule in self._rules if rule.is_enabled}
        for key, firing in list(self._firing.items()):
            is_ours = firing.cluster == snapshot.cluster and (snapshot.is_reachable or key[0] not in known)
            if key not in seen and (is_ours or key[0] not in known):
                del self._firing[key]
                if firing.event is not None:
                    await self._events.end(firing.event, _told(firing))
                if firing.is_told:
                    self._tell(firing, "resolved", now_ms)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def deliver(self, rule: AlertRule, body: dict[str, Any]) -> list[str]:
        """Tells the webhook and the mailboxes of a rule; gives what failed."""
        failed: list[str] = []
        if rule.webhook:
            try:
                async with httpx.AsyncClient(timeout=_TIMEOUT_S, follow_redirects=False) as client:
                    answer = await client.post(rule.webhook, json=body)
                if not answer.is_success:
                    failed.append(f"the webhook answered {answer.status_code}")
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                failed.append(f"the webhook did not answer: {type(error).__name__}")
        if rule.email:
            if not self._mail.host:
                failed.append("no mail server is set; nothing was mailed")
            else:
                try:
                    await asyncio.to_thread(self._send_mail, rule, body)
                except (OSError, smtplib.SMTPException) as error:
                    failed.append(f"the mail was not sent: {type(error).__name__}")
        return failed

    async def _refresh(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._read_ms is None or now_ms - self._read_ms > _FRESH_MS:
            self._rules, self._silences, self._read_ms = await self.rules(), await self.silences(), now_ms

    def _tell(self, firing: _Firing, state: str, now_ms: int) -> bool:
        """False if a silence keeps it."""
        if any(_covers(silence, firing, now_ms) for silence in self._silences):
            return False
        body = {**_told(firing), "state": state, "at": time_text(now_ms)}
        task = asyncio.get_running_loop().create_task(self._deliver_logged(firing.rule, body), name="alert")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _deliver_logged(self, rule: AlertRule, body: dict[str, Any]) -> None:
        async with self._turns:
            failed = await self.deliver(rule, body)
        if failed:
            logger.warning(
                "could not send the notification of an alert", extra=fields(rule=rule.name, problem="; ".join(failed))
            )

    def _send_mail(self, rule: AlertRule, body: dict[str, Any]) -> None:
        message = EmailMessage()
        message["Subject"] = f"[{body['state']}] {rule.name}: {body['resource']}".replace("\n", " ").replace("\r", " ")
        message["From"] = self._mail.sender
        message["To"] = ", ".join(rule.email)
        message.set_content("\n".join(f"{name}: {value}" for name, value in body.items()))
        with smtplib.SMTP(self._mail.host, self._mail.port, timeout=_TIMEOUT_S) as server:
            if self._mail.is_tls:
                server.starttls(context=ssl.create_default_context())
            if self._mail.user:
                server.login(self._mail.user, self._mail.password)
            server.send_message(message)


def _covers(silence: Silence, firing: _Firing, now_ms: int) -> bool:
    return (
        silence.until_ms > now_ms
        and silence.rule in (None, firing.rule.id)
        and silence.resource in (None, firing.breach.resource)
    )


def _told(firing: _Firing) -> dict[str, Any]:
    return {
        "rule": firing.rule.name,
        "kind": firing.rule.kind.value,
        "cluster": firing.cluster,
        "resource": firing.breach.resource,
        "value": firing.breach.value,
        "threshold": firing.rule.threshold,
        "text": firing.breach.text,
        "since_ms": firing.since_ms,
    }
