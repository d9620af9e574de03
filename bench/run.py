"""Runs a plan: every round of a case visits each target in turn, so that noise hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from confluent_kafka import KafkaException

from bench.client.driver import DriverError, NotReady
from bench.measure import Case, Results
from bench.plan import Plan
from bench.servers.process import ServerError
from bench.target import Target
from bench.warmup import warm_up

FAILURES = (DriverError, ServerError, KafkaException, NotReady, OSError)


def run_plan(
    plan: Plan,
    targets: Sequence[Target],
    results: Results,
    tell: Callable[[str], None],
    step: Callable[[], None],
) -> None:
    """Fill `results`; a case that fails on a target is noted and not asked again there."""
    for target in targets:
        produced = warm_up(target, plan.warm_up_s, tell)
        if produced:
            results.notes.append(f"{target.name} was warmed up with {produced:,} MB before measuring.")
        for case in plan.rehearsals:
            tell(f"warming up {target.name}: {case.title}")
            _one(case, target, Results())
    for case in plan.cases:
        failed: set[str] = set()
        for number in range(case.rounds):
            for target in targets:
                tell(f"{case.title}: {target.name}, round {number + 1} of {case.rounds}")
                if target.name not in failed and not _one(case, target, results):
                    failed.add(target.name)
                step()


def _one(case: Case, target: Target, results: Results) -> bool:
    try:
        results.add(case, target.name, case.run(target))
    except FAILURES as error:
        results.failures.append(f"{case.title}: {target.name} failed: {one_line(error)}")
        return False
    return True


def one_line(error: BaseException) -> str:
    """An error's text without the line breaks of a server's log."""
    return " ".join(str(error).split())


def steps(plan: Plan, targets: int) -> int:
    """How many calls of `step` a run makes."""
    return sum(case.rounds for case in plan.cases) * targets
