"""Rounds of both servers in turn: whatever disturbs the machine for longer than a second disturbs both."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.client import wire
from bench.client.bare import Talk
from bench.client.driver import endpoint
from bench.client.talks import hold
from bench.guard.costs import Cost
from bench.servers.plain import Plain
from bench.servers.usage import cpu_s
from bench.target import Target


@dataclass(frozen=True, slots=True)
class Figure:
    """CPU time of each server, and how many times that of the plain one the broker's is. Medians of the rounds."""

    broker: float
    plain: float
    ratio: float


def measure(target: Target, plain: Plain, chosen: Sequence[Cost], rounds: int) -> dict[str, Figure]:
    """By the name of the cost."""
    found: dict[str, list[Figure]] = {cost.name: [] for cost in chosen}
    for cost in chosen:
        _prepare(target.address, cost)
    # The first round fills caches and is not counted.
    for number in range(-1, rounds):
        for cost in chosen:
            figure = _one(target, plain, cost, broker_first=number % 2 == 0)
            if number >= 0:
                found[cost.name].append(figure)
    return {name: _middle(figures) for name, figures in found.items()}


def _prepare(address: str, cost: Cost) -> None:
    """The topic, and what fetches read."""
    with wire.connected(endpoint(address)) as link:
        wire.create_topic(link, cost.topic, cost.partitions)
    if cost.is_fetch:
        hold(address, cost.produce, cost.stored * cost.partitions)


def _one(target: Target, plain: Plain, cost: Cost, *, broker_first: bool) -> Figure:
    if broker_first:
        broker = _cpu(target.address, target.pids, cost.talk, cost)
        other = _cpu(plain.address, (plain.pid,), cost.plain, cost)
    else:
        other = _cpu(plain.address, (plain.pid,), cost.plain, cost)
        broker = _cpu(target.address, target.pids, cost.talk, cost)
    return Figure(broker, other, broker / other)


def _cpu(address: str, pids: tuple[int, ...], talk: Talk, cost: Cost) -> float:
    before = cpu_s(*pids)
    hold(address, talk, cost.count)
    return (cpu_s(*pids) - before) / cost.count * cost.units_per_s


def _middle(figures: Sequence[Figure]) -> Figure:
    return Figure(
        statistics.median(figure.broker for figure in figures),
        statistics.median(figure.plain for figure in figures),
        statistics.median(figure.ratio for figure in figures),
    )
