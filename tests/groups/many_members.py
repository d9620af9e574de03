"""A long run: many members come and go, crash and return for a while, and the broker with them.

    python -m tests.groups.many_members --members 50 --minutes 3 --protocol both

What happens is drawn from a seed that is printed. At the end everything that was acknowledged must have been seen, in
order and without gaps, and nothing committed that was not done.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.broker_process import BrokerProcess
from support.crew import SETTINGS, Crew

KINDS = ("confluent", "confluent", "confluent", "kafka-python", "aiokafka")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--protocol", choices=("classic", "new", "both"), default="classic")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    given = parser.parse_args()
    print(f"{given.members} members for {given.minutes:g} minutes, seed {given.seed}")
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(Path(folder) / "broker", SETTINGS).start()
        try:
            run(broker, Path(folder), given, random.Random(given.seed))
        finally:
            broker.kill()


def run(broker: BrokerProcess, folder: Path, given: argparse.Namespace, chance: random.Random) -> None:
    members, seconds = given.members, given.minutes * 60
    names = [f"m{number}" for number in range(members)]
    running: set[str] = set()
    with Crew(broker, "long", folder, partitions=2 * members) as crew:

        def start(name: str) -> None:
            # A name keeps to one client: a diary is read as that of one member.
            client = KINDS[int(name[1:]) % len(KINDS)]
            is_new = given.protocol == "new" or (given.protocol == "both" and chance.random() < 0.5)
            if is_new and client == "confluent":
                crew.start(name, protocol="consumer", assignor="uniform")
            elif given.protocol == "new":
                crew.start(name, protocol="consumer", assignor="range")
            else:
                crew.start(name, client, session_ms=6000)
            running.add(name)

        crew.produce()
        for name in names:
            start(name)
        crew.wait_for_members(*names, patience_s=180)
        print("all members are in")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            what = chance.choices(["stop", "kill", "start", "restart", "crash", "work"], [4, 4, 8, 1, 1, 4])[0]
            if what == "start" and len(running) < members:
                start(chance.choice(sorted(set(names) - running)))
            elif what in ("stop", "kill") and len(running) > 2:
                name = chance.choice(sorted(running))
                running.remove(name)
                crew.stop(name) if what == "stop" else crew.kill(name)
            elif what == "restart":
                broker.restart()
            elif what == "crash":
                broker.kill()
                broker.start()
            else:
                crew.wait_for_more(50, patience_s=120)
        print(f"{len(running)} members are left")
        crew.wait_for_members(*running, patience_s=180)
        crew.finish(patience_s=180)
        history = crew.history()
        print(f"{len(history.produced)} messages, {len(history.events)} events, nothing lost, in order")


if __name__ == "__main__":
    main()
