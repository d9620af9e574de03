"""Operations on dead letters: by group and error, inspect, edit, resend with a result each, purge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock.admin import (
    AdminError,
    Cluster,
    DeadLetter,
    DeadLetterId,
    DeadLetterSelection,
    DeadLetterState,
    Results,
    parse_dead_letter_id,
)
from penstock.console.errors import ConflictError, InvalidError, RefusedError
from penstock.console.messages.message_row import MessageRow
from penstock.console.messages.sending import SentMessage, first_problem, send
from penstock.console.operations.clusters import Clusters
from penstock.console.operations.messages import MaskedView
from penstock.console.operations.operation import Changed, Scope, Service, change, query
from penstock.console.operations.paging import ItemResult
from penstock.console.schemas.topic_schemas import TopicSchemas
from penstock.console.security.masking import MaskingRules
from penstock.console.security.roles import Caller, Role
from penstock.console.settings import MessageSettings
from penstock.console.state.audit import AuditLog
from penstock.sdk.headers import FAILING, RESEND, TIMING, without
from penstock.sdk.ports import Outgoing
from penstock.sdk.topic_names import dead_topic

MAX_COUNTED = 50_000
MAX_RESULTS = 10_000
_PAGE = 1000
_ERROR_CHARS = 200


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """A group that has a dead-letter topic."""

    group: str
    topic: str
    messages: int | None
    """An upper bound: what was resent or purged is counted until it expires."""


@dataclass(frozen=True, slots=True)
class DeadLetterError:
    """Dead letters of a group that failed alike."""

    error: str
    count: int
    last_ms: int | None

    def with_more(self, other: DeadLetterError) -> DeadLetterError:
        """Those of the other as well."""
        last_ms = max(self.last_ms or 0, other.last_ms or 0) or None
        return DeadLetterError(self.error, self.count + other.count, last_ms)


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """A dead letter with the message, and why it died."""

    id: str
    state: str
    died_ms: int | None
    attempts: int
    error: str
    origin_topic: str
    origin_partition: int
    origin_offset: int
    message: MessageRow


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    rows: tuple[DeadLetterRow, ...]
    next: str | None


class DeadLetterOperations(Service):
    """Dead letters of groups; the role on the group counts."""

    def __init__(
        self,
        audit: AuditLog,
        clusters: Clusters,
        masking: MaskingRules,
        schemas: TopicSchemas,
        settings: MessageSettings,
    ) -> None:
        super().__init__(audit)
        self._clusters = clusters
        self._masking = masking
        self._schemas = schemas
        self._settings = settings

    @query("dead_letters.groups", Role.VIEWER, Scope.ANY)
    async def groups(self, caller: Caller, cluster: str) -> tuple[DeadLetterGroup, ...]:
        """The groups that have dead letters, or had some."""
        snapshot = self._clusters[cluster].snapshot
        found = []
        for name in snapshot.groups:
            row = snapshot.topics.get(dead_topic(name))
            if row is not None and caller.sees_group(cluster, name):
                found.append(DeadLetterGroup(name, row.name, row.messages))
        return tuple(sorted(found, key=lambda each: -(each.messages or 0)))

    @query("dead_letters.errors", Role.VIEWER, Scope.GROUP)
    async def errors(self, caller: Caller, cluster: str, group: str) -> tuple[DeadLetterError, ...]:
        """Those that wait, by error, the most frequent first."""
        link = self._clusters[cluster].link
        found = await link.detail(("dead letters", group), lambda admin: _errors(admin, group))
        shown_error = await self._shown_error(caller, cluster, group)
        merged: dict[str, DeadLetterError] = {}
        for origin, each in found:
            shown = replace(each, error=shown_error(origin, each.error))
            before = merged.get(shown.error)
            merged[shown.error] = shown if before is None else before.with_more(shown)
        return tuple(sorted(merged.values(), key=lambda each: -each.count))

    @query("dead_letters.list", Role.VIEWER, Scope.GROUP, is_audited=True)
    async def list(
        self,
        caller: Caller,
        cluster: str,
        group: str,
        selection: DeadLetterSelection,
        limit: int = 100,
        after: str | None = None,
    ) -> DeadLetterPage:
        view = await self._view(caller, cluster, group)
        selection = await self._as_seen(caller, cluster, group, selection)
        link = self._clusters[cluster].link
        page = await link.run(lambda admin: admin.dead_letters.list(group, selection, limit=limit, after=after))
        return DeadLetterPage(tuple([await self._row(view, each) for each in page.items]), page.next)

    @query("dead_letters.show", Role.VIEWER, Scope.GROUP, is_audited=True)
    async def show(self, caller: Caller, cluster: str, group: str, letter: str) -> DeadLetterRow:
        view = await self._view(caller, cluster, group)
        id = _parse(letter)
        found = await self._clusters[cluster].link.run(lambda admin: admin.dead_letters.find(group, [id]))
        return await self._row(view, found[id])

    @query("dead_letters.preview", Role.VIEWER, Scope.GROUP)
    async def preview(self, caller: Caller, cluster: str, group: str, selection: DeadLetterSelection) -> int:
        """How many a selection means."""
        selection = await self._as_seen(caller, cluster, group, selection)
        done = await self._clusters[cluster].link.run(lambda admin: admin.dead_letters.preview(group, selection))
        return len(done.values)

    @change("dead_letters.resend", Role.OPERATOR, Scope.GROUP)
    async def resend(
        self, caller: Caller, cluster: str, group: str, selection: DeadLetterSelection
    ) -> Changed[tuple[ItemResult, ...]]:
        """Gives waiting letters to their group once more, each exactly once; a result for each."""
        selection = await self._as_seen(caller, cluster, group, selection)
        managed = self._clusters[cluster]
        done = await managed.link.run(lambda admin: admin.dead_letters.resend(group, selection))
        managed.changed()
        return _changed(done, "resent")

    @change("dead_letters.purge", Role.OPERATOR, Scope.GROUP)
    async def purge(
        self, caller: Caller, cluster: str, group: str, selection: DeadLetterSelection, confirm: str
    ) -> Changed[tuple[ItemResult, ...]]:
        """Throws waiting letters away for good; `confirm` is the group's name."""
        if confirm != group:
            raise ConflictError(f"type the name {group} to confirm; nothing was purged")
        selection = await self._as_seen(caller, cluster, group, selection)
        managed = self._clusters[cluster]
        done = await managed.link.run(lambda admin: admin.dead_letters.purge(group, selection))
        managed.changed()
        return _changed(done, "purged")

    @change("dead_letters.edit", Role.OPERATOR, Scope.GROUP, hidden=("value", "key"))
    async def edit(
        self,
        caller: Caller,
        cluster: str,
        group: str,
        letter: str,
        value: bytes | None,
        key: bytes | None = None,
        keep_key: bool = True,
    ) -> Changed[SentMessage]:
        """Sends a corrected copy of a waiting letter to its topic of origin, and purges the letter. If the purge fails,
        the letter waits still and the copy is sent: the error says so.
        """
        id = _parse(letter)
        managed = self._clusters[cluster]
        found = (await managed.link.run(lambda admin: admin.dead_letters.find(group, [id])))[id]
        if found.state is not DeadLetterState.WAITING:
            raise ConflictError(f"{letter} does not wait: it was {found.state.value} before; nothing was sent")
        origin = found.origin.topic
        if not caller.role_on_topic(cluster, origin).covers(Role.OPERATOR):
            raise RefusedError(f"sending to {origin} needs the role operator there; nothing was sent")
        headers = without(found.received.headers, TIMING | FAILING | {RESEND})
        outgoing = Outgoing(origin, value, found.received.key if keep_key else key, headers)
        sent = await managed.link.run(lambda _: send(managed.link, [outgoing]))
        first_problem(sent)
        try:
            chosen = DeadLetterSelection(ids=frozenset({id}))
            (await managed.link.run(lambda admin: admin.dead_letters.purge(group, chosen))).all()
        except AdminError as error:
            raise AdminError(
                error.code,
                f"the corrected copy was sent to {origin}, but {letter} could not be purged: {error.message}",
            ) from None
        managed.changed()
        return Changed(sent[0], {"letter": letter}, {"partition": sent[0].partition, "offset": sent[0].offset})

    async def _view(self, caller: Caller, cluster: str, group: str) -> MaskedView:
        """The caller's role on the group counts for its dead letters; masks are those of the topics they come from."""
        role = caller.role_on_group(cluster, group)
        view = MaskedView(self._masking, cluster, (dead_topic(group),), role, self._schemas)
        if (await view.mask(None)).hides_messages:
            raise RefusedError(f"your role does not view messages of {dead_topic(group)}; nothing was read")
        return view

    async def _as_seen(
        self, caller: Caller, cluster: str, group: str, selection: DeadLetterSelection
    ) -> DeadLetterSelection:
        """Selects by what the caller sees of errors: else parts of masked messages could be guessed."""
        shown_error = await self._shown_error(caller, cluster, group)
        return replace(selection, shown_error=lambda letter: shown_error(letter.origin.topic, letter.error))

    async def _shown_error(self, caller: Caller, cluster: str, group: str) -> Callable[[str, str], str]:
        """Of the topic that a letter comes from and its error: what the caller sees of the error."""
        masks = await self._masking.masks(cluster, caller.role_on_group(cluster, group))
        return lambda origin, error: masks((dead_topic(group), origin)).error(error)

    async def _row(self, view: MaskedView, letter: DeadLetter) -> DeadLetterRow:
        mask = await view.mask(letter.received)
        origin = letter.origin
        received = letter.received
        if mask.hides_messages:
            # The dead-letter topic may be viewed, but not the topic that this one comes from.
            raise RefusedError(f"your role does not view messages of {origin.topic}; nothing was read")
        (row,) = await view.rows([received], self._settings.shown_bytes)
        return DeadLetterRow(
            id=str(letter.id),
            state=letter.state.value,
            died_ms=letter.died_ms,
            attempts=letter.attempts,
            error=mask.error(letter.error),
            origin_topic=origin.topic,
            origin_partition=origin.partition,
            origin_offset=origin.offset,
            message=row,
        )


