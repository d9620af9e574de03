"""Clients without a broker use one database, and are killed at random while the database is restarted.

    python -m tests.direct_proof --minutes 5 --seed 7
    python -m tests.direct_proof --minutes 5 --seed 7 --brokers 2

Producers send with keys, a few messages for later; each is a process. Consumers of one group handle each message in a
transaction, in which they write it into a table of the application; each is a process, too. With `--brokers` brokers
serve the same partition, with producers and a consumer of Kafka's protocol. Nothing that was acknowledged may be lost,
nothing doubled, nothing out of order by key, neither in the tables of the topic nor in what was handled, and nothing
delayed may be early. What happened is printed; the exit status is 1 if a count is not zero that should be. The same
seed deals the same faults.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sql_proof.run import DATABASES
from support.fault_program import end, folder_of, parser_of

from .run import run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("python -m tests.direct_proof", __doc__, lease_s=3, overlap=2)
    parser.add_argument("--database", choices=DATABASES, default="mysql")
    parser.add_argument("--brokers", type=int, default=0, choices=(0, 2, 3), help="beside the clients")
    parser.add_argument("--kafka-producers", type=int, default=4, help="of the brokers")
    parser.add_argument("--producers", type=int, default=8, help="without a broker")
    parser.add_argument("--consumers", type=int, default=4, help="without a broker")
    given = parser.parse_args(arguments)
    folder = folder_of(given)
    report = run(
        folder,
        given.minutes * 60,
        given.seed,
        database=given.database,
        brokers=given.brokers,
        kafka_producers=given.kafka_producers,
        producers=given.producers,
        consumers=given.consumers,
        lease_s=given.lease,
        only=given.only,
        overlap=given.overlap,
        says=True,
    )
    return end(report, folder, given)


if __name__ == "__main__":
    sys.exit(main())
