"""What callers ask of the pipeline, and the command that does it. Pure.

Every value of a caller becomes one argument of the form --name=value: whatever it begins with, it is no option.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from penstock.console.errors import InvalidError
from penstock.console.settings import PipelineSettings

_LAST_MS = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)


class Side(Enum):
    """What a query reads."""

    BOTH = "both"
    LAKE = "lake"
    LOG = "log"


class ReportName(Enum):
    """The reports that there are."""

    VOLUME = "volume"
    LATENCY = "latency"
    LAG = "lag"
    FAILURES = "failures"
    SKEW = "skew"
    DELAYS = "delays"
    SIZES = "sizes"
    RECONCILIATION = "reconciliation"


@dataclass(frozen=True, slots=True)
class Place:
    """The cluster and the lake that a command is for."""

    bootstrap: str
    lake: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRequest:
    """A query of topics as tables."""

    sql: str
    side: Side = Side.BOTH
    since_ms: int | None = None
    until_ms: int | None = None
    limit: int = 200

    def arguments(self, place: Place, settings: PipelineSettings) -> tuple[str, ...]:
        """The text of the query comes on standard input."""
        # One more, to know whether there are more.
        limit = self.rows(settings) + 1
        found = ["sql", "-", "--restricted", "--format=json", f"--limit={limit}", f"--bootstrap={place.bootstrap}"]
        if self.side is not Side.LOG:
            found.append(f"--lake={place.lake}")
        if self.side is not Side.BOTH:
            found.append("--lake-only" if self.side is Side.LAKE else "--live-only")
        return (*found, *_window(self.since_ms, self.until_ms))

    def rows(self, settings: PipelineSettings) -> int:
        """How many are shown at most."""
        return min(self.limit, settings.result_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPair:
    """Whether what was sent to one topic arrived in another."""

    sent_in: str
    seen_in: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """Reports on topics."""

    topics: tuple[str, ...] = ()
    """Empty: all."""
    only: tuple[ReportName, ...] = ()
    """Empty: all of them."""
    since_ms: int | None = None
    until_ms: int | None = None
    reconcile: tuple[TopicPair, ...] = ()
    watch_s: int | None = None
    """Again and again, with so many seconds between two."""

    @property
    def title(self) -> str:
        names = ", ".join(each.value for each in self.only) or "all reports"
        return f"{names}: {', '.join(self.topics) or 'all topics'}"

    def arguments(self, place: Place, settings: PipelineSettings) -> tuple[str, ...]:
        if self.only == (ReportName.RECONCILIATION,) and not self.reconcile:
            raise InvalidError("reconciliation compares two topics: name a pair; nothing was started")
        found = [
            "report",
            f"--bootstrap={place.bootstrap}",
            f"--lake={place.lake}",
            f"--max-rows={settings.result_rows}",
        ]
        if self.topics:
            found.append(f"--topics={','.join(self.topics)}")
        if self.only:
            found.append(f"--only={','.join(each.value for each in self.only)}")
        found += [f"--reconcile={each.sent_in}:{each.seen_in}" for each in self.reconcile]
        if self.watch_s is not None:
            found.append(f"--watch={self.watch_s}")
        return (*found, *_window(self.since_ms, self.until_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """History of a topic to be sent to another one; everything that is given has to be so, of several values one."""

    source: str
    partitions: tuple[int, ...] = ()
    first: int | None = None
    end: int | None = None
    """Up to this offset, without it."""
    since_ms: int | None = None
    until_ms: int | None = None
    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    biz_ids: tuple[str, ...] = ()
    keeps_time: bool = False
    name: str = ""
    """A replay of another name sends again what one of this name has sent."""

    def arguments(self, place: Place, target: str, *, is_rehearsal: bool) -> tuple[str, ...]:
        found = ["replay", f"--bootstrap={place.bootstrap}", f"--lake={place.lake}", f"--to={target}", "--json"]
        found += [f"--partition={each}" for each in self.partitions]
        found += [f"--from-offset={self.first}"] if self.first is not None else []
        found += [f"--to-offset={self.end}"] if self.end is not None else []
        found += _window(self.since_ms, self.until_ms)
        found += [f"--key={each}" for each in self.keys]
        found += [f"--tag={each}" for each in self.tags]
        found += [f"--biz-id={each}" for each in self.biz_ids]
        found += [f"--id={self.name}"] if self.name else []
        found += ["--keep-time"] if self.keeps_time else []
        found += ["--dry-run"] if is_rehearsal else []
        # What is behind this is no option.
        return (*found, "--", self.source)


def _window(since_ms: int | None, until_ms: int | None) -> list[str]:
    if since_ms is not None and until_ms is not None and until_ms <= since_ms:
        raise InvalidError("the time ends before it begins; nothing was started")
    found = []
    for name, value in (("since", since_ms), ("until", until_ms)):
        if value is not None:
            if value > _LAST_MS:
                raise InvalidError("a time lies before the year 9999; nothing was started")
            found.append(f"--{name}={datetime.fromtimestamp(value / 1000, UTC).isoformat()}")
    return found
