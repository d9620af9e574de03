"""Handle a message that was sent twice once: the business id identifies it."""

import os
import threading

import penstock

client = penstock.Client(os.environ.get("BOOTSTRAP", "localhost:9092"))
last = threading.Event()
store = penstock.MemoryStore()  # use a SqlStore or RedisStore for several processes


@client.subscribe("charges", group="bank", dedup=penstock.Dedup(store, window="24h"), from_beginning=True)
def charge(message: penstock.Message) -> None:
    print(f"charging {message.value.decode()}", flush=True)
    if message.biz_id == "order-43":
        last.set()


client.send("charges", "10 EUR for order 42", key="a", biz_id="order-42")
client.send("charges", "10 EUR for order 42", key="a", biz_id="order-42")  # the shop was not sure and sent it again
client.send("charges", "20 EUR for order 43", key="a", biz_id="order-43")
client.start()
last.wait()
client.close()
