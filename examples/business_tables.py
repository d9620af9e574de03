"""Each order is billed once, whatever crashes: the bill and the note that the order was handled are one transaction."""

import os
import sqlite3
import tempfile

import penstock
from penstock import direct

file = os.path.join(tempfile.mkdtemp(), "shop.db")
client = direct.Client(f"sqlite:///{file}")
with sqlite3.connect(file) as shop:
    shop.execute("CREATE TABLE bills (order_id TEXT, amount INTEGER)")


@client.subscribe_in_transaction(
    "shop-orders", group="billing", retries=penstock.Retries(first="200ms"), from_beginning=True
)
def bill(message: penstock.Message, transaction: direct.HandlerTransaction) -> None:
    order, amount = message.value.decode().split()
    transaction.connection.execute("INSERT INTO bills VALUES (?, ?)", (order, int(amount)))
    transaction.send("bills-written", order)  # stored with the bill, or not at all
    if message.attempt == 1 and order == "order-2":
        raise ConnectionError("the bill was written, and is rolled back")


@client.subscribe("bills-written", group="printer", from_beginning=True)
def show(message: penstock.Message) -> None:
    order = message.value.decode()
    count, amount = shop.execute("SELECT COUNT(*), SUM(amount) FROM bills WHERE order_id = ?", (order,)).fetchone()
    print(f"{order}: {count} bill, {amount} EUR", flush=True)
    if order == "order-2":
        client.stop()


shop.close()
shop = sqlite3.connect(file, check_same_thread=False)
client.send("shop-orders", "order-1 10")
client.send("shop-orders", "order-2 20")
client.run()
client.close()