def _errors(admin: Cluster, group: str) -> tuple[tuple[str, DeadLetterError], ...]:
    """With the topic that the letters come from."""
    found: dict[tuple[str, str], DeadLetterError] = {}
    after: str | None = None
    counted = 0
    while counted < MAX_COUNTED:
        page = admin.dead_letters.list(group, limit=_PAGE, after=after)
        for letter in page.items:
            one = DeadLetterError(letter.error[:_ERROR_CHARS], 1, letter.died_ms)
            key = (letter.origin.topic, one.error)
            found[key] = found[key].with_more(one) if key in found else one
        counted += len(page.items)
        if page.next is None:
            break
        after = page.next
    return tuple((topic, each) for (topic, _), each in found.items())


def _parse(letter: str) -> DeadLetterId:
    try:
        return parse_dead_letter_id(letter)
    except ValueError as error:
        raise InvalidError(str(error)) from None


def parse_ids(letters: Sequence[str]) -> frozenset[DeadLetterId]:
    return frozenset(_parse(each) for each in letters)


def _changed(done: Results[DeadLetterId, None], what: str) -> Changed[tuple[ItemResult, ...]]:
    results = [ItemResult(str(id), True) for id in done.values]
    results += [ItemResult(str(id), False, error.code, error.message) for id, error in done.errors.items()]
    problem = "; ".join(f"{each.item}: {each.error}" for each in results[:MAX_RESULTS] if not each.is_done)
    ids = [each.item for each in results if each.is_done]
    return Changed(tuple(results[:MAX_RESULTS]), None, {what: len(ids), "ids": ids[:_PAGE]}, problem)
