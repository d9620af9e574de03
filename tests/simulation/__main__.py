"""Runs seeds, says what happened, and shows the end of the trace of a seed that fails.

python -m tests.simulation --seeds 1000 --from 1
python -m tests.simulation --seed 17 --trace
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from .run import Outcome, simulate

_SHOWN = 60
"""Lines of the trace of a seed that fails."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--from", type=int, default=1, dest="first", help="the first seed")
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--trace", action="store_true", help="everything that happened (with --seed)")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first seed that fails")
    options = parser.parse_args()
    if options.seed is not None:
        outcome = simulate(options.seed, is_traced=options.trace)
        print(*outcome.trace, sep="\n")
        _print_counts(outcome.counts)
        print(f"seed {outcome.seed}: {outcome.violation or f'whole after {outcome.whole_after_ms:.0f} ms'}")
        return 1 if outcome.violation else 0
    return _run_seeds(options.first, options.seeds, keep_going=options.keep_going)


def _run_seeds(first: int, seeds: int, *, keep_going: bool) -> int:
    begun = said = time.monotonic()
    totals: Counter[str] = Counter()
    failed: list[int] = []
    longest_ms = 0.0
    done = 0
    for seed in range(first, first + seeds):
        outcome = simulate(seed)
        totals.update(outcome.counts)
        longest_ms = max(longest_ms, outcome.whole_after_ms)
        done += 1
        if outcome.violation is not None:
            failed.append(seed)
            _explain(outcome)
            if not keep_going:
                break
        if time.monotonic() - said > 5.0:
            said = time.monotonic()
            print(f"{done} of {seeds} seeds, {totals['acknowledged']} records acknowledged", flush=True)
    _print_counts(totals)
    took = time.monotonic() - begun
    print(f"{done} seeds in {took:.1f} s ({took / done * 1000:.0f} ms each)")
    print(f"whole again {longest_ms:.0f} ms (simulated) after the faults at the latest")
    print(f"FAILED: {failed}" if failed else "nothing lost, nothing moved, everything whole again")
    return 1 if failed else 0


def _explain(outcome: Outcome) -> None:
    """The end of the trace, of the partition that it is about."""
    violation = outcome.violation
    assert violation is not None
    print(f"seed {outcome.seed}: {violation}")
    lines = simulate(outcome.seed, is_traced=True).trace
    if violation.partition is not None:
        mine = f" p{violation.partition} "
        lines = [line for line in lines if mine in line or " p" not in line]
    print(*lines[-_SHOWN:], sep="\n")
    print(f"replay: python -m tests.simulation --seed {outcome.seed} --trace")


def _print_counts(counts: Counter[str]) -> None:
    for name in sorted(counts):
        print(f"{counts[name]:>12,}  {name}")


sys.exit(main())
