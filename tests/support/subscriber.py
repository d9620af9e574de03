"""A subscription as a program that can be killed. SIGTERM makes it leave.

A line of its diary is an event: `begun`, `handling` before and `handled` after what a handler does, with the message's
value and attempt, and `dying` when it kills itself where it was told to.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import penstock
from support.group_member import Diary

FAILING = b"fails"
"""A message whose value begins so fails the first time."""


class Death(penstock.Hooks):
    """Kills the process at a point that no handler sees."""

    def __init__(self, point: str, diary: Diary) -> None:
        self._point = point
        self._diary = diary

    def retried(self, message: penstock.Message, error: str, after_ms: int) -> None:
        self._die_at("retried")

    def handled(self, message: penstock.Message, seconds: float) -> None:
        self._die_at("handled")

    def _die_at(self, point: str) -> None:
        if self._point == point:
            self._diary.write("dying")
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "topic", "group", "diary"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--instance", default="")
    parser.add_argument("--die", default="")
    parser.add_argument("--delivery", default="at-least-once")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--target", default="")
    parser.add_argument("--first", default="100ms")
    parser.add_argument("--deadline", default="5m")
    parser.add_argument("--sql", default="")
    parser.add_argument("--redis", default="")
    parser.add_argument("--work-s", type=float, default=0.0)
    given = parser.parse_args()
    diary = Diary(given.diary)
    settings: dict[str, Any] = {
        "heartbeat.interval.ms": 200,
        "session.timeout.ms": 1500,
        "reconnect.backoff.max.ms": 200,
    }
    if given.instance:
        settings["group.instance.id"] = given.instance
    store = penstock.SqlStore(given.sql) if given.sql else penstock.RedisStore(given.redis) if given.redis else None
    client = penstock.Client(given.bootstrap, settings=settings, hooks=[Death(given.die, diary)])
    waiting = threading.Event()

    def handle(message: penstock.Message) -> None:
        value = message.value or b""
        diary.write("handling", value=value.decode(), attempt=message.attempt)
        if value.startswith(FAILING) and message.attempt == 1:
            raise ValueError("the first time it fails")
        waiting.wait(given.work_s)
        if given.target:
            message.transaction.send(given.target, value, key=message.key)
        diary.write("handled", value=value.decode(), attempt=message.attempt)
        if given.die == "handling":
            diary.write("dying")
            os.kill(os.getpid(), signal.SIGKILL)

    client.subscribe(
        given.topic,
        handle,
        group=given.group,
        concurrency=given.concurrency,
        retries=penstock.Retries(first=given.first, attempts=5, jitter=0),
        deadline=given.deadline,
        delivery=given.delivery,
        dedup=None if store is None else penstock.Dedup(store),
        from_beginning=True,
    )
    diary.write("begun", pid=os.getpid())
    client.run()
    client.close()


if __name__ == "__main__":
    main()
