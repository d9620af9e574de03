"""Two delay bridges are killed and paused at random while messages with random delays go through them.

    python -m tests.bridge --messages 100000 --minutes 10 --server kafka --database mariadb

Lost, repeated and early messages are counted; the exit status is 1 if there is one. Lateness is what messages were
forwarded after they were due, by the clock of this machine. `--compare` measures, without killing anything, how many
messages a second go through with batches and one row at a time, and prints the ratio.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import repeat
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bridge.kills import KillPlan, run_kills
from support.apache_kafka import apache_kafka
from support.broker_process import BrokerProcess
from support.stores import DATABASES, MariaDbProcess, PostgresProcess

_ONE_ROW_SHARE = 50
"""One row at a time is measured with so many times fewer messages."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bridge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=5, help="for how long messages are sent and bridges killed")
    parser.add_argument("--max-delay", type=float, default=60, help="seconds; delays are random up to this")
    parser.add_argument("--every", type=float, default=5, help="seconds from one kill to the next, on average")
    parser.add_argument("--server", choices=("penstock", "kafka"), default="kafka")
    parser.add_argument("--database", choices=DATABASES, default="mariadb")
    parser.add_argument("--tables", type=int, default=2, help="shards")
    parser.add_argument("--seed", type=int, default=1, help="chooses whom and when, and the delays")
    parser.add_argument("--compare", action="store_true", help="throughput beside one row at a time, without kills")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="penstock-bridge-") as name, ExitStack() as stack:
        folder = Path(name)
        kafka = stack.enter_context(_cluster(given.server, folder))
        database = stack.enter_context(_databases(given.database, folder))
        tables = ["--tables", str(given.tables)]
        if given.compare:
            batched = _rate(kafka, folder, next(database), given.messages, tables)
            single = _rate(
                kafka, folder, next(database), max(1, given.messages // _ONE_ROW_SHARE), [*tables, "--batch", "1"]
            )
            print(f"batched {batched:.0f} messages/s, one row at a time {single:.0f}/s: {batched / single:.1f} times")
            return 0
        plan = KillPlan(
            messages=given.messages,
            seconds=given.minutes * 60,
            max_delay_ms=int(given.max_delay * 1000),
            seed=given.seed,
            every_s=given.every,
            arguments=tables,
            patience_s=300 + given.max_delay,
        )
        report = run_kills(kafka, f"kills-{uuid.uuid4().hex[:8]}", folder / "bridges", next(database), plan)
        print(report)
        return int(bool(report.lost or report.repeated or report.early))


def _rate(kafka: str, folder: Path, database: str, messages: int, arguments: Sequence[str]) -> float:
    """Messages a second, all of them due at once."""
    plan = KillPlan(messages=messages, seconds=0, max_delay_ms=1, arguments=arguments, patience_s=600, is_killing=False)
    name = f"rate-{uuid.uuid4().hex[:8]}"
    report = run_kills(kafka, name, folder / name, database, plan)
    assert (report.lost, report.repeated, report.early) == (0, 0, 0), str(report)
    return messages / report.seconds


@contextmanager
def _cluster(kind: str, folder: Path) -> Iterator[str]:
    if kind == "kafka":
        with apache_kafka(folder / "kafka") as address:
            yield address
        return
    broker = BrokerProcess(folder / "broker")
    try:
        yield broker.start().kafka
    finally:
        broker.kill()


@contextmanager
def _databases(kind: str, folder: Path) -> Iterator[Iterator[str]]:
    """Gives addresses of new databases."""
    if kind == "sqlite":
        yield (f"sqlite:///{folder / uuid.uuid4().hex}.db" for _ in repeat(None))
        return
    server = MariaDbProcess(folder / "mariadb") if kind == "mariadb" else PostgresProcess()
    server.start()
    try:
        yield (server.create_database(f"bridge_{uuid.uuid4().hex[:12]}") for _ in repeat(None))
    finally:
        server.kill()
        if isinstance(server, PostgresProcess):
            server.remove()


if __name__ == "__main__":
    sys.exit(main())
