"""History of a cluster's numbers: recent points in memory for live charts, older ones in the database for days.

Series are `in` (messages a second), `lag` (of all groups), `groups`, `brokers` and `offline` (how many groups, brokers
and partitions without a leader), `size` (bytes on the brokers' disks), `topic.NAME` (messages a second) and
`group.NAME` (lag). The database has two tiers: fine ones for hours, coarse ones for weeks. A value is written only if
it differs from the one before, or if that is old: quiet topics cost nothing.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.console.polling.snapshot import ClusterSnapshot
from penstock.console.settings import SampleSettings
from penstock.console.state.tables import SAMPLES
from penstock.sql.database import Connection, Database

INCOMING = "in"
LAG = "lag"
FINE, COARSE = 0, 1
_KEY = ("series", "tier", "at")
_COLUMNS = (*_KEY, "value")
_SCALE = 1000
"""Values are whole numbers of thousandths."""
_LARGEST = 2**63 - 1
_MAX_POINTS = 2_000
_REPEAT_TIMES = 20
"""An unchanged value is written again after so many intervals."""


@dataclass(frozen=True, slots=True)
class SampleSeries:
    """Points in the order of time; both lists have the same length."""

    name: str
    times_ms: tuple[int, ...]
    values: tuple[float, ...]


class _Recent:
    """The last points of one series."""

    def __init__(self, most: int) -> None:
        self.times: deque[int] = deque(maxlen=most)
        self.values: deque[float] = deque(maxlen=most)
        self.written: dict[int, tuple[int, int]] = {}
        """By tier: when, and what."""


class Samples:
    """The history of one cluster."""

    def __init__(self, cluster: str, database: Database, settings: SampleSettings, clock: Clock) -> None:
        self._cluster = cluster
        self._database = database
        self._settings = settings
        self._clock = clock
        self._series: OrderedDict[str, _Recent] = OrderedDict()
        self._next_ms = {FINE: 0, COARSE: 0}

    async def take(self, snapshot: ClusterSnapshot) -> None:
        """After each round of the poller."""
        if not snapshot.is_reachable:
            return
        now_ms = snapshot.at_ms
        current = self._values(snapshot)
        for name, value in current.items():
            recent = self._series.setdefault(name, _Recent(self._settings.recent_points))
            recent.times.append(now_ms)
            recent.values.append(value)
        for name in [name for name in self._series if name not in current]:
            del self._series[name]
        intervals = {FINE: self._settings.fine_every_ms, COARSE: self._settings.coarse_every_ms}
        for tier, every_ms in intervals.items():
            if now_ms >= self._next_ms[tier]:
                self._next_ms[tier] = now_ms + every_ms
                await self._write(tier, now_ms, every_ms, current)

    def recent(self, name: str) -> SampleSeries:
        """The last minutes, from memory."""
        found = self._series.get(name)
        if found is None:
            return SampleSeries(name, (), ())
        return SampleSeries(name, tuple(found.times), tuple(found.values))

    async def history(self, name: str, from_ms: int, until_ms: int) -> SampleSeries:
        """From the database: fine if it is kept long enough for it, else coarse."""
        is_fine = from_ms >= self._clock.now_ms() - self._settings.fine_keep_ms
        tier, series = (FINE if is_fine else COARSE), series_key(self._cluster, name)
        rows = await self._database.run(
            lambda connection: connection.execute(
                f"SELECT at, value FROM {SAMPLES} WHERE series = ? AND tier = ? AND at >= ? AND at < ?"
                f" ORDER BY at DESC LIMIT {_MAX_POINTS}",
                series,
                tier,
                from_ms,
                until_ms,
            ),
            is_read_only=True,
        )
        rows.reverse()
        return SampleSeries(name, tuple(int(row[0]) for row in rows), tuple(row[1] / _SCALE for row in rows))

    def _values(self, snapshot: ClusterSnapshot) -> dict[str, float]:
        found: dict[str, float] = {
            INCOMING: snapshot.rate_per_s or 0.0,
            LAG: float(snapshot.lag),
            "groups": float(len(snapshot.groups)),
            "brokers": float(len(snapshot.brokers)),
            "offline": float(sum(topic.offline for topic in snapshot.topics.values())),
            "size": float(sum(disk.used_bytes for broker in snapshot.brokers for disk in broker.disks)),
        }
        topics = [topic for topic in snapshot.topics.values() if not topic.is_internal]
        groups = [group for group in snapshot.groups.values() if group.lag is not None]
        topics.sort(key=lambda topic: -(topic.rate_per_s or 0))
        groups.sort(key=lambda group: -(group.lag or 0))
        half = max(1, (self._settings.max_series - len(found)) // 2)
        found |= {f"topic.{topic.name}": topic.rate_per_s or 0.0 for topic in topics[:half]}
        found |= {f"group.{group.name}": float(group.lag or 0) for group in groups[:half]}
        return found

    async def _write(self, tier: int, now_ms: int, every_ms: int, current: dict[str, float]) -> None:
        rows = array("q")
        for name, value in current.items():
            scaled = min(int(value * _SCALE), _LARGEST)
            written = self._series[name].written
            at_ms, before = written.get(tier, (0, -1))
            if scaled != before or now_ms - at_ms >= _REPEAT_TIMES * every_ms:
                written[tier] = (now_ms, scaled)
                rows.extend((series_key(self._cluster, name), tier, now_ms, scaled))
        if rows:
            table = [tuple(rows[at : at + 4]) for at in range(0, len(rows), 4)]
            await self._database.run(lambda connection: connection.upsert(SAMPLES, _KEY, _COLUMNS, table))


async def remove_old_samples(database: Database, settings: SampleSettings, now_ms: int) -> int:
    """For the cleaning job; gives how many were removed."""

    def remove(connection: Connection) -> int:
        statement = f"DELETE FROM {SAMPLES} WHERE tier = ? AND at < ?"
        fine = connection.change(statement, FINE, now_ms - settings.fine_keep_ms)
        return fine + connection.change(statement, COARSE, now_ms - settings.coarse_keep_ms)

    return await database.run(remove)


def series_key(cluster: str, name: str) -> int:
    """A number for a series; two of them are the same once in billions of billions."""
    return int.from_bytes(hashlib.sha256(f"{cluster}\n{name}".encode()).digest()[:8], "big") >> 1
