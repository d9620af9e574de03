"""Receive only messages with matching tags: the broker does not even send the others."""

import os
import threading

import penstock

client = penstock.Client(os.environ.get("BOOTSTRAP", "localhost:9092"))
seen = threading.Semaphore(0)

client.send("shop", "order 1", key="a", tags=["checkout", "eu"])
client.send("shop", "order 2", key="a", tags=["checkout", "test"])
client.send("shop", "order 1", key="a", tags=["refund", "eu"])
client.send("shop", "cat pictures", key="a", tags=["browsing"])


@client.subscribe("shop", group="accounting", tags="(checkout or refund) and not test", from_beginning=True)
def book(message: penstock.Message) -> None:
    print(f"{message.value.decode()}: {', '.join(message.tags)}", flush=True)
    seen.release()


client.start()
for _ in range(2):
    seen.acquire()
client.close()
