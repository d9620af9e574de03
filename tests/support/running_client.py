"""A program whose client runs until a signal comes; run by tests. It says what it does, and takes its time for it."""

from __future__ import annotations

import asyncio
import sys
import time

import penstock
import penstock.aio

WORK_S = 1.0


def threads(kafka: str, topic: str) -> None:
    with penstock.Client(kafka) as client:

        @client.subscribe(topic, group=topic, from_beginning=True)
        def handle(message: penstock.Message) -> None:
            print("begun", flush=True)
            time.sleep(WORK_S)
            print("done", flush=True)

        client.run()
        print("stopped", flush=True)


async def tasks(kafka: str, topic: str) -> None:
    async with penstock.aio.Client(kafka) as client:

        @client.subscribe(topic, group=topic, from_beginning=True)
        async def handle(message: penstock.Message) -> None:
            print("begun", flush=True)
            await asyncio.sleep(WORK_S)
            print("done", flush=True)

        await client.run()
        print("stopped", flush=True)


if __name__ == "__main__":
    kind, kafka, topic = sys.argv[1:]
    threads(kafka, topic) if kind == "threads" else asyncio.run(tasks(kafka, topic))
