"""One load in a process of its own: the job as JSON on the command line, figures as JSON on standard output."""

from __future__ import annotations

import json
import sys
from typing import Any

from confluent_kafka import KafkaException

from bench.client import alone, ceiling, commits, consumers, greedy, members, pulse, stream, transactions
from bench.client.driver import DriverError, Load
from bench.client.job import Job

TASKS = {
    "produce": stream.produce,
    "single": stream.single,
    "alone": alone.alone,
    "bare_store": ceiling.store,
    "bare_produce": ceiling.produce,
    "bare_fetch": ceiling.fetch,
    "consume": stream.consume,
    "pace": stream.pace,
    "listen": stream.listen,
    "pulse": pulse.pulse,
    "greedy": greedy.greedy,
    "members": members.rebalance,
    "consumers": consumers.rebalance,
    "commit": commits.one_by_one,
    "commits": commits.side_by_side,
    "transactions": transactions.transact,
    "transform": transactions.transform,
}


def main() -> None:
    fields: dict[str, Any] = json.loads(sys.argv[1])
    several = {name: tuple(fields[name]) for name in ("topics", "server_pids")}
    job = Job(**{**fields, "load": Load(**fields["load"]), **several})
    try:
        figures = TASKS[job.task](job)
    except (DriverError, KafkaException, OSError) as error:
        sys.exit(f"{job.task}: {error}")
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
