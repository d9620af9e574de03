"""Operations on delayed messages: what waits and when it is due, cancel, reschedule, fire now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.admin import Cluster, Page, WaitingMessage
from penstock.clock import Clock
from penstock.console.errors import ConflictError, InvalidError, RefusedError
from penstock.console.messages.message_row import HeaderRow, Payload, masked_message, payload
from penstock.console.messages.sending import first_problem, send
from penstock.console.operations.clusters import Clusters
from penstock.console.operations.messages import MaskedView, masked_view
from penstock.console.operations.operation import Changed, Scope, Service, change, query
from penstock.console.operations.paging import ItemResult
from penstock.console.security.masking import MaskingRules
from penstock.console.security.roles import Caller, Role
from penstock.console.settings import MessageSettings
from penstock.console.state.audit import AuditLog
from penstock.sdk.headers import DELAY, DELIVER_AT, SCHEDULE, TIMING, without
from penstock.sdk.ports import Outgoing, Received

_PAGE = 1000
_NO_OFFSET = -1
MAX_COUNTED = 20_000
MAX_BINS = 200


@dataclass(frozen=True, slots=True)
class TimerRow:
    """A message that waits."""

    topic: str
    partition: int
    due_ms: int
    timer_id: str | None
    schedule: str | None
    key: Payload | None
    value: Payload | None
    headers: tuple[HeaderRow, ...]


@dataclass(frozen=True, slots=True)
class TimerPage:
    """Waiting messages by due time; `next` continues the list."""

    rows: tuple[TimerRow, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class TimerHistogram:
    """How many messages are due when: `counts[i]` of them from `from_ms + i * bin_ms` on."""

    from_ms: int
    bin_ms: int
    counts: tuple[int, ...]
    overdue: int
    later: int
    """Behind the last bin, as far as was counted."""
    is_bounded: bool
    """Whether there are more than were counted."""
    last_due_ms: int | None
    """The latest due time that was counted."""


class TimerOperations(Service):
    """Delayed messages of topics."""

    def __init__(
        self, audit: AuditLog, clusters: Clusters, masking: MaskingRules, settings: MessageSettings, clock: Clock
    ) -> None:
        super().__init__(audit)
        self._clusters = clusters
        self._masking = masking
        self._settings = settings
        self._clock = clock

    @query("timers.list", Role.VIEWER, Scope.TOPIC, is_audited=True)
    async def list(
        self,
        caller: Caller,
        cluster: str,
        topic: str,
        due_from_ms: int = 0,
        due_until_ms: int | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> TimerPage:
        """What waits, by due time."""
        view = await self._view(caller, cluster, topic)
        link = self._clusters[cluster].link

        def read(admin: Cluster) -> Page[WaitingMessage]:
            return admin.timers.list(
                topic, due_from_ms=due_from_ms, due_until_ms=due_until_ms, limit=limit, after=after
            )

        page = await link.run(read)
        return TimerPage(tuple([await self._row(view, each) for each in page.items]), page.next)

    @query("timers.find", Role.VIEWER, Scope.TOPIC, is_audited=True)
    async def find(self, caller: Caller, cluster: str, topic: str, timer_id: str) -> tuple[TimerRow, ...]:
        """The messages that wait under a timer id: one in each partition that has it."""
        view = await self._view(caller, cluster, topic)
        found = (await self._clusters[cluster].link.run(lambda admin: admin.timers.find(topic, [timer_id])))[timer_id]
        return tuple([await self._row(view, each) for each in found])

    @query("timers.histogram", Role.VIEWER, Scope.TOPIC)
    async def histogram(
        self, caller: Caller, cluster: str, topic: str, from_ms: int, bin_ms: int, bins: int
    ) -> TimerHistogram:
        """How many messages are due when, up to a bound."""
        if bins > MAX_BINS:
            raise InvalidError(f"a histogram has at most {MAX_BINS} bins")
        link = self._clusters[cluster].link
        due, is_bounded = await link.detail(("timers", topic), lambda admin: _due_times(admin, topic))
        counts = [0] * bins
        overdue = later = 0
        for each in due:
            bin = (each - from_ms) // bin_ms
            if bin < 0:
                overdue += 1
            elif bin >= bins:
                later += 1
            else:
                counts[bin] += 1
        return TimerHistogram(from_ms, bin_ms, tuple(counts), overdue, later, is_bounded, max(due, default=None))

    @change("timers.cancel", Role.OPERATOR, Scope.TOPIC)
    async def cancel(
        self, caller: Caller, cluster: str, topic: str, timer_ids: Sequence[str], partition: int | None = None
    ) -> Changed[tuple[ItemResult, ...]]:
        """Cancels messages before they are delivered; a result for each."""
        managed = self._clusters[cluster]
        done = await managed.link.run(lambda admin: admin.timers.cancel(topic, timer_ids, partition=partition))
        managed.changed()
        results = [ItemResult(id, True) for id in done.values]
        results += [ItemResult(id, False, error.code, error.message) for id, error in done.errors.items()]
        problem = "; ".join(f"{each.item}: {each.error}" for each in results if not each.is_done)
        return Changed(tuple(results), {"cancelled": list(done.values)}, None, problem)

    @change("timers.reschedule", Role.OPERATOR, Scope.TOPIC)
    async def reschedule(
        self, caller: Caller, cluster: str, topic: str, timer_id: str, due_ms: int
    ) -> Changed[tuple[ItemResult, ...]]:
        """Has a message delivered at another time. Its timer id stays, so the new one replaces it."""
        now_ms = self._clock.now_ms()
        if due_ms <= now_ms:
            raise InvalidError("the new due time is in the past; fire the message instead. Nothing was changed")
        return await self._replace(cluster, topic, timer_id, due_ms)

    @change("timers.fire", Role.OPERATOR, Scope.TOPIC)
    async def fire(self, caller: Caller, cluster: str, topic: str, timer_id: str) -> Changed[tuple[ItemResult, ...]]:
        """Has a message delivered now. One that repeats is delivered once more and goes on as before."""
        return await self._replace(cluster, topic, timer_id, None)

    async def _replace(
        self, cluster: str, topic: str, timer_id: str, due_ms: int | None
    ) -> Changed[tuple[ItemResult, ...]]:
        """A message with the same timer id in the same partition takes the place of the one that waits."""
        managed = self._clusters[cluster]
        waiting = (await managed.link.run(lambda admin: admin.timers.find(topic, [timer_id])))[timer_id]
        if due_ms is not None and any(each.schedule is not None for each in waiting):
            raise ConflictError(f"{timer_id} repeats by a schedule of its own; nothing was changed")
        outgoing = [_again(each, due_ms, self._clock.now_ms()) for each in waiting]
        sent = await managed.link.run(lambda _: send(managed.link, outgoing))
        if len(sent) == 1:
            first_problem(sent)
        managed.changed()
        results = [
            ItemResult(f"{timer_id} in partition {each.partition}", not told.error, told.code, told.error)
            for each, told in zip(waiting, sent, strict=True)
        ]
        problem = "; ".join(f"{each.item}: {each.error}" for each in results if not each.is_done)
        before = [each.due_ms for each in waiting]
        return Changed(tuple(results), {"due_ms": before}, {"due_ms": due_ms or "now"}, problem)

    async def _view(self, caller: Caller, cluster: str, topic: str) -> MaskedView:
        view = await masked_view(self._clusters[cluster], self._masking, caller, topic)
        if (await view.mask(None)).hides_messages:
            raise RefusedError(f"your role does not view messages of {topic}; nothing was read")
        return view

    async def _row(self, view: MaskedView, message: WaitingMessage) -> TimerRow:
        received = Received(
            message.topic, message.partition, _NO_OFFSET, message.value, message.key, message.headers, message.due_ms
        )
        shown = masked_message(received, await view.mask(received))
        limit = self._settings.shown_bytes
        return TimerRow(
            topic=message.topic,
            partition=message.partition,
            due_ms=message.due_ms,
            timer_id=message.timer_id,
            schedule=message.schedule,
            key=payload(shown.key, limit),
            value=payload(shown.value, limit),
            headers=tuple(HeaderRow(name, payload(value, limit)) for name, value in shown.headers),
        )


def _due_times(admin: Cluster, topic: str) -> tuple[list[int], bool]:
    found: list[int] = []
    after: str | None = None
    while len(found) < MAX_COUNTED:
        page = admin.timers.list(topic, limit=_PAGE, after=after)
        found += [each.due_ms for each in page.items]
        if page.next is None:
            return found, False
        after = page.next
    return found, True


def _again(message: WaitingMessage, due_ms: int | None, now_ms: int) -> Outgoing:
    """The message with another due time; the broker takes the timer id from its headers. One that is due now and
    repeats is a copy of its own, so that the schedule goes on.
    """
    if due_ms is None and message.schedule is not None:
        return Outgoing(message.topic, message.value, message.key, without(message.headers, TIMING), message.partition)
    headers = without(message.headers, (DELAY, DELIVER_AT, SCHEDULE))
    at_ms = now_ms if due_ms is None else due_ms
    return Outgoing(
        message.topic,
        message.value,
        message.key,
        (*headers, (DELIVER_AT, str(at_ms).encode())),
        message.partition,
    )
