"""Writers of all kinds append to one partition in a database, while brokers and the database are killed.

    python -m tests.sql_proof --minutes 5 --seed 7 --database mysql

Most writers are idempotent producers (acks=all) of two brokers, between which the leadership moves. The others write
into the tables by hand: they count the ids up, insert, wait for a moment, and commit or roll back. Readers look all the
while, through the brokers and with plain SQL. Nothing may be skipped, doubled or out of order for any of them, nothing
that was rolled back may be seen, and all that was acknowledged must be there. What happened is printed; the exit status
is 1 if a count is not zero that should be. The same seed deals the same faults.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.fault_program import end, folder_of, parser_of

from .run import DATABASES, run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("python -m tests.sql_proof", __doc__, lease_s=3, overlap=2)
    parser.add_argument("--database", choices=DATABASES, default="mysql")
    parser.add_argument("--brokers", type=int, default=2, choices=(2, 3))
    parser.add_argument("--producers", type=int, default=24, help="writers that use a broker")
    parser.add_argument("--direct", type=int, default=8, help="writers that use the tables")
    given = parser.parse_args(arguments)
    folder = folder_of(given)
    report = run(
        folder,
        given.minutes * 60,
        given.seed,
        database=given.database,
        brokers=given.brokers,
        producers=given.producers,
        direct=given.direct,
        lease_s=given.lease,
        only=given.only,
        overlap=given.overlap,
        says=True,
    )
    return end(report, folder, given)


if __name__ == "__main__":
    sys.exit(main())
