"""Dead letters: messages that a group has given up. Listed, found by id, resent, purged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from penstock.admin.connection import AdminConnection
from penstock.admin.dead_letter_topic import (
    DeadLetter,
    DeadLetterId,
    DeadLetters,
    DeadLetterSelection,
    DeadLetterState,
    Progress,
    parse_dead_letter_id,
)
from penstock.admin.errors import RESOURCE_NOT_FOUND, AdminError
from penstock.admin.offsets import OffsetOperations
from penstock.admin.results import Page, Results
from penstock.admin.topics import TopicOperations
from penstock.errors import Code

_ALL_STATES = frozenset(DeadLetterState)
_WAITING = DeadLetterSelection()


def _no_progress(what: str, done: int, total: int) -> None:
    pass


class DeadLetterOperations:
    """Operations on the dead letters of groups.

    `progress` is called while records are read, with what is being done, how much is done and how much there is; it
    may raise to stop.
    """

    def __init__(self, connection: AdminConnection, topics: TopicOperations, offsets: OffsetOperations) -> None:
        self._connection = connection
        self._topics = topics
        self._offsets = offsets

    def list(
        self,
        group: str,
        selection: DeadLetterSelection = _WAITING,
        *,
        limit: int = 100,
        after: str | None = None,
        progress: Progress = _no_progress,
    ) -> Page[DeadLetter]:
        """The letters that a selection means, by partition and offset.

        A page reads the dead-letter topic to its end, from where the page before ended: what was resent or purged is
        recorded behind the letters.
        """
        last = None if after is None else _parse_after(after)
        with self._opened(group, progress) as letters:
            chosen = letters.page(selection, limit + 1, last)
        items = tuple(chosen[:limit])
        return Page(items, str(items[-1].id) if len(chosen) > limit else None)

    def find(
        self, group: str, ids: Iterable[DeadLetterId], *, progress: Progress = _no_progress
    ) -> Results[DeadLetterId, DeadLetter]:
        """Letters by id, also those that were resent or purged and are still there."""
        wanted = frozenset(ids)
        with self._opened(group, progress) as letters:
            found = {each.id: each for each in letters.select(DeadLetterSelection(ids=wanted, states=_ALL_STATES))}
        missing = sorted(wanted - found.keys())
        return Results(
            {id: found[id] for id in sorted(found)},
            {id: AdminError(RESOURCE_NOT_FOUND, f"group {group} has no dead letter {id}") for id in missing},
        )

    def preview(
        self, group: str, selection: DeadLetterSelection, *, progress: Progress = _no_progress
    ) -> Results[DeadLetterId, None]:
        """What `resend` and `purge` would do; changes nothing."""
        return self._settle(group, selection, progress, lambda letters, chosen: _ids(letters.select(chosen)))

    def resend(
        self, group: str, selection: DeadLetterSelection, *, progress: Progress = _no_progress
    ) -> Results[DeadLetterId, None]:
        """Gives waiting letters to their group once more, each exactly once however often this is called. The errors
        are of letters that the selection names by id and that do not wait.
        """
        return self._settle(group, selection, progress, DeadLetters.resend)

    def purge(
        self, group: str, selection: DeadLetterSelection, *, progress: Progress = _no_progress
    ) -> Results[DeadLetterId, None]:
        """Throws waiting letters away for good; errors as of `resend`."""
        return self._settle(group, selection, progress, DeadLetters.purge)

    def _settle(
        self,
        group: str,
        selection: DeadLetterSelection,
        progress: Progress,
        settle: Callable[[DeadLetters, DeadLetterSelection], Sequence[DeadLetterId]],
    ) -> Results[DeadLetterId, None]:
        waiting = replace(selection, states=frozenset({DeadLetterState.WAITING}))
        with self._opened(group, progress) as letters:
            done = settle(letters, waiting)
        return Results(dict.fromkeys(done), _not_waiting(selection.ids.difference(done)))

    def _opened(self, group: str, progress: Progress) -> DeadLetters:
        return DeadLetters(self._connection, self._topics, self._offsets, group, progress)


def _ids(letters: Iterable[DeadLetter]) -> Sequence[DeadLetterId]:
    return [letter.id for letter in letters]


def _not_waiting(ids: Iterable[DeadLetterId]) -> dict[DeadLetterId, AdminError]:
    """The errors for requested letters that do not wait."""
    return {
        id: AdminError(RESOURCE_NOT_FOUND, f"{id} does not wait: it was resent or purged before, or does not exist")
        for id in sorted(ids)
    }


def _parse_after(after: str) -> DeadLetterId:
    try:
        return parse_dead_letter_id(after)
    except ValueError:
        raise AdminError(Code.INVALID_REQUEST.name, f"{after!r} does not continue a list of dead letters") from None
