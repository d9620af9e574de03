"""Searches through topics: each scans ranges of offsets in a thread of its own until it has found enough.

A search looks at what its caller sees: masked fields match nothing. It is bounded by records, hits and time, can be
cancelled, and is forgotten a while after its end.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from penstock.admin import AdminError
from penstock.clock import Clock
from penstock.console.errors import BusyError, InvalidError, MissingError
from penstock.console.messages.json_path import JsonPath
from penstock.console.messages.message_row import NO_SCHEMAS, MessageRow, masked_message, message_row
from penstock.console.messages.reader import scan
from penstock.console.pipeline.archived_messages import ArchivedMessages
from penstock.console.polling.cluster_link import ClusterLink
from penstock.console.schemas.topic_schemas import SchemaSet
from penstock.console.security.masking import Mask
from penstock.console.settings import MessageSettings
from penstock.errors import PenstockError
from penstock.sdk.headers import BIZ_ID, tags_of, text_of
from penstock.sdk.ports import Received

logger = logging.getLogger(__name__)

_KEPT_MS = 600_000


@dataclass(frozen=True, slots=True)
class Sight:
    """How a caller sees a message: what is hidden, and the schemas that decode it."""

    mask: Mask
    schemas: SchemaSet = NO_SCHEMAS


SightOf = Callable[[Received], Sight]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """What to look for: messages that match everything that is set."""

    key: str | None = None
    """The whole key."""
    biz_id: str | None = None
    tag: str | None = None
    header: str | None = None
    """The name of a header; with `header_value`, also its value."""
    header_value: str | None = None
    text: str | None = None
    """In the value, in any case."""
    json_path: str | None = None
    json_value: str | None = None
    """The value at the path as text or JSON; None: any value."""
    since_ms: int | None = None
    until_ms: int | None = None

    def matcher(self) -> Callable[[Received], bool]:
        """InvalidError if it cannot be carried out."""
        checks: list[Callable[[Received], bool]] = []
        if self.key is not None:
            key = self.key.encode("utf-8", "surrogatepass")
            checks.append(lambda message: message.key == key)
        if self.biz_id is not None:
            checks.append(lambda message: text_of(message.headers, BIZ_ID) == self.biz_id)
        if self.tag is not None:
            checks.append(lambda message: self.tag in tags_of(message.headers))
        if self.header is not None:
            checks.append(self._has_header)
        elif self.header_value is not None:
            raise InvalidError("a search for the value of a header names the header")
        if self.text is not None:
            words = self.text.casefold()
            checks.append(lambda message: words in (message.value or b"").decode("utf-8", "replace").casefold())
        if self.json_path is not None:
            path = JsonPath.parse(self.json_path)
            checks.append(lambda message: self._has_json(path, message.value))
        elif self.json_value is not None:
            raise InvalidError("a search for a value in JSON names its path")
        since_ms, until_ms = self.since_ms, self.until_ms
        if since_ms is not None:
            checks.append(lambda message: message.timestamp_ms is not None and message.timestamp_ms >= since_ms)
        if until_ms is not None:
            checks.append(lambda message: message.timestamp_ms is not None and message.timestamp_ms < until_ms)
        return lambda message: all(check(message) for check in checks)

    def _has_header(self, message: Received) -> bool:
        wanted = None if self.header_value is None else self.header_value.encode("utf-8", "surrogatepass")
        return any(name == self.header and (wanted is None or value == wanted) for name, value in message.headers)

    def _has_json(self, path: JsonPath, value: bytes | None) -> bool:
        try:
            found = json.loads(value or b"")
        except (ValueError, RecursionError):
            return False
        try:
            return any(self.json_value is None or _is_spelled(each, self.json_value) for each in path.find(found))
        except RecursionError:
            return False


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """How far a search is, with the hits behind those that are known already."""

    id: str
    topic: str
    state: str
    """`running`, `done`, `full` (enough hits), `bounded` (time or records are used up), `cancelled` or `failed`."""
    scanned: int
    total: int
    """Offsets to look at; some of them are no messages."""
    hits: int
    problem: str
    """Why it failed, or why it could not go on in the lake."""
    rows: tuple[MessageRow, ...]
    archived: int = 0
    """Of `total`, how many are looked for in the lake, after the log."""


@dataclass(slots=True)
class _Search:
    id: str
    user: str
    cluster: str
    topic: str
    total: int
    archived: int = 0
    state: str = "running"
    scanned: int = 0
    problem: str = ""
    rows: list[MessageRow] = field(default_factory=list)
    ended_ms: float | None = None
    is_cancelled: threading.Event = field(default_factory=threading.Event)


class Searches:
    """All searches of the console."""

    def __init__(self, settings: MessageSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._searches: dict[str, _Search] = {}

    def start(
        self,
        link: ClusterLink,
        user: str,
        topic: str,
        ranges: Mapping[int, tuple[int, int]],
        query: SearchQuery,
        sight_of: SightOf,
        archive: ArchivedMessages | None = None,
        problem: str = "",
    ) -> str:
        """Starts a search, which goes on in the archive if there is one; gives its id. BusyError if too many run."""
        self._forget()
        matches = query.matcher()
        running = [each for each in self._searches.values() if each.state == "running"]
        own = sum(each.user == user for each in running)
        if own >= self._settings.searches_per_user or len(running) >= self._settings.searches:
            raise BusyError(f"{own} of your searches run, {len(running)} in all; cancel one first. Nothing was started")
        archived = 0 if archive is None else archive.total
        total = sum(max(0, end - start) for start, end in ranges.values()) + archived
        search = _Search(secrets.token_urlsafe(12), user, link.name, topic, total, archived, problem=problem)
        self._searches[search.id] = search

        def work() -> None:
            self._run(search, link, ranges, matches, sight_of, archive)

        threading.Thread(target=work, name=f"search {search.id}", daemon=True).start()
        return search.id

    def progress(self, id: str, user: str, after: int) -> SearchProgress:
        """MissingError for one that is not this user's, or is forgotten."""
        search = self._own(id, user)
        rows = tuple(search.rows[after : after + self._settings.page_size])
        return SearchProgress(
            search.id,
            search.topic,
            search.state,
            search.scanned,
            search.total,
            len(search.rows),
            search.problem,
            rows,
            search.archived,
        )

    def cancel(self, id: str, user: str) -> None:
        self._own(id, user).is_cancelled.set()

    def close(self) -> None:
        for search in self._searches.values():
            search.is_cancelled.set()

    def _own(self, id: str, user: str) -> _Search:
        found = self._searches.get(id)
        if found is None or found.user != user:
            raise MissingError("there is no such search; it may have ended a while ago")
        return found

    def _run(
        self,
        search: _Search,
        link: ClusterLink,
        ranges: Mapping[int, tuple[int, int]],
        matches: Callable[[Received], bool],
        sight_of: SightOf,
        archive: ArchivedMessages | None,
    ) -> None:
        until_ms = self._clock.monotonic_ms() + self._settings.search_ms

        def is_over() -> bool:
            return search.is_cancelled.is_set() or self._clock.monotonic_ms() >= until_ms

        def count(records: int) -> None:
            search.scanned += records

        def found() -> Generator[tuple[Received, bool], None, None]:
            timeout_s = self._settings.read_timeout_ms / 1000
            messages = scan(link, search.topic, ranges, timeout_s=timeout_s, is_stopped=is_over, on_progress=count)
            with closing(messages):
                yield from ((message, False) for message in messages)
            if archive is not None and not is_over():
                with closing(archive.scan(is_stopped=is_over, on_progress=count)) as stored:
                    yield from ((message, True) for message in stored)

        state = "done"
        try:
            with closing(found()) as messages:
                for message, is_archived in messages:
                    sight = sight_of(message)
                    if not sight.mask.hides_messages and matches(
                        masked_message(sight.schemas.decoded(message).message, sight.mask)
                    ):
                        row = message_row(
                            message, sight.mask, self._settings.shown_bytes, sight.schemas, is_archived=is_archived
                        )
                        search.rows.append(row)
                        if len(search.rows) >= self._settings.search_hits:
                            state = "full"
                            break
                    if search.scanned >= self._settings.search_records:
                        state = "bounded"
                        break
            if search.is_cancelled.is_set():
                state = "cancelled"
            elif state == "done" and is_over():
                state = "bounded"
        except AdminError as error:
            search.problem, state = error.message, "failed"
        except PenstockError as error:
            search.problem, state = str(error), "failed"
        except Exception:
            logger.exception("a search failed")
            search.problem, state = "the search failed; the console's log says why", "failed"
        search.ended_ms = self._clock.monotonic_ms()
        search.state = state

    def _forget(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for id, search in list(self._searches.items()):
            if search.ended_ms is not None and now_ms - search.ended_ms > _KEPT_MS:
                del self._searches[id]
        ended = [id for id, search in self._searches.items() if search.ended_ms is not None]
        for id in ended[: max(0, len(ended) - 2 * self._settings.searches)]:
            del self._searches[id]


def _is_spelled(value: object, text: str) -> bool:
    """Whether a value is what a person typed: the text itself, or its JSON."""
    if isinstance(value, str):
        return value == text
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return type(parsed) is type(value) and parsed == value
