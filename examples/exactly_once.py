"""Read and send in one transaction: a crash or a failure in between leaves nothing half done."""

import os
import threading

import penstock

client = penstock.Client(os.environ.get("BOOTSTRAP", "localhost:9092"))
booked = threading.Semaphore(0)


@client.subscribe(
    "transfers",
    group="ledger",
    delivery="exactly-once",
    retries=penstock.Retries(first="200ms"),
    from_beginning=True,
)
def transfer(message: penstock.Message) -> None:
    giver, taker, amount = message.value.decode().split()
    message.transaction.send("bookings", f"{giver} -{amount}", key="a")
    if message.attempt == 1:
        raise ConnectionError("the first half was sent, the second was not")
    message.transaction.send("bookings", f"{taker} +{amount}", key="a")


@client.subscribe("bookings", group="reader", from_beginning=True)
def read(message: penstock.Message) -> None:
    print(message.value.decode(), flush=True)
    booked.release()


with client.transaction() as both:  # readers see both messages or none
    both.send("transfers", "alice bob 10")
    both.send("bookings", "begin", key="a")
client.start()
for _ in range(3):
    booked.acquire()
client.close()
