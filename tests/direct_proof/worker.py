"""A process that is killed: `python worker.py produce ADDRESS WRITER LEDGER SEED` or `… consume ADDRESS NAME`.

A producer writes what it was told into its ledger, a line for each value: the value, and where it is (nothing for one
that is delayed). A consumer writes each message into a table of the application, in the transaction of the message.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import penstock
from direct_proof.verdict import GROUP, TOPIC, delayed_value_of, value_of
from penstock import direct
from penstock.brokerless import consumer

SESSION_MS, HEARTBEAT_MS = 3_000, 500
_TIMEOUT = "5s"
Note = Callable[[int, "penstock.Receipt | penstock.SendError"], None]
_DUE_HEADER = "proof-due-ms"


def produce(address: str, writer: str, ledger: str, seed: str) -> None:
    chance = random.Random(f"{seed} {writer}")
    told = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def note(value: int, result: penstock.Receipt | penstock.SendError) -> None:
        if isinstance(result, penstock.Receipt):
            place = "" if result.offset is None else f" {result.partition} {result.offset}"
            # One call for one line: what is written is there, whatever happens to the process.
            os.write(told, f"{value}{place}\n".encode())

    with direct.Client(address, timeout=_TIMEOUT) as client:
        for number in count():
            if stop.is_set():
                break
            value = value_of(int(writer), number)
            client.send_soon(TOPIC, str(value), key=writer, on_result=partial(note, value))
            if chance.random() < 0.05:
                _send_later(client, chance, delayed_value_of(int(writer), number), note)
            if chance.random() < 0.4:
                stop.wait(chance.uniform(0.1, 0.8))
        client.flush()


def _send_later(client: direct.Client, chance: random.Random, value: int, note: Note) -> None:
    delay_ms = chance.randrange(100, 3_000)
    due_ms = time.time_ns() // 1_000_000 + delay_ms
    client.send_soon(
        TOPIC,
        str(value),
        key=f"later {value}",
        headers={_DUE_HEADER: str(due_ms)},
        deliver_at=due_ms,
        on_result=partial(note, value),
    )


def consume(address: str, name: str) -> None:
    # Bounded, so that one who hangs is missed soon.
    vars(consumer).update(SESSION_MS=SESSION_MS, HEARTBEAT_MS=HEARTBEAT_MS)
    mark = "?" if address.startswith("sqlite") else "%s"
    insert = f"INSERT INTO handled (value, consumer, late_ms) VALUES ({mark}, {mark}, {mark})"
    client = direct.Client(address, timeout=_TIMEOUT)

    @client.subscribe_in_transaction(
        TOPIC,
        group=GROUP,
        ordered=True,
        concurrency=4,
        retries=penstock.Retries(first="100ms", factor=1.5, cap="2s", attempts=1000),
    )
    def handle(message: penstock.Message, transaction: direct.HandlerTransaction) -> None:
        due_ms = message.header(_DUE_HEADER)
        late_ms = 0 if due_ms is None else time.time_ns() // 1_000_000 - int(due_ms)
        with transaction.connection.cursor() as cursor:
            cursor.execute(insert, (int(message.value or b""), name, late_ms))

    with client:
        client.run()


def main(args: Sequence[str]) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    work, *rest = args
    if work == "produce":
        produce(*rest)
    else:
        consume(*rest)


if __name__ == "__main__":
    main(sys.argv[1:])
