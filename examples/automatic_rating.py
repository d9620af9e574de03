"""Rate an order automatically if the customer has not done so after 48 hours. Try `automatic_rating.py 2s`."""

import os
import sys
import threading

import penstock

PATIENCE = sys.argv[1] if len(sys.argv) > 1 else "48h"
client = penstock.Client(os.environ.get("BOOTSTRAP", "localhost:9092"))
ratings = {}
rated = threading.Event()


@client.subscribe("rate-order", group="ratings", from_beginning=True)
def rate(message: penstock.Message) -> None:
    order = message.value.decode()
    ratings.setdefault(order, "five stars, automatically")  # keeps the customer's own rating
    print(f"order {order}: {ratings[order]}", flush=True)
    if order == "2":
        rated.set()


for order in ("1", "2"):
    client.send("rate-order", order, key="customer-7", delay=PATIENCE)
    print(f"order {order} has arrived", flush=True)
ratings["1"] = "two stars, by the customer"
client.start()
rated.wait()
client.close()
