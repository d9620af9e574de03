"""How long a consumer group takes until every member has its new assignment.

Two ways to ask. Bare members send prepared frames and never wait for a heartbeat interval: that is the coordinator
alone, and the goal stands there. Consumers of librdkafka with their default intervals are what an application sees.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cases.topic import fresh_name, fresh_topics
from bench.client.driver import endpoint
from bench.client.job import HEARTBEAT_MS, Job
from bench.client.launch import run
from bench.client.wire import api_keys
from bench.measure import REBALANCE_GOAL, Measure
from bench.servers.process import GroupServer
from bench.target import Target, start

PROTOCOLS = {"classic": "classic protocol", "consumer": "new protocol"}
_HEARTBEAT_API = 68  # ConsumerGroupHeartbeat: a broker without it has no groups of the new protocol
_EVENTS = {"start": "first start", "join": "one more", "leave": "one less"}
LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """A whole group starts, a member joins, a member leaves."""

    task: str  # "members": bare; "consumers": librdkafka's
    rounds: int
    members: int = 50
    topics: int = 10
    partitions: int = 100
    protocols: tuple[str, ...] = ("classic", "consumer")
    heartbeat_ms: int = HEARTBEAT_MS
    groups: int = 5  # of bare members, one after the other in a round: the figure is their median
    kind: str = "rebalance"

    @property
    def title(self) -> str:
        who = {"members": "bare members", "consumers": "consumers"}[self.task]
        return f"rebalance, {self.members} {who}, {self.topics * self.partitions:,} partitions"

    def measures(self) -> Sequence[Measure]:
        found: list[Measure] = []
        for protocol in self.protocols:
            found += _times(self.title, protocol, goal=REBALANCE_GOAL if self.task == "members" else None)
            found += [
                Measure(
                    key=f"{self.title}, {protocol}, {key}",
                    label=f"{self.title}, {PROTOCOLS[protocol]}, all three",
                    unit=unit,
                    higher_is_better=False,
                    detail=detail,
                )
                for key, unit, detail in (
                    ("cpu_ms", "CPU-ms", self.task == "consumers"),
                    ("client_cores", "client cores busy", True),
                )
            ]
        return found

    def run(self, target: Target) -> Mapping[str, float]:
        figures: dict[str, float] = {}
        with fresh_topics(target, self.topics, self.partitions) as topics:
            for protocol in _spoken(target, self.protocols):
                job = _job(target, self.task, topics, self.partitions, self.members, protocol)
                window = run(replace(job, heartbeat_ms=self.heartbeat_ms, count=self.groups))
                figures |= _figures(self.title, protocol, window)
                figures[f"{self.title}, {protocol}, client_cores"] = window["client_cpu_s"] / window["seconds"]
                if "server_cpu_s" in window:
                    figures[f"{self.title}, {protocol}, cpu_ms"] = window["server_cpu_s"] * 1000
        return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedRebalance:
    """Bare members again, on a second instance whose coordinator waits for further members as it is shipped to do."""

    folder: Path
    rounds: int
    members: int = 50
    topics: int = 10
    partitions: int = 100
    kind: str = "rebalance"

    @property
    def title(self) -> str:
        return f"rebalance, {self.members} bare members, delays as shipped"

    def measures(self) -> Sequence[Measure]:
        return [measure for protocol in PROTOCOLS for measure in _times(self.title, protocol, goal=None)]

    def run(self, target: Target) -> Mapping[str, float]:
        if not isinstance(target.server, GroupServer):
            return {}
        other, _ = start(target.server.with_group_delays(), self.folder / f"delays-{time.monotonic_ns()}")
        figures: dict[str, float] = {}
        try:
            with fresh_topics(other, self.topics, self.partitions) as topics:
                for protocol in _spoken(other, tuple(PROTOCOLS)):
                    job = _job(other, "members", topics, self.partitions, self.members, protocol)
                    run(job)  # unmeasured: the first time, code is loaded and compiled
                    figures |= _figures(self.title, protocol, run(replace(job, group=fresh_name())))
        finally:
            other.stop()
        return figures


def _spoken(target: Target, protocols: Sequence[str]) -> list[str]:
    speaks = api_keys(endpoint(target.address))
    return [protocol for protocol in protocols if protocol == "classic" or _HEARTBEAT_API in speaks]


def _job(target: Target, task: str, topics: tuple[str, ...], partitions: int, members: int, protocol: str) -> Job:
    return Job(
        task=task,
        protocol=target.protocol,
        address=target.address,
        topics=topics,
        partitions=partitions,
        members=members,
        group=fresh_name(),
        group_protocol=protocol,
        limit_s=LIMIT_S,
        count=1,
        server_pids=target.pids,
    )


def _times(title: str, protocol: str, goal: float | None) -> list[Measure]:
    return [
        Measure(
            key=f"{title}, {protocol}, {event}",
            label=f"{title}, {PROTOCOLS[protocol]}: {label}",
            unit="ms",
            higher_is_better=False,
            goal=goal,
        )
        for event, label in _EVENTS.items()
    ]


def _figures(title: str, protocol: str, window: Mapping[str, float]) -> dict[str, float]:
    return {f"{title}, {protocol}, {event}": window[f"{event}_s"] * 1000 for event in _EVENTS}
