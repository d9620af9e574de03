"""One event, many listeners: the publisher does not know them and waits for none."""

import os
import threading

import penstock

client = penstock.Client(os.environ.get("BOOTSTRAP", "localhost:9092"))
heard = threading.Semaphore(0)


def listener(name: str, action: str) -> None:
    @client.subscribe("posts", group=name, from_beginning=True)
    def listen(message: penstock.Message) -> None:
        print(f"{name} {action} {message.value.decode()!r}\n", end="", flush=True)
        heard.release()


listener("statistics", "counts")
listener("search", "indexes")
listener("followers", "are told of")  # adding a listener changes nothing else

client.send("posts", "my new bicycle", key="user-7")
client.start()
for _ in range(3):
    heard.acquire()
client.close()
