"""Close an order that is not paid within 30 minutes. Try `unpaid_order.py 2s`."""

import os
import sys
import threading

import penstock

PATIENCE = sys.argv[1] if len(sys.argv) > 1 else "30m"
client = penstock.Client(os.environ.get("BOOTSTRAP", "localhost:9092"))
closed = threading.Event()


def order(number: str) -> None:
    client.send("close-order", number, key=number, delay=PATIENCE, timer_id=f"close-{number}")
    print(f"order {number} is open", flush=True)


def paid(number: str) -> None:
    client.cancel("close-order", f"close-{number}", key=number)
    print(f"order {number} is paid", flush=True)


@client.subscribe("close-order", group="orders", from_beginning=True)
def close(message: penstock.Message) -> None:
    print(f"order {message.value.decode()} is closed: nobody has paid", flush=True)
    closed.set()


order("1")
order("2")
paid("1")
client.start()
closed.wait()
client.close()
