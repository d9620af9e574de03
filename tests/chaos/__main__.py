"""A cluster is hurt in all ways again and again while producers, groups and transactions are at work on it.

    python -m tests.chaos --minutes 5 --seed 7 --brokers 5

Afterwards every acknowledged message must be found once and in order, the groups must have seen all of it, the output
of the transactions must be their input, and all replicas must be in sync. What happened is printed; the exit status is
1 if a count is not zero that should be. The same seed deals the same faults to the same brokers.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from .run import run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=1, help="chooses what, whom and for how long")
    parser.add_argument("--brokers", type=int, default=3, choices=(3, 4, 5))
    parser.add_argument("--zookeepers", type=int, default=3, choices=(1, 3))
    parser.add_argument("--lease", type=float, default=4, help="of the brokers, in seconds; faults last longer with it")
    parser.add_argument("--only", action="append", default=[], help="a fault, or a kind; may be repeated")
    parser.add_argument("--folder", type=Path, help="for logs and data; else only those of a run that failed are kept")
    given = parser.parse_args(arguments)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    report = run(
        folder,
        given.minutes * 60,
        given.seed,
        lease_s=given.lease,
        brokers=given.brokers,
        zookeepers=given.zookeepers,
        only=given.only,
        says=True,
    )
    print(report)
    if not report.is_good:
        print(f"the brokers' logs and data are in {folder}")
        return 1
    if given.folder is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
