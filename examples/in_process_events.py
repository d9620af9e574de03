"""Events inside one program: modules that do not know each other, and no broker. Change the address to move out."""

import os
import threading

import penstock

client = penstock.open(os.environ.get("QUEUE", "memory://"))
mailed, booked = threading.Event(), threading.Event()


@client.subscribe("order-paid", group="mail")
def mail(message: penstock.Message) -> None:
    print(f"mail: thank you for {message.value.decode()}", flush=True)
    mailed.set()


@client.subscribe("order-paid", group="books", retries=penstock.Retries(first="100ms"))
def book(message: penstock.Message) -> None:
    if message.attempt == 1:
        raise ConnectionError("the ledger is busy")
    print(f"books: {message.value.decode()} is booked, attempt {message.attempt}", flush=True)
    booked.set()


client.start()
client.send("order-paid", "order 7", key="customer-1")
mailed.wait()
booked.wait()
client.close()
