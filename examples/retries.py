"""Retry a failing handler with growing delays; after the last attempt the message becomes a dead letter."""

import os
import threading

import penstock

client = penstock.Client(os.environ.get("BOOTSTRAP", "localhost:9092"))
dead = threading.Event()


@client.subscribe(
    "mails", group="mailer", retries=penstock.Retries(first="800ms", factor=2, attempts=3), from_beginning=True
)
def deliver(message: penstock.Message) -> None:
    print(f"{message.value.decode()}, attempt {message.attempt}", flush=True)
    if message.value == b"mail to nobody":
        raise ConnectionError("no such host")
    if message.attempt == 1:
        message.retry(after="200ms", reason="greylisted")  # an explicit retry with its own delay


@client.subscribe("mailer.dead", group="postmaster", from_beginning=True)
def look(message: penstock.Message) -> None:
    print(f"dead letter: {message.value.decode()}, because of {message.error}", flush=True)
    dead.set()


client.send("mails", "mail to nobody", key="a")
client.send("mails", "mail to alice", key="b")
client.start()
dead.wait()
client.close()
