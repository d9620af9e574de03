"""Members of a consumer group without a client library: how long the broker itself takes to rebalance them.

Nobody waits for a heartbeat interval here: whoever has to hear of a rebalance asks as soon as there can be one, and
again a few milliseconds later while it has not heard. What is left is the coordinator's work and the way
there and back.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from bench.client.classic_member import ClassicGroup
from bench.client.consumer_member import ConsumerGroup
from bench.client.driver import DriverError
from bench.client.job import Job, Window
from bench.client.lines import Exchange, Line
from penstock.protocol import apis
from penstock.protocol.messages.describe_groups import DescribeGroupsRequest
from penstock.protocol.messages.find_coordinator import FindCoordinatorRequest

EVENTS = ("start_s", "join_s", "leave_s")
_NOT_YET = (14, 15, 16)  # loading, not available, not here


class Group(Protocol):
    """A group of members, of one protocol or the other."""

    def join(self, count: int) -> None:
        """New members join, all at once."""
        ...

    def leave(self) -> None:
        """One member leaves."""
        ...

    def settled(self) -> bool:
        """Whether every member has its assignment, and together they have everything."""
        ...

    def dissolve(self) -> None:
        """Everybody leaves."""
        ...


_KINDS: dict[str, Callable[[Exchange, str, Sequence[str], int, int], Group]] = {
    "classic": ClassicGroup,
    "consumer": ConsumerGroup,
}


def rebalance(job: Job) -> dict[str, float]:
    """First start of the whole group, one more member, one less: seconds each, the median of `count` groups.

    CPU time is told in hundredths of a second, too coarse for a median: it is averaged.
    """
    found = [_rebalanced(job, f"{job.group}-{number}") for number in range(job.count)]
    average = {name: statistics.mean(figures[name] for figures in found) for name in found[0]}
    return average | {name: statistics.median(figures[name] for figures in found) for name in EVENTS}


def _rebalanced(job: Job, name: str) -> dict[str, float]:
    exchange = Exchange(job.address)
    await_coordinator(exchange, name)
    group = _KINDS[job.group_protocol](exchange, name, job.topics, job.partitions, job.members + 1)
    whole = Window(job.server_pids)
    figures = {
        "start_s": _timed(lambda: group.join(job.members), exchange, group, job.limit_s),
        "join_s": _timed(lambda: group.join(1), exchange, group, job.limit_s),
        "leave_s": _timed(group.leave, exchange, group, job.limit_s),
    }
    figures |= whole.close(3)
    group.dissolve()
    exchange.close_all()
    return figures


def _timed(trigger: Callable[[], None], exchange: Exchange, group: Group, limit_s: float) -> float:
    begin = time.monotonic()
    trigger()
    exchange.run_until(group.settled, limit_s)
    return time.monotonic() - begin


def await_coordinator(exchange: Exchange, group: str, limit_s: float = 30) -> None:
    """Have the internal topic made and the group's part of it loaded, which is no part of a rebalance."""
    line = exchange.open()
    deadline = time.monotonic() + limit_s
    while code := _refusal(exchange, line, group):
        if code not in _NOT_YET or time.monotonic() > deadline:
            raise DriverError(f"the coordinator of {group} answered {code}")
        time.sleep(0.02)
    exchange.close([line])


def _refusal(exchange: Exchange, line: Line, group: str) -> int:
    found = exchange.ask(line, apis.FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=(group,)))
    code: int = found.coordinators[0].error_code
    if not code:
        code = exchange.ask(line, apis.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=(group,))).groups[0].error_code
    return code
