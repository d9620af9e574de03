"""A cluster is hurt in all ways again and again while producers, groups and transactions are at work on it.

    python -m tests.chaos --minutes 5 --seed 7 --brokers 5

Faults overlap. Afterwards every acknowledged message must be found once and in order, the groups must have seen all of
it, the output of the transactions must be their input, readers of followers must have read what leaders have, no broker
may have told an end below what was acknowledged or told before, and all replicas must be in sync. What happened is
printed; the exit status is 1 if a count is not zero that should be. The same seed deals the same faults to the same
brokers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.fault_program import end, folder_of, parser_of

from .run import run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("python -m tests.chaos", __doc__, lease_s=4, overlap=3)
    parser.add_argument("--brokers", type=int, default=3, choices=(3, 4, 5))
    parser.add_argument("--zookeepers", type=int, default=3, choices=(1, 3))
    parser.add_argument("--secured", action="store_true", help="brokers with TLS, SASL and ACLs")
    given = parser.parse_args(arguments)
    folder = folder_of(given)
    report = run(
        folder,
        given.minutes * 60,
        given.seed,
        lease_s=given.lease,
        brokers=given.brokers,
        zookeepers=given.zookeepers,
        only=given.only,
        overlap=given.overlap,
        is_secured=given.secured,
        says=True,
    )
    return end(report, folder, given)


if __name__ == "__main__":
    sys.exit(main())
