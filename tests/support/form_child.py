"""A process that uses a queue of any form, until it is killed: `python form_child.py ADDRESS WORK ARGS`.

- `send TOPIC NAME`: sends NAME-0, NAME-1 and so on, and prints the number of each that was acknowledged;
- `handle TOPIC GROUP`: prints what it handles;
- `hold TOPIC GROUP`: prints what it was given, and never acknowledges it;
- `nap TOPIC GROUP`: prints what it was given, and takes half a second for each.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import penstock
from penstock.brokerless import consumer

SESSION_MS = 1_500


def send(client: penstock.Client, topic: str, name: str) -> None:
    number = 0
    while True:
        client.send(topic, f"{name}-{number}".encode(), key=name)
        print(number, flush=True)
        number += 1


def handle(client: penstock.Client, topic: str, group: str) -> None:
    def printed(message: penstock.Message) -> None:
        print((message.value or b"").decode(), flush=True)

    client.subscribe(topic, printed, group=group)
    client.run()


def hold(client: penstock.Client, topic: str, group: str) -> None:
    def held(message: penstock.Message) -> None:
        print((message.value or b"").decode(), flush=True)
        threading.Event().wait()

    client.subscribe(topic, held, group=group)
    client.run()


def nap(client: penstock.Client, topic: str, group: str) -> None:
    def napping(message: penstock.Message) -> None:
        print((message.value or b"").decode(), flush=True)
        threading.Event().wait(0.5)

    client.subscribe(topic, napping, group=group)
    client.run()


def main(args: Sequence[str]) -> None:
    address, work, *rest = args
    vars(consumer).update(SESSION_MS=SESSION_MS, HEARTBEAT_MS=200)
    with penstock.open(address) as client:
        {"send": send, "handle": handle, "hold": hold, "nap": nap}[work](client, *rest)


if __name__ == "__main__":
    main(sys.argv[1:])
