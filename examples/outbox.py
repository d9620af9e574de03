"""The outbox pattern in one line: a message in the application's own transaction, which is sent if that commits."""

import os
import sqlite3
import tempfile
import threading

import penstock
from penstock import direct

file = os.path.join(tempfile.mkdtemp(), "shop.db")
client = direct.Client(f"sqlite:///{file}")
shipped = threading.Event()


@client.subscribe("parcels", group="shipping", from_beginning=True)
def ship(message: penstock.Message) -> None:
    print(f"{message.value.decode()} is shipped", flush=True)
    shipped.set()


client.create_topic("parcels")  # an outbox makes no tables: the transaction is the application's
client.start()
shop = sqlite3.connect(file)
shop.execute("CREATE TABLE orders (name TEXT UNIQUE)")
for name in ("a book", "a book", "a lamp"):
    try:
        with shop:
            direct.outbox(shop).send("parcels", name)
            shop.execute("INSERT INTO orders VALUES (?)", (name,))
    except sqlite3.IntegrityError:
        print(f"{name} was ordered before: no order, no parcel", flush=True)
    else:
        shipped.wait()
        shipped.clear()
shop.close()
client.close()
