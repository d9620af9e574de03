"""Send and receive dataclasses; a message that cannot be decoded becomes a dead letter at once."""

import os
import threading
from dataclasses import dataclass, field
from decimal import Decimal

import penstock

client = penstock.Client(os.environ.get("BOOTSTRAP", "localhost:9092"))
dead = threading.Event()


@dataclass
class Line:
    article: str
    price: Decimal
    count: int = 1


@dataclass
class Order:
    id: int
    lines: list[Line] = field(default_factory=list)


@client.subscribe("shop-orders", group="shop-billing")
def bill(order: Order) -> None:
    total = sum(line.price * line.count for line in order.lines)
    print(f"order {order.id}: {', '.join(f'{line.count} x {line.article}' for line in order.lines)}, {total} EUR")


@client.subscribe("shop-billing.dead", group="shop-postmaster")
def look(message: penstock.Message) -> None:
    print(f"dead letter: {message.error}", flush=True)
    dead.set()


client.send("shop-orders", Order(7, [Line("tea", Decimal("3.50"), 2), Line("cup", Decimal("9.00"))]), key="a")
client.send("shop-orders", '{"id": 8, "lines": [{"article": "tea"}]}', key="a")  # from another application
client.start()
dead.wait()
client.close()
