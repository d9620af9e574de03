"""A program that sends numbers with a spill folder, until it is killed or has sent them all; run by tests.

It prints each number once that was answered for, and says by which word: `sent` or `spilled`. With `drain` it sends
nothing, and ends when the folder is empty.
"""

from __future__ import annotations

import sys

import penstock


def main(kafka: str, topic: str, folder: str, first: str, count: str) -> None:
    sending = penstock.Sending(tries=1, try_timeout="500ms", when_away=penstock.Spill(folder))
    client = penstock.Client(kafka, sending=sending)
    for number in range(int(first), int(first) + int(count)):
        receipt = client.send(topic, str(number), partition=0)
        print("spilled" if receipt.is_spilled else "sent", number, flush=True)
    print("waiting", flush=True)
    assert client.flush(60)
    print("empty", client.counters.sent, flush=True)
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
